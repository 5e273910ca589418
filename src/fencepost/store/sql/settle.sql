-- Write how attempts ended, each under its lease token. One queue, any number of attempts.
--
-- Parameters: outcomes, a jsonb array of objects as in the record below. status is where the job
--   goes; 'pending' is back, due after delay_seconds. ending is 'succeeded' or what attempts.outcome
--   takes. What an object leaves out is null, or for a success 'succeeded' and 'completed'.
-- Returns: a row for each attempt that still owned its job. One that is missing had lost its
--   lease, and nothing was written for it.
-- Index: leases' primary key. Locks: those leases, in the order of their ids, as extend.sql does;
--   a cancellation or an extension under way is waited for, a recovery wins or loses whole.
--
-- Cancelled meanwhile: a job that would go back to pending ends cancelled instead. What ended
-- by itself (completed, failed, dead_letter) stays as it ended.
--
-- A stale worker:
--     A (token 3)                         recovery, then B (token 4)
--     stops for longer than its lease
--                                         lease 3 deleted, job pending, claimed: lease 4
--     settles (id, 3): no such lease,
--     no row back, LeaseLost
with input as materialized (
    select i.*
      from jsonb_to_recordset(cast(:outcomes as jsonb)) as i (
               id uuid, token bigint, ending text, status text, delay_seconds float8, result jsonb, error_type text,
               error text, traceback text
           )
     order by i.id
),
held as materialized (
    select coalesce(i.ending, 'succeeded') as ending, coalesce(i.delay_seconds, 0) as delay_seconds, i.result, i.error_type, i.error, i.traceback, l.id, l.priority, l.attempt,
           l.token, l.worker_id, l.started_at,
           case when i.status = 'pending' and l.cancel_requested_at is not null then 'cancelled'
                else coalesce(i.status, 'completed') end as status
      from input i
     cross join lateral (
        select l.*
          from fencepost.leases l
         where l.id = i.id
           and l.queue_id = cast(:queue_id as int)
           and l.token = i.token
         limit 1
           for update
     ) l
),
let_go as (
    delete from fencepost.leases l
     where l.queue_id = cast(:queue_id as int)
       and l.id = any (array (select h.id from held h))
),
ended as (
    insert into fencepost.finished (id, queue_id, status, attempts, token, started_at, finished_at, result)
    select h.id, cast(:queue_id as int), h.status, h.attempt, h.token, h.started_at, clock_timestamp(), h.result
      from held h
     where h.status <> 'pending'
),
back as (
    insert into fencepost.pending (id, queue_id, priority, attempts, token, run_at)
    select h.id, cast(:queue_id as int), h.priority,
           case when h.ending = 'released' then h.attempt - 1 else h.attempt end,
           h.token, clock_timestamp() + make_interval(secs => h.delay_seconds)
      from held h
     where h.status = 'pending'
),
logged as (
    insert into fencepost.attempts (
        id, queue_id, token, attempt, outcome, worker_id, started_at, ended_at, error_type, error, traceback
    )
    select h.id, cast(:queue_id as int), h.token, h.attempt, h.ending, h.worker_id, h.started_at, clock_timestamp(),
           h.error_type, h.error, h.traceback
      from held h
     where h.ending <> 'succeeded'
)
select h.id, h.token, h.status from held h
