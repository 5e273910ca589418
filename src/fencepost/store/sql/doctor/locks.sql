-- Sessions that hold a lock on a table or an index of ours that others wait for, or that keeps out whoever comes and has
-- been held for long; those that are waited for first. Process 0 is a prepared transaction.
--
-- Parameters: schema; held_seconds, since when a transaction must run for its lock to count though nobody waits.
-- Reads the server's locks and activity. Locks: none.
with ours as materialized (
    select coalesce(l.pid, 0) as pid, l.relation, c.relname, l.mode, l.granted, l.waitstart
      from pg_locks l
      join pg_class c on c.oid = l.relation
     where l.locktype = 'relation'
       and l.database = (select d.oid from pg_database d where d.datname = current_database())
       and c.relnamespace = (select n.oid from pg_namespace n where n.nspname = cast(:schema as text))
),
held as (
    select b.pid, w.relation, w.relname
      from ours w
     cross join unnest(pg_blocking_pids(w.pid)) b (pid)
     where not w.granted
       -- Who is only before others in the queue waits for the same session.
       and not exists (select from ours x where x.pid = b.pid and not x.granted)
     union
    select o.pid, o.relation, o.relname
      from ours o
      join pg_stat_activity a on a.pid = o.pid
     where o.granted
       and o.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
       and a.backend_type = 'client backend'
       and clock_timestamp() - a.xact_start > make_interval(secs => cast(:held_seconds as float8))
),
waiting as (
    select w.relation, array_agg(w.pid) as pids, min(w.waitstart) as since from ours w where not w.granted group by w.relation
)
select h.pid, coalesce(a.application_name, '') as application, coalesce(a.usename, '') as role,
       coalesce(cast(a.client_addr as text), 'a local socket') as client, a.state,
       coalesce(r.rolsuper, false) as of_superuser,
       extract(epoch from clock_timestamp() - a.xact_start)::float8 as age_seconds,
       left(regexp_replace(a.query, '\s+', ' ', 'g'), 60) as query,
       array_agg(distinct cast(h.relname as text)) as names,
       (
           select count(distinct p.pid)
             from waiting w
            cross join unnest(w.pids) p (pid)
            where w.relation = any (array_agg(h.relation))
       ) as waiters,
       extract(epoch from clock_timestamp() - min(w.since))::float8 as waited_seconds
  from held h
  left join waiting w on w.relation = h.relation
  left join pg_stat_activity a on a.pid = h.pid
  left join pg_roles r on r.oid = a.usesysid
 group by h.pid, a.application_name, a.usename, a.client_addr, a.state, r.rolsuper, a.xact_start, a.query
 order by min(w.since) nulls last, h.pid
 limit 10
