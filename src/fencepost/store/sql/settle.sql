-- Write how attempts ended, each under its lease token. One queue, any number of attempts.
--
-- Parameters: ids and tokens name the attempts, in two arrays of one length. Without more an attempt succeeded.
--   details tells of those of which there is more to say, or is null: a jsonb object of objects by "id token", with
--   status, where the job goes ('pending' is back, due after delay_seconds); ending, as attempts.outcome takes it;
--   result, error_type, error, traceback.
-- Returns: a row for each attempt that did not end as told: its job's status, or null when it had lost its lease
--   and nothing was written for it. No row at all is the usual answer.
-- Index: leases' primary key. Locks: those leases, in the order of their ids (the index scan sorts them), as
--   extend.sql does; a cancellation or an extension under way is waited for, a recovery wins or loses whole.
--
-- The leases are deleted without being locked first: what the delete returns is the row as it was in that moment,
-- with a cancellation that came after this statement began.
--
-- Cancelled meanwhile: a job that would go back to pending ends cancelled instead. What ended
-- by itself (completed, failed, dead_letter) stays as it ended.
--
-- Released and snoozed: the attempt is given back. A release is kept in the history, a snooze isn't: there may be
-- thousands of one job. A release gives it back to a job that was cancelled meanwhile, too, as if the cancellation
-- had come after it.
--
-- A stale worker:
--     A (token 3)                         recovery, then B (token 4)
--     stops for longer than its lease
--                                         lease 3 deleted, job pending, claimed: lease 4
--     settles (id, 3): no such lease,
--     nothing written, told that it is lost
with input as materialized (
    select i.id, i.token
      from unnest(cast(cast(:ids as text) as uuid[]), cast(cast(:tokens as text) as bigint[])) i (id, token)
),
let_go as (
    delete from fencepost.leases l
     where l.queue_id = cast(:queue_id as int)
       and l.id = any (array (select i.id from input i))
       -- "is true" keeps it a filter: as a join it might be driven by all leases.
       and ((l.id, l.token) in (select i.id, i.token from input i)) is true
    returning l.id, l.priority, l.attempt, l.token, l.worker_id, l.started_at, l.cancel_requested_at,
              case when cast(:details as jsonb) is not null
                   then cast(:details as jsonb) -> (cast(l.id as text) || ' ' || cast(l.token as text)) end as detail
),
held as materialized (
    select g.id, g.priority, g.attempt, g.token, g.worker_id, g.started_at, g.detail,
           case when g.detail ->> 'ending' = 'released'
                     or g.detail ->> 'ending' = 'snoozed' and g.cancel_requested_at is null
                then g.attempt - 1 else g.attempt end as attempts,
           -- One that only snoozed leaves no trace; one that was cancelled while it did has an end to tell of.
           case when g.detail ->> 'ending' = 'snoozed' and g.cancel_requested_at is not null then 'cancelled'
                else coalesce(g.detail ->> 'ending', 'succeeded') end as ending,
           case when g.detail ->> 'status' = 'pending' and g.cancel_requested_at is not null then 'cancelled'
                else coalesce(g.detail ->> 'status', 'completed') end as status
      from let_go g
),
ended as (
    insert into fencepost.finished (id, queue_id, status, attempts, token, started_at, finished_at, result)
    select h.id, cast(:queue_id as int), h.status, h.attempts, h.token, h.started_at, clock_timestamp(),
           nullif(h.detail -> 'result', jsonb 'null')
      from held h
     where h.status <> 'pending'
),
back as (
    insert into fencepost.pending (id, queue_id, priority, attempts, token, run_at)
    select h.id, cast(:queue_id as int), h.priority, h.attempts, h.token,
           clock_timestamp() + make_interval(secs => coalesce(cast(h.detail ->> 'delay_seconds' as float8), 0))
      from held h
     where h.status = 'pending'
),
logged as (
    insert into fencepost.attempts (
        id, queue_id, token, attempt, outcome, worker_id, started_at, ended_at, error_type, error, traceback
    )
    select h.id, cast(:queue_id as int), h.token, h.attempt, h.ending, h.worker_id, h.started_at, clock_timestamp(),
           case when h.detail ->> 'ending' = 'snoozed' then 'Cancelled' else h.detail ->> 'error_type' end,
           case when h.detail ->> 'ending' = 'snoozed' then 'cancelled on request while it was running'
                else h.detail ->> 'error' end,
           h.detail ->> 'traceback'
      from held h
     where h.ending not in ('succeeded', 'snoozed')
)
select i.id, i.token, null as status
  from input i
 where (i.id, i.token) not in (select h.id, h.token from held h)
union all
select h.id, h.token, h.status
  from held h
 where h.status <> coalesce(h.detail ->> 'status', 'completed')
