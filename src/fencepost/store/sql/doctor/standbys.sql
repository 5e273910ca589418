-- Standbys whose oldest query keeps rows from vacuum here (hot_standby_feedback).
select r.pid, coalesce(r.application_name, '') as application, coalesce(cast(r.client_addr as text), 'a local socket') as client,
       age(r.backend_xmin) as transactions
  from pg_stat_replication r
 where age(r.backend_xmin) >= cast(:transactions as int)
 order by 4 desc
 limit 10
