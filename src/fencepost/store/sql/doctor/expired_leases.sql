-- Leases that ran out long ago and are still there, which no sweep has taken back.
--
-- Parameters: overdue_seconds, since when they must have run out; silence_seconds, how long a worker that isn't heard of
-- counts as alive. Index: leases_expiry, once a queue. Locks: none.
with expired as materialized (
    select l.id, l.locked_until
      from fencepost.queues q
     cross join lateral (
        select l.id, l.locked_until
          from fencepost.leases l
         where l.queue_id = q.id
           and l.locked_until < now() - make_interval(secs => cast(:overdue_seconds as float8))
         limit 1000
     ) l
)
select (select count(*) from expired e) as rows,
       (select coalesce(array_agg(e.id), '{}') from (select x.id from expired x order by x.locked_until limit 5) e) as ids,
       (select extract(epoch from now() - min(e.locked_until))::float8 from expired e) as oldest_seconds,
       (
           select count(*)
             from fencepost.workers w
            where w.heartbeat_at > clock_timestamp() - make_interval(secs => cast(:silence_seconds as float8))
       ) as workers
