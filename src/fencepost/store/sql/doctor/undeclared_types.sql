-- Types of jobs that are due, and that no process has said to know lately.
--
-- Parameters: within_seconds, what "lately" is; most, how many jobs of a lane are looked at. Index: pending_lane, then
-- the primary key of jobs. Locks: none.
select j.type, count(*) as rows
  from fencepost.lanes a
 cross join lateral (
    select p.id, p.queue_id
      from fencepost.pending p
     where p.queue_id = a.queue_id
       and p.priority = a.priority
       and p.run_at <= now()
     order by p.run_at
     limit cast(:most as int)
 ) p
 cross join lateral (
    select j.type from fencepost.jobs j where j.id = p.id and j.queue_id = p.queue_id limit 1
 ) j
 where not exists (
    select
      from fencepost.job_types t
     where t.name = j.type
       and t.declared_at > clock_timestamp() - make_interval(secs => cast(:within_seconds as float8))
 )
 group by j.type
 order by 2 desc, 1
 limit 20
