-- How many tables, views, functions and the like a schema holds, whoever made them. Scans the catalogs. Locks: none.
select (select count(*) from pg_class c where c.relnamespace = n.oid)
     + (select count(*) from pg_proc p where p.pronamespace = n.oid)
     + (select count(*) from pg_type t where t.typnamespace = n.oid) as objects
  from pg_namespace n
 where n.nspname = cast(:schema as text)
