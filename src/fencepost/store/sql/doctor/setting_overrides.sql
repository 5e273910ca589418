-- Settings of roles, and of this database, that make a commit less than durable, or a session read-only.
--
-- Reads the catalogue. Locks: none.
select coalesce(r.rolname, 'all roles') as role, d.datname as database, o.setting
  from pg_db_role_setting s
  left join pg_roles r on r.oid = s.setrole
  left join pg_database d on d.oid = s.setdatabase
 cross join unnest(s.setconfig) o (setting)
 where s.setdatabase in (0, (select c.oid from pg_database c where c.datname = current_database()))
   and lower(o.setting) in (
           'synchronous_commit=off', 'synchronous_commit=false', 'synchronous_commit=no', 'synchronous_commit=0',
           'default_transaction_read_only=on', 'default_transaction_read_only=true',
           'default_transaction_read_only=yes', 'default_transaction_read_only=1'
       )
 order by 1, 2, 3
