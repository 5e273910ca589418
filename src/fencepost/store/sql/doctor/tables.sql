-- Tables of ours that vacuum is kept from, or that a crash would empty.
--
-- Reads the catalogue. Locks: none.
select c.relname as name, c.relpersistence = 'u' as unlogged,
       coalesce('autovacuum_enabled=false' = any (c.reloptions) or 'autovacuum_enabled=off' = any (c.reloptions), false)
           as unvacuumed
  from pg_class c
 where c.relnamespace = (select n.oid from pg_namespace n where n.nspname = cast(:schema as text))
   and c.relkind in ('r', 'p')
   and (c.relpersistence = 'u' or c.reloptions && array['autovacuum_enabled=false', 'autovacuum_enabled=off'])
 order by 1
