-- What an idempotency key has made, and whether this request asks for the same again.
--
-- Payloads are compared as jsonb: order of keys, white space and spelling of numbers don't matter.
-- Index: the keys' primary key, then the job's. Locks: none.
select k.job_id as id,
       j.id is null as job_gone,
       j.type = i.type and j.queue_id = i.queue_id and j.priority = coalesce(i.priority, 0)
           and j.payload = coalesce(i.payload, jsonb 'null')
           and j.max_attempts = i.max_attempts and j.timeout_seconds is not distinct from i.timeout_seconds
           and k.schedule = i.schedule as same
  from jsonb_to_record(cast(:job as jsonb)) as i (
           queue_id int, type text, priority smallint, payload jsonb, max_attempts smallint,
           timeout_seconds float8, idempotency_key text, schedule text
       )
 cross join lateral (
    select k.* from fencepost.idempotency_keys k where k.key = i.idempotency_key limit 1
 ) k
  left join lateral (
    select j.* from fencepost.jobs j where j.id = k.job_id and j.queue_id = k.queue_id limit 1
 ) j on true
