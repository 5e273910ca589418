-- Put dead-lettered jobs back: attempts 0, due now or spread over a time. Leaves those in any other status alone, and
-- those whose unique key another job holds.
--
-- Parameters: ids, at most a batch, and low and high, the smallest and the largest of them; spread_seconds, over which
--   their due times are spread (0: all now).
-- Returns: a row for each that was dead_letter in this statement's snapshot: its queue, and the effect: 'retried', or
--   'held' when another job has its unique key (of several with one key the newest goes, and has it then). Null:
--   another transaction held the job or its key, so look again.
-- Index: finished's primary key, in the partitions that the ids are in; the other primary keys. Locks: the finished rows
--   that move, and the rows of their unique keys; what another retry, an enqueue, a deletion or retention holds is
--   skipped. Rows of keys that retention had removed are made anew, all of them before any other is locked, in the order
--   in which enqueues make them; only for one that an open transaction has just made is there a wait.
--
-- Two retries of one job:
--     A                                   B
--     locks the finished row              skips it (skip locked), says so
--     moves it to pending, commits
--                                         an older snapshot still shows the row: the lock
--                                         finds it deleted and takes nothing; looks again:
--                                         not dead_letter any more
--
-- A retry and an enqueue with its unique key: told in retry.sql.
--
-- The token travels on, so that an attempt from before the dead letter can never settle it. The clock is read when this
-- transaction has its id: a claim that passes run_at without seeing the row knows whom to wait for (worker/cursors.py).
with seen as materialized (
    select f.id, f.queue_id
      from fencepost.finished f
     where f.id >= cast(:low as uuid)
       and f.id <= cast(:high as uuid)
       and f.id = any (cast(:ids as uuid[]))
       and f.status = 'dead_letter'
),
held as materialized (
    select f.id, f.queue_id, f.token
      from fencepost.finished f
     where f.id >= cast(:low as uuid)
       and f.id <= cast(:high as uuid)
       and f.id = any (array (select s.id from seen s))
       and f.status = 'dead_letter'
       for update skip locked
),
lane as materialized (
    select h.*, j.priority, j.type, j.unique_key
      from held h
     cross join lateral (
        select j.priority, j.type, j.unique_key
          from fencepost.jobs j
         where j.id = h.id
           and j.queue_id = h.queue_id
         limit 1
     ) j
),
known as materialized (
    select l.id, k.version, k.until, k.job_id = l.id as own,
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
     where l.unique_key is not null
),
candidates as materialized (
    -- A period that is over keeps nobody away, nor will it when one of them has the key.
    select l.id, l.queue_id, l.type, l.unique_key, k.version, coalesce(k.stands, false) as stands,
           k.until is distinct from 'period'
           and row_number() over (partition by l.type, l.unique_key order by coalesce(k.own, false) desc, l.id desc) > 1
               as second
      from lane l
      left join known k on k.id = l.id
     where l.unique_key is not null
),
made as (
    insert into fencepost.unique_keys (type, key, job_id, queue_id, until)
    select c.type, c.unique_key, c.id, c.queue_id, 'finished'
      from candidates c
     where c.version is null
       and not c.second
     order by c.type collate "C", c.unique_key collate "C"
        on conflict (type, key) do nothing
    returning job_id
),
new_keys as materialized (
    select coalesce(array_agg(m.job_id), '{}') as holders from made m
),
turned as materialized (
    select c.id, c.queue_id, k.place
      from new_keys n
     cross join candidates c
     cross join lateral (
        select k.ctid as place, k.xmin as version
          from fencepost.unique_keys k
         where k.type = c.type
           and k.key = c.unique_key
         limit 1
           for update skip locked
     ) k
     where c.version is not null
       and not c.stands
       and not c.second
       and k.version = c.version
),
taken as (
    update fencepost.unique_keys u
       set job_id = t.id, queue_id = t.queue_id
      from turned t
     where u.ctid = t.place
),
back as materialized (
    select l.*
      from new_keys n
     cross join lane l
     where l.unique_key is null
        or l.id = any (n.holders)
        or l.id in (select t.id from turned t)
),
gone as (
    delete from fencepost.finished f
     where f.id >= cast(:low as uuid)
       and f.id <= cast(:high as uuid)
       and f.id = any (array (select b.id from back b))
),
clock as materialized (
    select clock_timestamp() as now from (select pg_current_xact_id() as id offset 0) own where own.id is not null
),
placed as (
    insert into fencepost.pending (id, queue_id, priority, attempts, token, run_at)
    select b.id, b.queue_id, b.priority, 0, b.token,
           clock.now + random() * make_interval(secs => cast(:spread_seconds as float8))
      from clock
     cross join back b
)
select s.id, s.queue_id,
       case when s.id in (select b.id from back b) then 'retried'
            when s.id in (select c.id from candidates c where c.stands or c.second) then 'held' end as effect,
       null as sent
  from seen s
