-- Say that these job types are known to a process that lives, and forget those of which nobody has said so for long.
--
-- Writes nothing for a type that was declared a moment ago: a hundred workers cost about as much as one.
-- Index: job_types' primary key. Locks: the rows it writes, in the order of their names.
with declared as (
    insert into fencepost.job_types (name, declared_at)
    select n.name, clock_timestamp()
      from unnest(cast(:names as text[])) n (name)
     where not exists (
        select from fencepost.job_types t
         where t.name = n.name
           and t.declared_at > clock_timestamp() - make_interval(secs => cast(:fresh_seconds as float8))
     )
     group by n.name
     order by n.name
        on conflict (name) do update set declared_at = greatest(excluded.declared_at, job_types.declared_at)
)
delete from fencepost.job_types t
 where t.declared_at < clock_timestamp() - make_interval(secs => cast(:kept_seconds as float8))
   and t.name <> all (cast(:names as text[]))
