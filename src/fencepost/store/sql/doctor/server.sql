-- What there is to know of the server and of this session.
--
-- Reads settings. Locks: none.
select current_setting('server_version_num')::int as version,
       current_setting('server_version') as version_text,
       pg_is_in_recovery() as in_recovery,
       current_setting('fsync') as fsync,
       current_setting('full_page_writes') as full_page_writes,
       -- Our own sessions correct what they are given, this one too.
       (select r.reset_val from pg_settings r where r.name = 'synchronous_commit') as synchronous_commit,
       current_setting('synchronous_standby_names') as synchronous_standby_names,
       current_setting('autovacuum') as autovacuum,
       current_setting('track_counts') as track_counts,
       current_setting('max_connections')::int as max_connections,
       current_setting('superuser_reserved_connections')::int as reserved_connections,
       (select r.setting from pg_settings r where r.name = 'default_transaction_read_only') as session_read_only,
       (select r.reset_val from pg_settings r where r.name = 'default_transaction_read_only') as read_only,
       pg_notification_queue_usage() as notification_queue,
       current_database() as database,
       current_user as role,
       (select d.datconnlimit from pg_database d where d.datname = current_database()) as database_limit,
       (select r.rolconnlimit from pg_roles r where r.rolname = current_user) as role_limit,
       (select age(d.datfrozenxid) from pg_database d where d.datname = current_database()) as age,
       (select count(*) from pg_stat_activity a where a.backend_type = 'client backend') as connected,
       (select r.rolsuper from pg_roles r where r.rolname = current_user) or pg_has_role('pg_read_all_stats', 'usage')
           as sees_all
