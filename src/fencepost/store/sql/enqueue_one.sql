-- Store one new job without keys, due now or later: what enqueue.sql does for many, with less to parse.
--
-- Returns: one row with created_at; due then is the later of that and what was asked for. None, and nothing is stored,
--   where no claim would look, as there. Parameters as there, one by one. Indexes: the primary keys. Locks: the rows it
--   inserts.
--
-- The clock is read when this transaction has its id, as there.
with clock as materialized (
    select clock_timestamp() as now
      from (select pg_current_xact_id() as id offset 0) own
     where own.id is not null
       and exists (
        select
          from fencepost.lanes l
         where l.queue_id = cast(:queue_id as int)
           and l.priority = cast(:priority as smallint)
     )
       and exists (
        select from fencepost.queues q where q.id = cast(:queue_id as int) and q.name = cast(:queue as text)
     )
),
stored as (
    insert into fencepost.jobs (
        id, queue_id, type, priority, payload, max_attempts, timeout_seconds, request_id, created_at, tags, metadata,
        trace_context, expires_at
    )
    select cast(:id as uuid), cast(:queue_id as int), cast(:type as text), cast(:priority as smallint),
           cast(:payload as jsonb), cast(:max_attempts as smallint), cast(:timeout_seconds as float8),
           cast(:request_id as text), clock.now, cast(:tags as text[]), cast(:metadata as jsonb),
           cast(:trace_context as text),
           coalesce(
               cast(:expires_at as timestamptz),
               clock.now + cast(:expires_microseconds as bigint) * interval '1 microsecond'
           )
      from clock
),
placed as (
    insert into fencepost.pending (id, queue_id, priority, attempts, token, run_at)
    select cast(:id as uuid), cast(:queue_id as int), cast(:priority as smallint), 0, 0,
           greatest(
               coalesce(
                   cast(:run_at as timestamptz),
                   clock.now + cast(:delay_microseconds as bigint) * interval '1 microsecond'
               ),
               clock.now
           )
      from clock
)
select clock.now as created_at,
       cast(
           (select pg_notify(cast(:channel as text), cast(:hint as text)) where cast(:hint as text) is not null) as text
       ) as sent
  from clock
