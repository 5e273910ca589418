-- Queues with due jobs: since when the oldest is due, whether any runs, and whether the queue is paused.
--
-- Index: pending_lane and leases_expiry, once a lane and a queue. Locks: none.
select q.name, q.paused_at is not null as paused,
       -- As in queue_overview.sql.
       extract(epoch from now() - min(greatest(p.run_at, timestamptz '0001-01-01 00:00+00')))::float8
           as oldest_seconds,
       exists (
           select from fencepost.leases l where l.queue_id = q.id and l.locked_until > timestamptz '-infinity'
       ) as running
  from fencepost.queues q
  join fencepost.lanes a on a.queue_id = q.id
 cross join lateral (
    select p.run_at
      from fencepost.pending p
     where p.queue_id = a.queue_id
       and p.priority = a.priority
       and p.run_at <= now()
     order by p.run_at
     limit 1
 ) p
 group by q.id, q.name, q.paused_at
 order by 3 desc
