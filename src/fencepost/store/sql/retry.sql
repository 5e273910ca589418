-- Put a dead-lettered job back: attempts 0, due now. Touches nothing in any other status, nor while another job holds
-- its unique key.
--
-- The token travels on, so that an attempt from before the dead letter can never settle it. A job with a unique key
-- holds it again, for as long as its row says; one without a row, which retention removed, until the job has ended.
-- Returns: one row when the job was dead_letter, with the effect: 'retried', 'held' (holder is the job that has the
--   key), or 'moving' (an enqueue or a retry has just taken the key: the caller looks again).
-- Indexes: the primary keys. Locks: the finished row, then the key's, for which it waits as an enqueue does.
--
--     retry of A                          enqueue of B with A's key
--                                         points the key's row at B
--     sees B nowhere; waits for the row
--                                         stores B, commits
--     the row isn't as it was seen:
--     nothing is done; looks again: held
--
--     points the key's row at A
--                                         waits for the row
--     moves A to pending, commits
--                                         looks for A in a new snapshot: skipped
--
-- Only an enqueue and a retry make a job live, and each writes its key's row in the same transaction. So while that row
-- is the version that this snapshot shows, whoever held nothing in it holds nothing.
with dead as materialized (
    select f.id, f.queue_id, f.token
      from fencepost.finished f
     where f.id = cast(:id as uuid)
       and f.queue_id = cast(:queue_id as int)
       and f.status = 'dead_letter'
       for update
),
lane as materialized (
    select d.*, j.priority, j.type, j.unique_key
      from dead d
     cross join lateral (
        select j.priority, j.type, j.unique_key
          from fencepost.jobs j
         where j.id = d.id
           and j.queue_id = d.queue_id
         limit 1
     ) j
),
seen as materialized (
    select k.version, k.job_id,
           k.job_id <> l.id
           and case k.until when 'period' then k.expires_at > clock_timestamp()
                            else coalesce(
                                (
                                    select k.until = 'finished' or p.attempts = 0
                                      from fencepost.pending p
                                     where p.id = k.job_id
                                       and p.queue_id = k.queue_id
                                ),
                                (
                                    select k.until = 'finished'
                                      from fencepost.leases e
                                     where e.id = k.job_id
                                       and e.queue_id = k.queue_id
                                ),
                                false
                            ) end as stands
      from lane l
     cross join lateral (
        select k.xmin as version, k.*
          from fencepost.unique_keys k
         where k.type = l.type
           and k.key = l.unique_key
         limit 1
     ) k
),
taken as (
    insert into fencepost.unique_keys as k (type, key, job_id, queue_id, until)
    select l.type, l.unique_key, l.id, l.queue_id, 'finished'
      from lane l
     where l.unique_key is not null
       and not exists (select from seen s where s.stands)
        on conflict (type, key) do update set job_id = excluded.job_id, queue_id = excluded.queue_id
           where k.xmin = (select s.version from seen s)
    returning k.job_id
),
free as materialized (
    select l.*
      from lane l
     where l.unique_key is null
        or exists (select from taken)
),
gone as (
    delete from fencepost.finished f
     where f.id = cast(:id as uuid)
       and f.queue_id = cast(:queue_id as int)
       and exists (select from free)
),
placed as (
    insert into fencepost.pending (id, queue_id, priority, attempts, token, run_at)
    select l.id, l.queue_id, l.priority, 0, l.token, clock_timestamp()
      from free l
    returning id
)
select case when p.id is not null then 'retried'
            when s.stands then 'held'
            else 'moving' end as effect,
       s.job_id as holder,
       case when p.id is not null and cast(:hint as text) is not null
            then cast((select pg_notify(cast(:channel as text), cast(:hint as text))) as text) end as sent
  from lane l
  left join placed p on p.id = l.id
  left join seen s on true
