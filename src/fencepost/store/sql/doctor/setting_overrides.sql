-- Settings of roles, and of this database, that make a commit less than durable, or a session read-only; and whether the
-- role may enqueue. Without a role it is all of them, without a database it is everywhere.
--
-- Reads the catalogue. Locks: none.
select r.rolname as role, d.datname as database, lower(o.name) as name, o.value,
       s.setrole = 0 or exists (
           select
             from pg_proc p
             join pg_namespace n on n.oid = p.pronamespace
            where n.nspname = cast(:schema as text)
              and p.proname = 'enqueue_jobs'
              and has_function_privilege(s.setrole, p.oid, 'execute')
       ) as writes
  from pg_db_role_setting s
  left join pg_roles r on r.oid = s.setrole
  left join pg_database d on d.oid = s.setdatabase
 cross join lateral (
    select split_part(c.setting, '=', 1) as name, substr(c.setting, strpos(c.setting, '=') + 1) as value
      from unnest(s.setconfig) c (setting)
 ) o
 where s.setdatabase in (0, (select c.oid from pg_database c where c.datname = current_database()))
   and case lower(o.name)
           when 'synchronous_commit' then lower(o.value) in ('off', 'false', 'no', '0')
           when 'default_transaction_read_only' then cast(o.value as boolean)
           else false
       end
 order by 1, 2, 3
