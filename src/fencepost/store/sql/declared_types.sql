-- Which job types some process has declared lately. Index: none; a row a type. Locks: none.
select t.name
  from fencepost.job_types t
 where t.declared_at > clock_timestamp() - make_interval(secs => cast(:within_seconds as float8))
