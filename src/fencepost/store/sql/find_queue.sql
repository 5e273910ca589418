-- A queue by its name. Index: queues by name. Locks: none.
select q.id, q.paused_at from fencepost.queues q where q.name = cast(:name as text)
