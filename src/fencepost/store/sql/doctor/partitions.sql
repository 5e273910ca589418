-- Time ranges, as the list has them and as the tables are there. What a table that is listed and not attached needs
-- comes along: its parent and the ids that belong to it.
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
    select to_char(p.starts_at at time zone 'UTC', 'YYYYMMDD"t"HH24MI') as suffix,
           fencepost.first_id_at(p.starts_at) as low, fencepost.first_id_at(p.ends_at) as high
      from fencepost.partitions p
)
select case when l.suffix is null then 'detached' else 'unattached' end as problem, p.name, p.parent, l.low, l.high
  from parts p
  left join listed l on l.suffix = p.suffix
 where not p.attached
union all
select 'unlisted', p.name, p.parent, null, null
  from parts p
 where p.attached and p.suffix not in (select l.suffix from listed l)
union all
select 'lost', t.parent || '_' || l.suffix, t.parent, l.low, l.high
  from listed l
 cross join unnest(array['jobs', 'finished', 'attempts']) t (parent)
 where not exists (select from parts p where p.parent = t.parent and p.suffix = l.suffix)
 order by 1, 2
