-- Who this role is, and whether it may do everything anyway.
select current_user as name, r.rolsuper as is_superuser,
       coalesce((select pg_has_role(n.nspowner, 'usage') from pg_namespace n where n.nspname = cast(:schema as text)), false)
           as is_owner
  from pg_roles r
 where r.rolname = current_user
