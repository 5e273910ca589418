-- Put dead-lettered jobs back: attempts 0, due now or spread over a time. Leaves those in any other status alone.
--
-- Parameters: ids, at most a batch, and low and high, the smallest and the largest of them; spread_seconds, over which
--   their due times are spread (0: all now).
-- Returns: a row for each that was dead_letter in this statement's snapshot: its queue, and whether it was put back.
--   If not, another transaction held it: it may still be there when that one has ended, so look again.
-- Index: finished's primary key, in the partitions that the ids are in. Locks: the finished rows that move; one that
--   another retry, a deletion or retention holds is skipped, so nothing waits.
--
-- Two retries of one job:
--     A                                   B
--     locks the finished row              skips it (skip locked), says so
--     moves it to pending, commits
--                                         an older snapshot still shows the row: the lock
--                                         finds it deleted and takes nothing; looks again:
--                                         not dead_letter any more
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
gone as (
    delete from fencepost.finished f
     where f.id >= cast(:low as uuid)
       and f.id <= cast(:high as uuid)
       and f.id = any (array (select h.id from held h))
),
clock as materialized (
    select clock_timestamp() as now from (select pg_current_xact_id() as id offset 0) own where own.id is not null
),
placed as (
    insert into fencepost.pending (id, queue_id, priority, attempts, token, run_at)
    select h.id, h.queue_id, j.priority, 0, h.token,
           clock.now + random() * make_interval(secs => cast(:spread_seconds as float8))
      from clock
     cross join held h
     cross join lateral (
        select j.priority from fencepost.jobs j where j.id = h.id and j.queue_id = h.queue_id limit 1
     ) j
)
select s.id, s.queue_id, case when s.id in (select h.id from held h) then 'retried' end as effect, null as sent
  from seen s
