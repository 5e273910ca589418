-- How much the server has done so far, for benchmarks. Locks: none.
select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0') as wal_bytes,
       (select d.xact_commit + d.xact_rollback from pg_stat_database d where d.datname = current_database()) as transactions
