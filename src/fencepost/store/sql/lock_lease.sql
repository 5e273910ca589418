-- Lock the lease of an attempt, in a transaction that goes on to end it, unless somebody has it locked.
--
-- Returns: one row while there is such a lease: whether it is ours now. No row: it is lost.
-- Index: leases' primary key. Locks: that lease; nothing waits.
with held as materialized (
    select l.id
      from fencepost.leases l
     where l.id = cast(:id as uuid)
       and l.queue_id = cast(:queue_id as int)
       and l.token = cast(:token as bigint)
       for update skip locked
)
select exists (select from held h) as locked
  from fencepost.leases l
 where l.id = cast(:id as uuid)
   and l.queue_id = cast(:queue_id as int)
   and l.token = cast(:token as bigint)
