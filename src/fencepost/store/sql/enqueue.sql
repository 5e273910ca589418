-- Store new jobs, due now or later. All of them or none.
--
-- Parameters: jobs, a jsonb array of objects as in the record below; channel and hint,
--   the wake-up to send with the commit (null: none).
-- Returns: a row first (id null) with created_at, the same for all of them; due then is the later of that and what
--   was asked for. Then a row for each job stored that has an idempotency key. One whose key exists already is left
--   out; the caller looks at what the key made (replay.sql).
-- Indexes: the primary keys. Locks: the rows it inserts; a key that another open
--   transaction holds is waited for. Keys are taken in order, so that two bulk requests
--   with the same keys can't deadlock.
--
-- The clock is read when this transaction has its id: a claim that passes run_at without seeing the row knows whom to
-- wait for (worker/cursors.py).
with input as materialized (
    select i.*
      from jsonb_to_recordset(cast(:jobs as jsonb)) as i (
          id uuid, queue_id int, type text, priority smallint, payload jsonb, max_attempts smallint,
          timeout_seconds float8, run_at timestamptz, delay_microseconds bigint,
          idempotency_key text, schedule text, request_id text
      )
),
keyed as (
    insert into fencepost.idempotency_keys (key, job_id, queue_id, schedule)
    select i.idempotency_key, i.id, i.queue_id, i.schedule
      from input i
     where i.idempotency_key is not null
     order by i.idempotency_key
        on conflict (key) do nothing
    returning job_id
),
clock as materialized (
    select clock_timestamp() as now from (select pg_current_xact_id() as id offset 0) own where own.id is not null
),
accepted as materialized (
    select i.*, clock.now
      from clock
     cross join input i
     where i.idempotency_key is null
        or i.id in (select k.job_id from keyed k)
),
stored as (
    insert into fencepost.jobs (
        id, queue_id, type, priority, payload, max_attempts, timeout_seconds, idempotency_key, request_id, created_at
    )
    -- A payload of null arrives as SQL's.
    select a.id, a.queue_id, a.type, coalesce(a.priority, 0), coalesce(a.payload, jsonb 'null'), a.max_attempts,
           a.timeout_seconds, a.idempotency_key, a.request_id, a.now
      from accepted a
),
placed as (
    insert into fencepost.pending (id, queue_id, priority, attempts, token, run_at)
    select a.id, a.queue_id, coalesce(a.priority, 0), 0, 0,
           greatest(coalesce(a.run_at, a.now + a.delay_microseconds * interval '1 microsecond'), a.now)
      from accepted a
)
select null::uuid as id, clock.now as created_at,
       cast(
           (
               select pg_notify(cast(:channel as text), cast(:hint as text))
                where cast(:hint as text) is not null
                  and exists (select from accepted)
           ) as text
       ) as sent
  from clock
union all
select k.job_id, null, null from keyed k
