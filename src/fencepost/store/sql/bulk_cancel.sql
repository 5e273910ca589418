-- Cancel jobs: at once while they are pending, by request while they run. Leaves those that have ended alone.
--
-- Parameters: ids, at most a batch; pending and processing, whether to cancel where they wait, where they run, or both;
--   hints, the wake-up for the worker of each, in the order of ids (null: none); channel.
-- Returns: a row for each that was there in this statement's snapshot: its queue, and the effect, 'cancelled' or
--   'requested'. Null: another transaction held it or had just moved it, so look again.
-- Index: the primary keys. Locks: the rows that are changed; those that a claim, a settlement or recovery holds are
--   skipped, so nothing waits.
--
-- Against a claim:
--     cancel                              claim
--                                         locks the pending row
--     skips it, says so
--                                         moves it to leases, commits
--     looks again: finds the lease,
--     and leaves a request there
--
-- Against a settlement:
--     cancel                              settlement
--     locks the lease, leaves a
--     request, commits
--                                         deletes the lease, sees the request: what would go
--                                         back to pending ends cancelled instead
with seen as materialized (
    select p.id, p.queue_id
      from fencepost.pending p
     where p.id = any (cast(:ids as uuid[]))
       and cast(:pending as bool)
    union all
    select l.id, l.queue_id
      from fencepost.leases l
     where l.id = any (cast(:ids as uuid[]))
       and cast(:processing as bool)
),
waiting as materialized (
    select p.id, p.queue_id, p.attempts, p.token
      from fencepost.pending p
     where p.id = any (array (select s.id from seen s))
       and cast(:pending as bool)
       for update skip locked
),
running as materialized (
    select l.id
      from fencepost.leases l
     where l.id = any (array (select s.id from seen s))
       and cast(:processing as bool)
       for update skip locked
),
gone as (
    delete from fencepost.pending p
     where p.id = any (array (select w.id from waiting w))
),
ended as (
    insert into fencepost.finished (id, queue_id, status, attempts, token, started_at, finished_at)
    select w.id, w.queue_id, 'cancelled', w.attempts, w.token,
           (
               select a.started_at
                 from fencepost.attempts a
                where a.id = w.id
                  and a.queue_id = w.queue_id
                order by a.token desc
                limit 1
           ),
           clock_timestamp()
      from waiting w
),
asked as (
    update fencepost.leases l
       set cancel_requested_at = coalesce(l.cancel_requested_at, clock_timestamp())
     where l.id = any (array (select r.id from running r))
    returning l.id
)
select s.id, s.queue_id,
       case when s.id in (select w.id from waiting w) then 'cancelled'
            when s.id in (select a.id from asked a) then 'requested' end as effect,
       case when s.id in (select a.id from asked a)
            then cast(
                (
                    select pg_notify(cast(:channel as text), h.hint)
                      from unnest(cast(:ids as uuid[]), cast(:hints as text[])) h (id, hint)
                     where h.id = s.id
                       and h.hint is not null
                ) as text
            ) end as sent
  from seen s
