-- The settings of the server that decide how fast it is. Locks: none.
select s.name, current_setting(s.name) as value
  from unnest(array[
           'server_version', 'fsync', 'synchronous_commit', 'full_page_writes', 'wal_level', 'shared_buffers',
           'max_wal_size', 'max_connections', 'autovacuum'
       ]) s (name)
