-- Attempts in a range of ids whose job isn't there.
--
-- Parameters: low and high, the first id and the first beyond; most, how many to name.
-- Index: the primary keys. Locks: none.
select count(*) as rows, coalesce((array_agg(distinct a.id))[1:cast(:most as int)], '{}') as ids
  from fencepost.attempts a
 where a.id >= cast(:low as uuid) and a.id < cast(:high as uuid)
   and not exists (
    select
      from fencepost.jobs j
     where j.id >= cast(:low as uuid) and j.id < cast(:high as uuid)
       and j.id = a.id and j.queue_id = a.queue_id
 )
