-- Which queues have something to claim, and when the next scheduled job is due: one probe a lane.
--
-- Run once a poll by an idle dispatcher, so that a thousand queues don't mean a thousand statements.
-- Parameters: the lanes' cursors, as in claim.sql, for all queues at once.
-- Returns: a row first with this statement's snapshot (queue_id null), then a row a queue that isn't empty.
-- Index: pending_lane, from the cursor on. Locks: none.
select null::int as queue_id, null::bool as due, null::timestamptz as next_run_at, now() as seen_at,
       cast(pg_current_snapshot() as text) as snapshot
union all
select l.queue_id, bool_or(p.run_at <= now()) as due, min(p.run_at) filter (where p.run_at > now()) as next_run_at,
       now() as seen_at, null
  from fencepost.lanes l
  join fencepost.queues q on q.id = l.queue_id and q.paused_at is null
  left join unnest(
           cast(:lane_queue_ids as int[]), cast(:lane_priorities as smallint[]), cast(:lane_run_at as timestamptz[]),
           cast(:lane_ids as uuid[])
       ) c (queue_id, priority, run_at, id) on c.queue_id = l.queue_id and c.priority = l.priority
 cross join lateral (
    select p.run_at
      from fencepost.pending p
     where p.queue_id = l.queue_id
       and p.priority = l.priority
       and (p.run_at, p.id) > (
               coalesce(c.run_at, timestamptz '-infinity'),
               coalesce(c.id, uuid '00000000-0000-0000-0000-000000000000')
           )
       -- Says nothing new, but the index wants to hear it.
       and p.run_at > timestamptz '-infinity'
     order by p.run_at, p.id
     limit 1
 ) p
 group by l.queue_id
