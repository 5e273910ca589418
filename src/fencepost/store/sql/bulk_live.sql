-- A page of the ids of jobs that haven't ended, pending or in processing, newest first, below a cursor.
--
-- Both tables in one snapshot, where each such job is in one of them: read one after the other, a job that is retried
-- meanwhile could be in neither.
-- Looks at no more than :scan_rows of them; the page may then be short, and the last row (matched or not) says how far
-- it looked.
-- Index: the primary keys of pending and leases. Locks: none.
with looked_at as materialized (
    select s.id, s.queue_id
      from (
        (
            select p.id, p.queue_id
              from fencepost.pending p
             where p.id < cast(:before as uuid)
               and p.id >= cast(:not_before as uuid)
             order by p.id desc
             limit cast(:scan_rows as int)
        )
        union all
        (
            select l.id, l.queue_id
              from fencepost.leases l
             where l.id < cast(:before as uuid)
               and l.id >= cast(:not_before as uuid)
             order by l.id desc
             limit cast(:scan_rows as int)
        )
      ) s
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
