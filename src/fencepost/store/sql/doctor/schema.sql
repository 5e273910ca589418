-- Whether the schema is there, whose it is, and whether this role may read its steps.
--
-- Reads the catalogue. Locks: none.
select n.nspname as name, pg_get_userbyid(n.nspowner) as owner, c.oid is not null as has_steps,
       has_schema_privilege(n.oid, 'usage') as may_use,
       coalesce(has_table_privilege(c.oid, 'select'), false) as may_read
  from pg_namespace n
  left join pg_class c on c.relnamespace = n.oid and c.relname = 'schema_version'
 where n.nspname = cast(:schema as text)
