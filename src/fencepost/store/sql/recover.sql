-- Take jobs of one queue back whose lease has run out: to pending while attempts are left, else to
-- dead_letter; to cancelled when that was asked for.
--
-- Parameters: after, where the sweep begins (null: everything); max_rows; spared, how many of the first are left alone.
-- Returns: a row first (id null) with this statement's snapshot, clock and transaction, and when the first lease ran
--   out that it saw and did not take; then a row a job.
-- Index: leases_expiry from :after on, then the primary key. Locks: the leases taken; those being settled right now
--   are skipped, so a settlement that got here first wins.
--
-- A lease whose job isn't there (a partition of jobs was detached, or its row deleted by hand) is passed over: thousands
-- of them must not fill every sweep. `fencepost doctor` tells of them.
with expired as materialized (
    select l.*
      from fencepost.leases l
     where l.queue_id = cast(:queue_id as int)
       and l.locked_until >= coalesce(cast(:after as timestamptz), timestamptz '-infinity')
       and l.locked_until <= now()
       -- One look a lease, whatever the planner thinks of a join.
       and (select true from fencepost.jobs j where j.id = l.id and j.queue_id = l.queue_id limit 1)
     order by l.locked_until
     limit cast(:max_rows as int) offset cast(:spared as int)
       for update skip locked
),
judged as materialized (
    select e.*, j.max_attempts,
           case when e.cancel_requested_at is not null then 'cancelled'
                when e.attempt < j.max_attempts then 'pending'
                else 'dead_letter' end as status
      from expired e
     cross join lateral (
        select j.max_attempts from fencepost.jobs j where j.id = e.id and j.queue_id = e.queue_id limit 1
     ) j
),
gone as (
    delete from fencepost.leases l
     where l.queue_id = cast(:queue_id as int)
       and l.id = any (array (select h.id from judged h))
),
ended as (
    insert into fencepost.finished (id, queue_id, status, attempts, token, started_at, finished_at)
    select h.id, h.queue_id, h.status, h.attempt, h.token, h.started_at, clock_timestamp()
      from judged h
     where h.status <> 'pending'
),
back as (
    insert into fencepost.pending (id, queue_id, priority, attempts, token, run_at)
    select h.id, h.queue_id, h.priority, h.attempt, h.token, clock_timestamp()
      from judged h
     where h.status = 'pending'
),
logged as (
    insert into fencepost.attempts (
        id, queue_id, token, attempt, outcome, worker_id, started_at, ended_at, error_type, error
    )
    select h.id, h.queue_id, h.token, h.attempt, 'lost', h.worker_id, h.started_at, clock_timestamp(), 'LeaseExpired',
           'the lease expired: worker ' || h.worker_id || ' neither finished the attempt nor extended it in time'
      from judged h
)
select null::uuid as id, null::bigint as token, null::smallint as attempt, null::text as status,
       (
           select l.locked_until
             from fencepost.leases l
            where l.queue_id = cast(:queue_id as int)
              and l.locked_until >= coalesce(cast(:after as timestamptz), timestamptz '-infinity')
              and l.locked_until <= now()
              and l.id not in (select e.id from expired e)
            order by l.locked_until
            limit 1
       ) as locked_until,
       cast(pg_current_snapshot() as text) as snapshot, now() as seen_at,
       -- As in claim.sql.
       cast(cast(pg_current_xact_id() as text) as bigint) as transaction
union all
select h.id, h.token, h.attempt, h.status, h.locked_until, null, null, null from judged h
