-- A page of the ids of failed, dead-lettered or cancelled jobs, newest first, below a cursor.
--
-- Looks at no more than :scan_rows of them, so that a filter few jobs match can't turn into a scan of the
-- whole history: the page may then be short, and the last row (matched or not) says how far it looked.
-- Index: finished_unsuccessful. Locks: none.
with looked_at as materialized (
    select s.id, s.queue_id
      from fencepost.finished s
     where s.id < cast(:before as uuid)
       and s.id >= cast(:not_before as uuid)
       and s.status = cast(:status as text)
       and s.status <> 'completed'
     order by s.id desc
     limit cast(:scan_rows as int)
),
matched as (
    select s.id, s.queue_id
      from looked_at s
     cross join lateral (
        select j.type, j.tags from fencepost.jobs j where j.id = s.id and j.queue_id = s.queue_id limit 1
     ) j
     where (cast(:type as text) is null or j.type = cast(:type as text))
       and (cast(:queue_id as int) is null or s.queue_id = cast(:queue_id as int))
       and (cast(:tag as text) is null or cast(:tag as text) = any (j.tags))
     order by s.id desc
     limit cast(:page_rows as int)
)
select m.id, m.queue_id, true as matched from matched m
union all
select e.id, null, false from (
    select s.id from looked_at s order by s.id limit 1
) e where (select count(*) from looked_at) = cast(:scan_rows as int)
