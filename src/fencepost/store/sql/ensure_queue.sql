-- The id of a queue, which is made if it's new. Its own transaction, before the first job.
--
-- Index: queues by name. Locks: none for a queue that exists.
with made as (
    insert into fencepost.queues (name)
    select cast(:name as text)
     where not exists (select from fencepost.queues q where q.name = cast(:name as text))
        on conflict (name) do nothing
    returning id
)
select m.id from made m
union all
select q.id from fencepost.queues q where q.name = cast(:name as text)
 limit 1
