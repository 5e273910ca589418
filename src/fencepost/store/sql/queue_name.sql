-- A queue's name. Index: queues' primary key. Locks: none.
select q.name from fencepost.queues q where q.id = cast(:queue_id as int)
