-- Remove the finished jobs that are past their time among the next few of a range of ids, with all that is theirs.
--
-- Parameters: after and before, the range; keep, seconds by status; key_seconds, how long keys are kept (null: as long
--   as their job); max_rows.
-- Returns: whether it was this transaction's turn, how many rows it looked at and the last of them, how many jobs and
--   keys went.
-- Index: the primary keys, of the partitions that the range is in, and idempotency_keys_job. Locks: the finished rows
--   that go, and their keys; one that a retry holds is skipped, and so is a job whose key somebody holds, so nothing
--   waits.
--
--     prune                               retry of a dead letter
--                                         locks the finished row
--     skips it (skip locked)
--                                         moves it to pending, commits
--     locks the finished row
--                                         waits for the row
--     deletes it, its job, its attempts
--     and its key, commits
--                                         finds the row gone: no effect; asked again: no such job
--
-- jobs, finished and attempts go in one statement, so in every snapshot the job is whole or gone.
with turn as materialized (
    select fencepost.retention_turn() as mine
),
looked as materialized (
    select f.id, f.queue_id, f.status, f.finished_at
      from fencepost.finished f
     where f.id > cast(:after as uuid)
       and f.id < cast(:before as uuid)
       and (select t.mine from turn t)
     order by f.id
     limit cast(:max_rows as int)
),
expired as materialized (
    select f.id
      from looked l
     cross join lateral (
        select f.id
          from fencepost.finished f
         where f.id = l.id
           and f.queue_id = l.queue_id
           and f.id > cast(:after as uuid)
           and f.id < cast(:before as uuid)
         limit 1
           for update skip locked
     ) f
     where fencepost.is_expired(l.status, l.finished_at, cast(:keep as jsonb))
),
held_keys as materialized (
    select k.key
      from fencepost.idempotency_keys k
     where k.job_id = any (array (select e.id from expired e))
       and (
           cast(:key_seconds as float8) is null
           or k.created_at < now() - make_interval(secs => cast(:key_seconds as float8))
       )
       for update skip locked
),
due as materialized (
    -- A key that was left behind by its job would be found only when all of its range is dropped.
    select e.id
      from expired e
      left join lateral (
        select k.key
          from fencepost.idempotency_keys k
         where k.job_id = e.id
           and (
               cast(:key_seconds as float8) is null
               or k.created_at < now() - make_interval(secs => cast(:key_seconds as float8))
           )
         limit 1
     ) k on true
     where k.key is null
        or k.key in (select h.key from held_keys h)
),
gone as (
    delete from fencepost.finished f
     where f.id > cast(:after as uuid)
       and f.id < cast(:before as uuid)
       and f.id = any (array (select d.id from due d))
    returning f.id
),
gone_attempts as (
    delete from fencepost.attempts a
     where a.id > cast(:after as uuid)
       and a.id < cast(:before as uuid)
       and a.id = any (array (select d.id from due d))
),
gone_jobs as (
    delete from fencepost.jobs j
     where j.id > cast(:after as uuid)
       and j.id < cast(:before as uuid)
       and j.id = any (array (select d.id from due d))
),
gone_keys as (
    delete from fencepost.idempotency_keys k
     where k.key = any (array (select h.key from held_keys h))
    returning k.key
)
select t.mine,
       (select count(*) from looked) as looked,
       (select l.id from looked l order by l.id desc limit 1) as last_id,
       (select count(*) from gone) as removed,
       (select count(*) from gone_keys) as keys
  from turn t
