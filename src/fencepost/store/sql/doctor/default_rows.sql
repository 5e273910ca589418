-- Recent rows in the default partition of jobs, where those are that no range was there for.
--
-- Survivors of ranges that were dropped are there too, and older. Parameters: since_seconds, how old at most; most, how
-- many are counted. Index: its primary key. Locks: none.
select count(*) as rows, coalesce((array_agg(d.id order by d.id desc))[1:5], '{}') as ids
  from (
    select j.id
      from fencepost.jobs_default j
     where j.id >= fencepost.first_id_at(now() - make_interval(secs => cast(:since_seconds as float8)))
     order by j.id
     limit cast(:most as int)
  ) d
