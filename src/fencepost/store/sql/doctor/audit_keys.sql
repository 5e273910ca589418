-- Idempotency keys of a range of jobs' ids whose job isn't there.
--
-- Parameters: low and high, the first id and the first beyond; most, how many to name. Index: idempotency_keys_job and
-- the primary key of jobs. Locks: none.
select count(*) as rows, coalesce((array_agg(k.job_id order by k.job_id))[1:cast(:most as int)], '{}') as ids
  from fencepost.idempotency_keys k
 where k.job_id >= cast(:low as uuid) and k.job_id < cast(:high as uuid)
   and not exists (
    select
      from fencepost.jobs j
     where j.id >= cast(:low as uuid) and j.id < cast(:high as uuid)
       and j.id = k.job_id and j.queue_id = k.queue_id
 )
