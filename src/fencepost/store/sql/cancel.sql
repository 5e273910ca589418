-- Cancel a job: at once while it is pending, by request while it runs. Touches nothing otherwise.
--
-- Returns: one row with the effect, 'cancelled' or 'requested'; none when the job is in neither
--   state in this statement's snapshot (ended, or just moving: the caller looks again).
-- Index: the primary keys. Locks: the job's row where it is.
--
-- Against a claim:
--     cancel                              claim
--                                         locks the pending row
--     waits for the row
--                                         moves it to leases, commits
--     finds the row gone: no effect;
--     asked again, it finds the lease
--     and leaves a request there
with gone as (
    delete from fencepost.pending p
     where p.id = cast(:id as uuid)
       and p.queue_id = cast(:queue_id as int)
    returning p.*
),
ended as (
    insert into fencepost.finished (id, queue_id, status, attempts, token, started_at, finished_at)
    select g.id, g.queue_id, 'cancelled', g.attempts, g.token,
           (
               select a.started_at
                 from fencepost.attempts a
                where a.id = g.id
                  and a.queue_id = g.queue_id
                order by a.token desc
                limit 1
           ),
           clock_timestamp()
      from gone g
    returning id
),
asked as (
    update fencepost.leases l
       set cancel_requested_at = coalesce(l.cancel_requested_at, clock_timestamp())
     where l.id = cast(:id as uuid)
       and l.queue_id = cast(:queue_id as int)
    returning l.id
)
select 'cancelled' as effect, null::text as sent from ended
union all
select 'requested',
       case when cast(:hint as text) is not null
            then cast(pg_notify(cast(:channel as text), cast(:hint as text)) as text) end
  from asked
