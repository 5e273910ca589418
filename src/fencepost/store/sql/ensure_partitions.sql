-- Make the partitions that ids will soon need (the function says how, and what it locks).
select fencepost.ensure_partitions(make_interval(secs => cast(:width_seconds as float8)), cast(:ahead as int)) as made
