-- Which of these jobs exist and match, wherever they are.
--
-- Parameters: ids; not_before and before bound them; type, queue_id and tag (null: any).
-- Index: jobs' primary key. Locks: none.
select j.id, j.queue_id, true as matched
  from unnest(cast(:ids as uuid[])) i (id)
 cross join lateral (select j.id, j.queue_id, j.type, j.tags from fencepost.jobs j where j.id = i.id limit 1) j
 where j.id < cast(:before as uuid)
   and j.id >= cast(:not_before as uuid)
   and (cast(:type as text) is null or j.type = cast(:type as text))
   and (cast(:queue_id as int) is null or j.queue_id = cast(:queue_id as int))
   and (cast(:tag as text) is null or cast(:tag as text) = any (j.tags))
 order by j.id desc
