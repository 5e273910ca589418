-- Remove the idempotency keys that are past their time among the next few of a range of job ids.
--
-- Parameters: after and before, the range; key_seconds, how long a key is kept from its first request on, and at least
--   until its job has ended (null: as long as its job is there); max_rows.
-- Returns: whether it was this transaction's turn, how many rows it looked at and the last of them, how many went.
-- Index: idempotency_keys_job, then the primary keys. Locks: the keys that go; one that somebody holds is passed over. A
--   request with such a key waits for the commit and then makes a new job.
with turn as materialized (
    select fencepost.retention_turn() as mine
),
looked as materialized (
    select k.key, k.job_id, k.queue_id, k.created_at
      from fencepost.idempotency_keys k
     where k.job_id > cast(:after as uuid)
       and k.job_id < cast(:before as uuid)
       and (select t.mine from turn t)
     order by k.job_id
     limit cast(:max_rows as int)
),
held as materialized (
    select k.key
      from fencepost.idempotency_keys k
     where k.key = any (
        array (
            select l.key
              from looked l
             where case when cast(:key_seconds as float8) is null
                        then not exists (
                            select from fencepost.jobs j where j.id = l.job_id and j.queue_id = l.queue_id
                        )
                        else l.created_at < now() - make_interval(secs => cast(:key_seconds as float8))
                            and not exists (
                                select from fencepost.pending p where p.id = l.job_id and p.queue_id = l.queue_id
                            )
                            and not exists (
                                select from fencepost.leases e where e.id = l.job_id and e.queue_id = l.queue_id
                            )
                   end
        )
     )
       -- Not one that was freed and taken again by another job meanwhile.
       and k.job_id > cast(:after as uuid)
       and k.job_id < cast(:before as uuid)
       for update skip locked
),
gone as (
    delete from fencepost.idempotency_keys k
     where k.key = any (array (select h.key from held h))
    returning k.key
)
select t.mine,
       (select count(*) from looked) as looked,
       (select l.job_id from looked l order by l.job_id desc limit 1) as last_id,
       (select count(*) from gone) as keys
  from turn t
