-- Store new jobs without keys, due now or later: what enqueue.sql does, with nothing to look at first.
--
-- Parameters: jobs, a jsonb array of objects as in the record below; channel and hint, the wake-up to send with the
--   commit (null: none).
-- Returns: created_at, the same for all of them; due then is the later of that and what was asked for. No row, and
--   nothing is stored, when one of them names a queue and an id that don't belong together, or a lane that isn't there:
--   no claim would find it.
-- Indexes: the primary keys. Locks: the rows it inserts.
--
-- The clock is read when this transaction has its id: a claim that passes run_at without seeing the row knows whom to
-- wait for (worker/cursors.py).
with clock as materialized (
    select clock_timestamp() as now from (select pg_current_xact_id() as id offset 0) own where own.id is not null
),
accepted as materialized (
    select i.*, clock.now
      from clock
     cross join jsonb_to_recordset(cast(:jobs as jsonb)) as i (
          id uuid, queue text, queue_id int, type text, priority smallint, payload jsonb, max_attempts smallint,
          timeout_seconds float8, run_at timestamptz, delay_microseconds bigint, request_id text,
          tags text[], metadata jsonb, trace_context text, expires_at timestamptz, expires_microseconds bigint
      )
),
lost as materialized (
    select p.queue_id
      from (select distinct a.queue, a.queue_id, coalesce(a.priority, 0) as priority from accepted a) p
      left join lateral (
        select l.queue_id from fencepost.lanes l where l.queue_id = p.queue_id and l.priority = p.priority limit 1
      ) l on true
      left join lateral (
        select q.name from fencepost.queues q where q.id = p.queue_id limit 1
      ) q on true
     where l.queue_id is null
        or q.name is distinct from p.queue
     limit 1
),
stored as (
    insert into fencepost.jobs (
        id, queue_id, type, priority, payload, max_attempts, timeout_seconds, request_id, created_at, tags, metadata,
        trace_context, expires_at
    )
    -- A payload of null arrives as SQL's.
    select a.id, a.queue_id, a.type, coalesce(a.priority, 0), coalesce(a.payload, jsonb 'null'), a.max_attempts,
           a.timeout_seconds, a.request_id, a.now, a.tags, a.metadata, a.trace_context,
           coalesce(a.expires_at, a.now + a.expires_microseconds * interval '1 microsecond')
      from accepted a
     where not exists (select from lost)
),
placed as (
    insert into fencepost.pending (id, queue_id, priority, attempts, token, run_at)
    select a.id, a.queue_id, coalesce(a.priority, 0), 0, 0,
           greatest(coalesce(a.run_at, a.now + a.delay_microseconds * interval '1 microsecond'), a.now)
      from accepted a
     where not exists (select from lost)
)
select clock.now as created_at,
       cast(
           (select pg_notify(cast(:channel as text), cast(:hint as text)) where cast(:hint as text) is not null) as text
       ) as sent
  from clock
 where not exists (select from lost)
