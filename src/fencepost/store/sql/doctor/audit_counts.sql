-- How many jobs there are in a range of ids, and where they are.
--
-- Parameters: low and high, the first id and the first beyond.
-- Index: the primary keys. Locks: none.
select (select count(*) from fencepost.jobs j where j.id >= cast(:low as uuid) and j.id < cast(:high as uuid)) as jobs,
       (select count(*) from fencepost.pending p where p.id >= cast(:low as uuid) and p.id < cast(:high as uuid)) as pending,
       (select count(*) from fencepost.leases l where l.id >= cast(:low as uuid) and l.id < cast(:high as uuid)) as leases,
       (select count(*) from fencepost.finished f where f.id >= cast(:low as uuid) and f.id < cast(:high as uuid))
           as finished
