-- Replication slots that hold something back: rows for vacuum (so many transactions), or WAL since nobody reads them.
select s.slot_name as name, s.slot_type as type, s.active,
       greatest(age(s.xmin), age(s.catalog_xmin), 0) as transactions,
       case when not pg_is_in_recovery() then pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn) end::float8 as wal_bytes
  from pg_replication_slots s
 where not s.active
    or greatest(age(s.xmin), age(s.catalog_xmin), 0) >= cast(:transactions as int)
 order by 4 desc, 1
 limit 10
