-- Transactions that were prepared and are neither committed nor rolled back.
select p.gid, p.owner as role, p.database, extract(epoch from clock_timestamp() - p.prepared)::float8 as age_seconds
  from pg_prepared_xacts p
 where clock_timestamp() - p.prepared > make_interval(secs => cast(:age_seconds as float8))
 order by p.prepared
 limit 10
