-- Count the finished jobs that are past their time among the next few of a range of ids. Changes nothing.
--
-- Parameters: after and before, the range; keep, seconds by status; max_rows.
-- Returns: how many rows it looked at and the last of them, how many are past their time.
-- Index: finished's primary key, of the partitions that the range is in. Locks: none.
with looked as materialized (
    select f.id, f.status, f.finished_at
      from fencepost.finished f
     where f.id > cast(:after as uuid)
       and f.id < cast(:before as uuid)
     order by f.id
     limit cast(:max_rows as int)
)
select (select count(*) from looked) as looked,
       (select l.id from looked l order by l.id desc limit 1) as last_id,
       (
           select count(*) from looked l where fencepost.is_expired(l.status, l.finished_at, cast(:keep as jsonb))
       ) as expired
