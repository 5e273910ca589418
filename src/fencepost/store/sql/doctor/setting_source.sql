-- Which setting of a role, of this database, or of both gives this session its value of a setting: the first in the
-- order in which PostgreSQL prefers them. No row: the server's configuration, or its default.
--
-- Reads the catalogue. Locks: none.
select r.rolname as role, d.datname as database
  from pg_db_role_setting s
  left join pg_roles r on r.oid = s.setrole
  left join pg_database d on d.oid = s.setdatabase
 cross join unnest(s.setconfig) o (setting)
 where s.setdatabase in (0, (select c.oid from pg_database c where c.datname = current_database()))
   and s.setrole in (0, (select u.oid from pg_roles u where u.rolname = session_user))
   and lower(split_part(o.setting, '=', 1)) = cast(:name as text)
 order by s.setrole <> 0 desc, s.setdatabase <> 0 desc
 limit 1
