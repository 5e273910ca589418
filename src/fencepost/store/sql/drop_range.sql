-- Drop a surveyed range's partitions and move its survivors out (the function says how, and what it locks).
--
-- Where the survey wasn't made for these times it does nothing and says so: what that found to be past its time may not
-- be any more.
-- Parameters: starts_at; keep, seconds by status; most_jobs and most_bytes, what may have to be moved.
-- Index: partitions' primary key.
select d.outcome, d.removed, d.moved
  from fencepost.partitions p
 cross join lateral fencepost.drop_range(p.starts_at, cast(:most_jobs as int), cast(:most_bytes as bigint)) d
 where p.starts_at = cast(:starts_at as timestamptz)
   and p.surveyed_for = cast(:keep as jsonb)
union all
select 'of others', 0, 0
  from fencepost.partitions p
 where p.starts_at = cast(:starts_at as timestamptz)
   and p.surveyed_for is distinct from cast(:keep as jsonb)
