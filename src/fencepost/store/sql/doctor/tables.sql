-- Tables of ours that vacuum is kept from, or that a crash would empty.
--
-- Reads the catalogue. Locks: none.
select c.relname as name, c.relpersistence = 'u' as unlogged, v.unvacuumed
  from pg_class c
 cross join lateral (
    select exists (
        select
          from pg_options_to_table(c.reloptions) o
         -- Kept as it was written, in one of many ways.
         where o.option_name = 'autovacuum_enabled'
           and not cast(o.option_value as boolean)
    ) as unvacuumed
 ) v
 where c.relnamespace = (select n.oid from pg_namespace n where n.nspname = cast(:schema as text))
   and c.relkind in ('r', 'p')
   and (c.relpersistence = 'u' or v.unvacuumed)
 order by 1
