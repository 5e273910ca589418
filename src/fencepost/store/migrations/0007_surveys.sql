-- What was found to go wrong. A survey that was made for one set of times doesn't count for another. A request is not told what
-- became of a different one under its idempotency key.
--
-- Locks: partitions for an instant, to add a column that is null in all rows there are.

alter table fencepost.partitions
    add column surveyed_for jsonb;
comment on column fencepost.partitions.surveyed_for is 'The times for which its survey is made: seconds by status. For others it begins anew.';

create or replace function fencepost.replays(jobs jsonb, places jsonb, known int[], unused jsonb) returns jsonb
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
-- What the idempotency keys of some places have made, and whether those requests ask for the same again. unused: keys
-- that the same call has let go of, since the request that took them made no job, with what to answer to that and to
-- the same again; to another one the key is gone, and free. For enqueue_jobs only.
--
-- Payloads are compared as jsonb: order of keys, white space and spelling of numbers don't matter.
declare
    answers jsonb;
begin
    with asked as materialized (
        select cast(i.number - 1 as int) as place, o.place is not null as is_known, i.idempotency_key, i.type,
               coalesce(i.queue_id, cast(places ->> i.queue as int)) as queue_id, coalesce(i.priority, 0) as priority,
               coalesce(i.payload, jsonb 'null') as payload, i.max_attempts, i.timeout_seconds, i.tags, i.metadata,
               i.schedule
          from rows from (
                   jsonb_to_recordset(jobs) as (
                       queue_id int, queue text, type text, priority smallint, payload jsonb, max_attempts smallint,
                       timeout_seconds float8, idempotency_key text, schedule text, tags text[], metadata jsonb
                   )
               ) with ordinality as i (
                   queue_id, queue, type, priority, payload, max_attempts, timeout_seconds, idempotency_key, schedule,
                   tags, metadata, number
               )
          left join unnest(known) as o (place) on o.place = i.number - 1
    )
    select coalesce(
               jsonb_agg(
                   case when k.job_id is null and first.is_same then unused -> a.idempotency_key
                        else jsonb_strip_nulls(
                            jsonb_build_object(
                                'id', k.job_id,
                                'effect',
                                case when k.job_id is null then 'key_gone'
                                     when first.is_same then 'replayed'
                                     else 'conflict' end,
                                'gone', case when k.job_id is not null and first.is_same is null then true end
                            )
                        ) end
                   || jsonb_build_object('place', a.place)
               ),
               '[]'
           )
      into answers
      from asked a
      left join lateral (
        select k.job_id, k.queue_id, k.schedule
          from fencepost.idempotency_keys k
         where k.key = a.idempotency_key
         limit 1
      ) k on true
      left join lateral (
        select j.* from fencepost.jobs j where j.id = k.job_id and j.queue_id = k.queue_id limit 1
      ) j on true
      -- The request of this call that took the key and let go of it.
      left join asked f on f.idempotency_key = a.idempotency_key and not f.is_known and k.job_id is null
      left join lateral (
        select coalesce(
                   coalesce(j.type, f.type) = a.type
                   and coalesce(j.queue_id, f.queue_id) = a.queue_id
                   and coalesce(j.priority, f.priority) = a.priority
                   and coalesce(j.payload, f.payload) = a.payload
                   and coalesce(j.max_attempts, f.max_attempts) = a.max_attempts
                   and coalesce(j.timeout_seconds, f.timeout_seconds) is not distinct from a.timeout_seconds
                   and coalesce(j.tags, f.tags) is not distinct from a.tags
                   and coalesce(j.metadata, f.metadata) is not distinct from a.metadata
                   and coalesce(k.schedule, f.schedule) = a.schedule,
                   false
               ) as is_same
         where j.id is not null
            or f.place is not null
      ) first on true
     where a.is_known;
    return answers;
end
$$;
