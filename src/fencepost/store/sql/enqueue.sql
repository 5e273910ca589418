-- Store new jobs, due now or later. All of them or none.
--
-- Parameters: jobs, a jsonb array of objects as in the record below; channel and hint,
--   the wake-up to send with the commit (null: none).
-- Returns: a row for each job stored. A job whose idempotency key exists already is left
--   out; the caller looks at what the key made (replay.sql).
-- Indexes: the primary keys. Locks: the rows it inserts; a key that another open
--   transaction holds is waited for. Keys are taken in order, so that two bulk requests
--   with the same keys can't deadlock.
--
-- The insert into jobs comes before run_at is stamped: from then on this transaction has
-- an id, and a claim that passes run_at without seeing the row knows whom to wait for.
with input as materialized (
    select i.*
      from jsonb_to_recordset(cast(:jobs as jsonb)) as i (
          id uuid, queue_id int, type text, priority smallint, payload jsonb, max_attempts smallint,
          timeout_seconds float8, run_at timestamptz, delay_seconds float8,
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
stored as (
    insert into fencepost.jobs (
        id, queue_id, type, priority, payload, max_attempts, timeout_seconds, idempotency_key, request_id, created_at
    )
    -- A payload of null arrives as SQL's.
    select i.id, i.queue_id, i.type, i.priority, coalesce(i.payload, jsonb 'null'), i.max_attempts,
           i.timeout_seconds, i.idempotency_key, i.request_id, clock_timestamp()
      from input i
     where i.idempotency_key is null
        or i.id in (select k.job_id from keyed k)
    returning id, queue_id, priority, created_at
),
placed as (
    insert into fencepost.pending (id, queue_id, priority, attempts, token, run_at)
    select s.id, s.queue_id, s.priority, 0, 0,
           greatest(
               coalesce(i.run_at, clock_timestamp() + make_interval(secs => i.delay_seconds)),
               clock_timestamp()
           )
      from stored s
      join input i on i.id = s.id
    returning id, run_at
)
select p.id, s.created_at, p.run_at,
       cast(
           (select pg_notify(cast(:channel as text), cast(:hint as text)) where cast(:hint as text) is not null) as text
       ) as sent
  from placed p
  join stored s on s.id = p.id
