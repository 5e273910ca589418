-- Drop a surveyed range's partitions and move its survivors out (the function says how, and what it locks).
select d.outcome, d.removed, d.moved
  from fencepost.drop_range(
           cast(:starts_at as timestamptz), cast(:most_jobs as int), cast(:most_bytes as bigint)
       ) d
