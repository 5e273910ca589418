-- The time ranges that have partitions, oldest first, and how far their survey is.
--
-- Returns: a row first (starts_at null) with the first id that can be past its time at no setting, then a row a range:
--   whether it has been over for so long that everything in it may be past its time, and whether to look at it again:
--   one that couldn't be dropped is gone through once each twentieth of its age, or years of history that is kept for
--   ever would be read every hour; and not more often than every half an hour, however many processes prune.
-- Parameters: shortest_seconds, the shortest of the times that jobs are kept for (null: all are kept for ever).
-- Scans partitions, a dozen rows. Locks: none.
select null::timestamptz as starts_at, null::timestamptz as ends_at, null::uuid as low,
       case when cast(:shortest_seconds as float8) is not null
            then fencepost.first_id_at(
                     greatest(now() - make_interval(secs => cast(:shortest_seconds as float8)), timestamptz 'epoch')
                 ) end as high,
       null::uuid as surveyed_to, false as past, false as due
union all
select p.starts_at, p.ends_at, fencepost.first_id_at(p.starts_at), fencepost.first_id_at(p.ends_at), p.surveyed_to,
       coalesce(p.ends_at < now() - make_interval(secs => cast(:shortest_seconds as float8)), false),
       p.pruned_at is null or now() - p.pruned_at >= greatest((now() - p.ends_at) / 20, interval '30 minutes')
  from fencepost.partitions p
 order by starts_at nulls first
