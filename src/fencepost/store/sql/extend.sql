-- Renew leases from now on, each under its token, and say which are to be cancelled.
--
-- Returns: a row for each lease still held; one that is missing is lost. A lease that ran out but
--   that nobody took is renewed: its token is still the newest. One whose row is somebody's just now isn't renewed,
--   and is told by busy: nobody else can take it while that lasts.
-- Index: leases' primary key. Locks: those leases, in the order of their ids. Nothing waits:
--
--     a handler, in its own transaction   extend
--     completes its attempt: the lease
--     is deleted
--     does something slow                 passes the row over; it is in the snapshot still: busy
--     commits                             finds no such row: missing
--     or rolls back                       renews it
with input as materialized (
    select i.id, i.token
      from unnest(cast(:ids as uuid[]), cast(:tokens as bigint[])) i (id, token)
     order by i.id
),
held as materialized (
    select l.id, l.token
      from input i
     cross join lateral (
        select l.id, l.token
          from fencepost.leases l
         where l.id = i.id
           and l.queue_id = cast(:queue_id as int)
           and l.token = i.token
         limit 1
           for update skip locked
     ) l
),
renewed as (
    update fencepost.leases l
       set locked_until = greatest(
               l.locked_until, clock_timestamp() + make_interval(secs => cast(:lease_seconds as float8))
           )
     where l.queue_id = cast(:queue_id as int)
       and l.id = any (array (select h.id from held h))
    returning l.id, l.token, l.cancel_requested_at
)
select r.id, r.token, r.cancel_requested_at is not null as cancel_requested, false as busy
  from renewed r
union all
select l.id, l.token, l.cancel_requested_at is not null, true
  from input i
 cross join lateral (
    select l.id, l.token, l.cancel_requested_at
      from fencepost.leases l
     where l.id = i.id
       and l.queue_id = cast(:queue_id as int)
       and l.token = i.token
     limit 1
 ) l
 where (l.id, l.token) not in (select h.id, h.token from held h)
