-- Every queue with its depth, the due time of its oldest due job and what is in flight.
--
-- Counts stop at :count_limit, so that a backlog of millions costs no more than one of that size.
-- Indexes: pending_lane and leases_expiry, index-only where vacuum has been. Locks: none.
select q.name, q.paused_at, q.created_at, d.depth, f.in_flight,
       extract(epoch from clock_timestamp() - o.run_at)::float8 as oldest_due_seconds
  from fencepost.queues q
 cross join lateral (
    select count(*) as depth
      from (
        select from fencepost.pending p
         where p.queue_id = q.id
           and p.run_at > timestamptz '-infinity'
         limit cast(:count_limit as int)
      ) p
 ) d
 cross join lateral (
    select count(*) as in_flight
      from (
        select from fencepost.leases l
         where l.queue_id = q.id
           and l.locked_until > timestamptz '-infinity'
         limit cast(:count_limit as int)
      ) l
 ) f
  left join lateral (
    -- A time that was written by hand may be -infinity, from which nothing can be subtracted.
    select min(greatest(p.run_at, timestamptz '0001-01-01 00:00+00')) as run_at
      from fencepost.lanes l
     cross join lateral (
        select p.run_at
          from fencepost.pending p
         where p.queue_id = q.id
           and p.priority = l.priority
           and p.run_at <= now()
         order by p.run_at
         limit 1
     ) p
     where l.queue_id = q.id
  ) o on true
 where cast(:name as text) is null
    or q.name = cast(:name as text)
 order by q.name
