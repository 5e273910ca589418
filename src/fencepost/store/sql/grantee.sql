-- What there is to know before something is granted to a role.
--
-- Reads the catalogue. Locks: none.
select exists (select from pg_roles r where r.rolname = cast(:role as text)) as role_exists,
       pg_get_userbyid(n.nspowner) as owner,
       current_user as ours,
       pg_has_role(n.nspowner, 'usage') as we_own,
       coalesce(
           (select r.rolsuper or pg_has_role(r.oid, n.nspowner, 'usage') from pg_roles r where r.rolname = cast(:role as text)),
           false
       ) as needs_none
  from pg_namespace n
 where n.nspname = cast(:schema as text)
