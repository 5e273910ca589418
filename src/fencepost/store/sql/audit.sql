-- Whether every job is in exactly one place: the invariant behind "nothing lost". Scans everything.
select (select count(*) from fencepost.jobs) as jobs,
       (select count(*) from fencepost.pending) as pending,
       (select count(*) from fencepost.leases) as leases,
       (select count(*) from fencepost.finished) as finished
