-- Renew leases from now on, each under its token, and say which are to be cancelled.
--
-- Returns: a row for each lease still held; one that is missing is lost. A lease that ran out but
--   that nobody took is renewed: its token is still the newest.
-- Index: leases' primary key. Locks: those leases, in the order of their ids.
with held as materialized (
    select l.id
      from (
        select i.* from unnest(cast(:ids as uuid[]), cast(:tokens as bigint[])) i (id, token) order by i.id
      ) i
     cross join lateral (
        select l.id
          from fencepost.leases l
         where l.id = i.id
           and l.queue_id = cast(:queue_id as int)
           and l.token = i.token
         limit 1
           for update
     ) l
)
update fencepost.leases l
   set locked_until = greatest(
           l.locked_until, clock_timestamp() + make_interval(secs => cast(:lease_seconds as float8))
       )
 where l.queue_id = cast(:queue_id as int)
   and l.id = any (array (select h.id from held h))
returning l.id, l.token, l.cancel_requested_at is not null as cancel_requested
