-- The records of some jobs, newest first, each as it is in this statement's snapshot.
--
-- Parameters: ids; payloads, whether to read what may be large too: payload, result, metadata. They may be a megabyte
--   and more for each job, and are null without it.
-- Times that were written by hand may be beyond those that a client can read: the page that they are on must be read.
-- Index: the primary keys, one partition each. Locks: none.
select j.id, j.type, q.name as queue, j.priority, case when cast(:payloads as bool) then j.payload end as payload,
       j.max_attempts, j.timeout_seconds, j.created_at, j.idempotency_key, j.request_id, j.unique_key, j.tags,
       case when cast(:payloads as bool) then j.metadata end as metadata, j.trace_context,
       case when j.expires_at is not null then least(
           greatest(j.expires_at, timestamptz '0001-01-01 00:00+00'), timestamptz '9999-01-01 00:00+00'
       ) end as expires_at,
       case when p.run_at is not null then least(
           greatest(p.run_at, timestamptz '0001-01-01 00:00+00'), timestamptz '9999-01-01 00:00+00'
       ) end as run_at,
       l.locked_until, l.cancel_requested_at, l.progress, f.finished_at,
       case when cast(:payloads as bool) then f.result end as result,
       case when p.id is not null then 'pending' when l.id is not null then 'processing' else f.status end as status,
       coalesce(p.attempts, l.attempt, f.attempts) as attempts,
       coalesce(p.token, l.token, f.token) as lease_token,
       -- A job that was replaced has an entry in its history and never started.
       coalesce(l.started_at, f.started_at, case when a.attempt > 0 then a.started_at end) as started_at,
       a.error as last_error
  from unnest(cast(:ids as uuid[])) i (id)
 cross join lateral (select j.* from fencepost.jobs j where j.id = i.id limit 1) j
  join fencepost.queues q on q.id = j.queue_id
  left join lateral (
    select p.* from fencepost.pending p where p.id = j.id and p.queue_id = j.queue_id limit 1
  ) p on true
  left join lateral (
    select l.* from fencepost.leases l where l.id = j.id and l.queue_id = j.queue_id limit 1
  ) l on true
  left join lateral (
    select f.* from fencepost.finished f where f.id = j.id and f.queue_id = j.queue_id limit 1
  ) f on true
  left join lateral (
    select a.attempt, a.started_at, a.error
      from fencepost.attempts a
     where a.id = j.id
       and a.queue_id = j.queue_id
     order by a.token desc
     limit 1
  ) a on true
 order by j.id desc
