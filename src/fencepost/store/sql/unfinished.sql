-- Whether any job is pending or in processing, for benchmarks. Locks: none.
select exists (select from fencepost.pending) or exists (select from fencepost.leases) as some
