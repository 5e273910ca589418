-- What a role may do with our tables however it came by it: by a grant of its own, as everybody may, as a member of
-- another role, or by default privileges, for tables that are made later.
--
-- Reads the catalogue. Locks: none.
select c.relname as name, w.word
  from pg_namespace n
  join pg_class c on c.relnamespace = n.oid
 cross join unnest(array['select', 'insert', 'update', 'delete', 'truncate']) w (word)
 where n.nspname = cast(:schema as text)
   and c.relkind in ('r', 'p')
   and has_table_privilege(cast(:role as name), c.oid, w.word)
union
select 'tables made later', lower(a.privilege_type)
  from pg_namespace n
  join pg_default_acl d on d.defaclrole = n.nspowner and d.defaclobjtype = 'r' and d.defaclnamespace in (0, n.oid)
 cross join aclexplode(d.defaclacl) a
 where n.nspname = cast(:schema as text)
   and case when a.grantee = 0 then true else pg_has_role(cast(:role as name), a.grantee, 'usage') end
 order by 1, 2
