-- The first due job of each lane of a queue, behind its dispatcher's cursor or not.
--
-- Run beside the claims, never in front of them, when an old transaction has ended that may have left a job
-- behind the cursor, and once a minute for a clock that stepped back.
-- Parameters: cursors, the places to look from, as in claim.sql; a lane that isn't named is looked at from its start.
-- Index: pending_lane. Locks: none.
select l.priority, greatest(p.run_at, timestamptz '0001-01-01 00:00+00') as run_at
  from fencepost.lanes l
 cross join lateral (select cast(:cursors as jsonb) -> cast(l.priority as text) as place) c
 cross join lateral (
    select p.run_at
      from fencepost.pending p
     where p.queue_id = cast(:queue_id as int)
       and p.priority = l.priority
       and (p.run_at, p.id) > (
               coalesce(cast(c.place ->> 0 as timestamptz), timestamptz '-infinity'),
               coalesce(cast(c.place ->> 1 as uuid), uuid '00000000-0000-0000-0000-000000000000')
           )
       and p.run_at <= now()
     order by p.run_at, p.id
     limit 1
 ) p
 where l.queue_id = cast(:queue_id as int)
