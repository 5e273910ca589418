-- Which of a worker's attempts somebody wants stopped. Read after a hint that there is one.
--
-- Index: leases' primary key. Locks: none.
select l.id, l.token
  from unnest(cast(:ids as uuid[])) i (id)
 cross join lateral (
    select l.id, l.token, l.cancel_requested_at
      from fencepost.leases l
     where l.id = i.id
       and l.queue_id = cast(:queue_id as int)
     limit 1
 ) l
 where l.cancel_requested_at is not null
