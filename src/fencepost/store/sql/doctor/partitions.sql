-- Time ranges, as the list has them and as the tables are there.
--
-- Reads the list and the catalogue. Locks: none.
with parts as (
    select substring(c.relname from '^(jobs|finished|attempts)_\d{8}t\d{4}$') as parent,
           substring(c.relname from '_(\d{8}t\d{4})$') as suffix, c.relname as name, c.relispartition as attached
      from pg_class c
     where c.relnamespace = (select n.oid from pg_namespace n where n.nspname = cast(:schema as text))
       and c.relkind = 'r'
       and c.relname ~ '^(jobs|finished|attempts)_\d{8}t\d{4}$'
),
listed as (
    select to_char(p.starts_at at time zone 'UTC', 'YYYYMMDD"t"HH24MI') as suffix from fencepost.partitions p
)
select 'detached' as problem, p.name from parts p where not p.attached
union all
select 'unlisted', p.name from parts p where p.attached and p.suffix not in (select l.suffix from listed l)
union all
select 'lost', t.parent || '_' || l.suffix
  from listed l
 cross join unnest(array['jobs', 'finished', 'attempts']) t (parent)
 where not exists (select from parts p where p.attached and p.parent = t.parent and p.suffix = l.suffix)
 order by 1, 2
