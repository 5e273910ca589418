-- The attempts of a job that did not succeed, the latest first. Index: attempts' primary key. Locks: none.
select a.attempt, a.token, a.outcome, a.worker_id, a.started_at, a.ended_at, a.error_type, a.error, a.traceback
  from fencepost.attempts a
 where a.id = cast(:id as uuid)
   and a.queue_id = cast(:queue_id as int)
 order by a.token desc
 limit 200
