-- Which queues have something to claim, and when the next scheduled job is due: one probe a lane.
--
-- Run once a poll by an idle dispatcher, so that a thousand queues don't mean a thousand statements.
-- Parameters: cursors, a jsonb object from "queue:priority" to the run_at and id from which to look.
-- Returns: a row first with this statement's snapshot (queue_id null), then a row a queue that isn't empty.
-- Index: pending_lane, from the cursor on. Locks: none.
select null::int as queue_id, null::bool as due, null::timestamptz as next_run_at, now() as seen_at,
       cast(pg_current_snapshot() as text) as snapshot
union all
select l.queue_id, bool_or(p.run_at <= now()) as due,
       min(least(p.run_at, timestamptz '9999-01-01 00:00+00')) filter (where p.run_at > now()) as next_run_at,
       now() as seen_at, null
  from fencepost.lanes l
  join fencepost.queues q on q.id = l.queue_id and q.paused_at is null
  cross join lateral (
    -- Looked up by name: joined as a list, they would be gone through once for each lane.
    select cast(:cursors as jsonb) -> (l.queue_id || ':' || l.priority) as at
  ) c
 cross join lateral (
    select p.run_at
      from fencepost.pending p
     where p.queue_id = l.queue_id
       and p.priority = l.priority
       and (p.run_at, p.id) > (
               coalesce(cast(c.at ->> 0 as timestamptz), timestamptz '-infinity'),
               coalesce(cast(c.at ->> 1 as uuid), uuid '00000000-0000-0000-0000-000000000000')
           )
       -- Says nothing new, but the index wants to hear it.
       and p.run_at > timestamptz '-infinity'
     order by p.run_at, p.id
     limit 1
 ) p
 group by l.queue_id
