-- Sessions whose open transaction keeps vacuum from what was deleted since, the oldest first.
--
-- Parameters: idle_seconds and busy_seconds, from which age on a transaction that waits for its client, or that works,
-- is one of them. In another database it does no harm here, unless it keeps the notifications, which are the server's.
-- Reads the activity of the server. Locks: none.
select a.pid, coalesce(a.application_name, '') as application, coalesce(a.usename, '') as role,
       coalesce(a.datname, '') as database, coalesce(cast(a.client_addr as text), 'a local socket') as client,
       a.state like 'idle in transaction%' as idle,
       coalesce((select r.rolsuper from pg_roles r where r.oid = a.usesysid), false) as of_superuser,
       extract(epoch from clock_timestamp() - a.xact_start)::float8 as age_seconds,
       left(regexp_replace(a.query, '\s+', ' ', 'g'), 80) as query
  from pg_stat_activity a
 where a.backend_type = 'client backend'
   and a.pid <> pg_backend_pid()
   and (a.datname = current_database() or pg_notification_queue_usage() > 0.01)
   and (a.backend_xid is not null or a.backend_xmin is not null or a.state like 'idle in transaction%')
   and clock_timestamp() - a.xact_start > make_interval(
           secs => case when a.state like 'idle in transaction%' then cast(:idle_seconds as float8)
                        else cast(:busy_seconds as float8) end
       )
 order by a.xact_start
 limit 10
