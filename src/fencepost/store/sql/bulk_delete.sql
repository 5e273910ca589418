-- Remove ended jobs with all that is theirs: definition, end, attempts, keys. Leaves a live job alone.
--
-- Parameters: ids, at most a batch, and low and high, the smallest and the largest of them; status (null: however it
--   ended).
-- Returns: a row for each that had ended in this statement's snapshot: its queue, and whether it was removed. If not,
--   another transaction held it: it may still be there when that one has ended, so look again.
-- Index: the primary keys, in the partitions that the ids are in, and idempotency_keys_job. Locks: the finished rows
--   that go; one that a retry or retention holds is skipped, so nothing waits.
--
--     delete                              retry of a dead letter
--                                         locks the finished row
--     skips it (skip locked), says so
--                                         moves it to pending, commits
--     looks again: it is live
--     locks the finished row
--                                         waits for the row
--     deletes it, its job, its attempts
--     and its keys, commits
--                                         finds the row gone: no effect; asked again: no such job
--
-- A job whose finished row is locked can't be anywhere else. All goes in one statement, so in every snapshot the job is
-- whole or gone.
with seen as materialized (
    select f.id, f.queue_id
      from fencepost.finished f
     where f.id >= cast(:low as uuid)
       and f.id <= cast(:high as uuid)
       and f.id = any (cast(:ids as uuid[]))
       and (cast(:status as text) is null or f.status = cast(:status as text))
),
held as materialized (
    select f.id
      from fencepost.finished f
     where f.id >= cast(:low as uuid)
       and f.id <= cast(:high as uuid)
       and f.id = any (array (select s.id from seen s))
       and (cast(:status as text) is null or f.status = cast(:status as text))
       for update skip locked
),
gone as (
    delete from fencepost.finished f
     where f.id >= cast(:low as uuid)
       and f.id <= cast(:high as uuid)
       and f.id = any (array (select h.id from held h))
),
gone_attempts as (
    delete from fencepost.attempts a
     where a.id >= cast(:low as uuid)
       and a.id <= cast(:high as uuid)
       and a.id = any (array (select h.id from held h))
),
gone_jobs as (
    delete from fencepost.jobs j
     where j.id >= cast(:low as uuid)
       and j.id <= cast(:high as uuid)
       and j.id = any (array (select h.id from held h))
    returning j.id, j.type, j.unique_key
),
gone_keys as (
    -- One that is being removed or looked at right now is left to retention: nothing here waits.
    delete from fencepost.idempotency_keys k
     where k.key = any (
        array (
            select k.key
              from fencepost.idempotency_keys k
             where k.job_id = any (array (select h.id from held h))
               for update skip locked
        )
     )
),
gone_unique as (
    delete from fencepost.unique_keys u
     where u.ctid = any (
        array (
            select k.ctid
              from gone_jobs g
             cross join lateral (
                select k.ctid
                  from fencepost.unique_keys k
                 where k.type = g.type
                   and k.key = g.unique_key
                   and k.job_id = g.id
                 limit 1
                   for update skip locked
             ) k
             where g.unique_key is not null
        )
     )
),
gone_notes as (
    delete from fencepost.survivors v
     where v.id = any (array (select h.id from held h))
)
select s.id, s.queue_id, case when s.id in (select h.id from held h) then 'deleted' end as effect, null as sent
  from seen s
