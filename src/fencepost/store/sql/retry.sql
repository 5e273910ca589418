-- Put a dead-lettered job back: attempts 0, due now. Touches nothing in any other status.
--
-- The token travels on, so that an attempt from before the dead letter can never settle it.
-- Returns: one row when it was applied. Index: finished's primary key. Locks: that row.
with gone as (
    delete from fencepost.finished f
     where f.id = cast(:id as uuid)
       and f.queue_id = cast(:queue_id as int)
       and f.status = 'dead_letter'
    returning f.id, f.queue_id, f.token
),
lane as (
    select g.*, j.priority
      from gone g
     cross join lateral (
        select j.priority from fencepost.jobs j where j.id = g.id and j.queue_id = g.queue_id limit 1
     ) j
),
placed as (
    insert into fencepost.pending (id, queue_id, priority, attempts, token, run_at)
    select l.id, l.queue_id, l.priority, 0, l.token, clock_timestamp()
      from lane l
    returning id, run_at
)
select p.run_at, pg_notify(cast(:channel as text), cast(:hint as text))::text as sent from placed p
