-- Write how far attempts are, each under its lease token. One queue, any number of attempts.
--
-- Parameters: ids and tokens name the attempts; progress is a jsonb object of what to keep, by "id token".
-- Returns: the attempts whose lease is somebody's just now (being ended, renewed or cancelled): nothing was written for
--   those, and another try may do. One that has lost its lease is not among them.
-- Index: leases' primary key; none is written to, so the new version of a row stays beside the old one. Locks: those
--   leases, in the order of their ids; nothing waits.
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
           for no key update skip locked
     ) l
),
written as (
    update fencepost.leases l
       set progress = cast(:progress as jsonb) -> (cast(l.id as text) || ' ' || cast(l.token as text))
     where l.queue_id = cast(:queue_id as int)
       and l.id = any (array (select h.id from held h))
)
select l.id, l.token
  from input i
 cross join lateral (
    select l.id, l.token
      from fencepost.leases l
     where l.id = i.id
       and l.queue_id = cast(:queue_id as int)
       and l.token = i.token
     limit 1
 ) l
 where (l.id, l.token) not in (select h.id, h.token from held h)
