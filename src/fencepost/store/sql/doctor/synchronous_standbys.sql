-- How many standbys a commit may be waiting for right now. Only who sees others' sessions can tell.
select count(*) filter (where s.sync_state in ('sync', 'quorum')) as connected
  from pg_stat_replication s
