-- Take up to :slots due jobs of one queue, most urgent first, and lease them to a worker.
--
-- Order: inside a lane (a priority) by run_at. Lanes are merged by run_at − priority × aging,
--   which is the order of "priority plus the levels gained by waiting" at any moment. With
--   aging 0 the higher priority always goes first.
-- Parameters: cursors, where in each lane this dispatcher's scan begins: a jsonb object of [run_at, id] by priority.
--   They save re-reading the dead entries of jobs already taken, and decide nothing else (worker/cursors.py has the
--   proof). contended: whether the last claim counted on jobs that others hold, so that those are to be told first.
-- Returns: a row a lane first (id null): how many it was asked for, the first due job it saw and did not take, when
--   its next scheduled job is due if no other is, the jobs taken in their order, with their run_at if there are
--   several lanes to merge, and this statement's snapshot, clock and transaction. Then each job's definition, in no
--   order; its snapshot is an object of tags, metadata, trace_context and expired, for a job that has any of that.
--   No row at all: the queue is paused, or nothing was ever enqueued.
-- Index: pending_lane, from the cursor on; then primary keys. Locks: the rows taken, and with contended up to :slots
--   more in each lane; rows that others hold are skipped, so nothing waits.
--
-- Two dispatchers, one job:
--     A                                   B
--     locks the row                       skips it (skip locked), takes the next
--     deletes it, inserts the lease
--     commits
--                                         an older snapshot still shows the row: the lock
--                                         finds it deleted and takes nothing
--
-- A producer's open transaction that holds a waiting job (unique_until => 'started'), two lanes, one slot:
--     the producer                        a claim                             the next one, contended
--     locks the urgent lane's only job
--                                         counts on it: wants 1 there, 0 in
--                                         the other lane, and gets nothing
--                                                                             finds it locked, so wants 1 in the
--                                                                             other lane, and gets that
with lane as materialized (
    select l.priority, count(*) over () as lanes,
           coalesce(cast(c.place ->> 0 as timestamptz), timestamptz '-infinity') as run_at,
           coalesce(cast(c.place ->> 1 as uuid), uuid '00000000-0000-0000-0000-000000000000') as id
      from fencepost.lanes l
     cross join lateral (select cast(:cursors as jsonb) -> cast(l.priority as text) as place) c
     where l.queue_id = cast(:queue_id as int)
       and exists (select from fencepost.queues q where q.id = cast(:queue_id as int) and q.paused_at is null)
),
front as materialized (
    -- Only with several lanes: the first due jobs of each, to see which lanes the next ones are in. Unlocked as a rule,
    -- since most of them are not taken.
    select lane.priority
      from lane
     cross join lateral (
        select seen.run_at
          from (
            select p.run_at
              from fencepost.pending p
             where p.queue_id = cast(:queue_id as int)
               and p.priority = lane.priority
               and (p.run_at, p.id) > (lane.run_at, lane.id)
               and p.run_at <= now()
             order by p.run_at, p.id
             limit cast(:slots as int)
          ) seen
         where not cast(:contended as boolean)
        union all
        select free.run_at
          from (
            select p.run_at
              from fencepost.pending p
             where p.queue_id = cast(:queue_id as int)
               and p.priority = lane.priority
               and (p.run_at, p.id) > (lane.run_at, lane.id)
               and p.run_at <= now()
             order by p.run_at, p.id
             limit cast(:slots as int)
               for update skip locked
          ) free
         where cast(:contended as boolean)
     ) p
     where lane.lanes > 1
     order by case when cast(:aging_seconds as float8) = 0 then lane.priority end desc,
              p.run_at - lane.priority * make_interval(secs => cast(:aging_seconds as float8)), lane.priority desc
     limit cast(:slots as int)
),
share as materialized (
    select lane.*,
           case when lane.lanes = 1 then cast(:slots as int)
                else (select count(*) from front f where f.priority = lane.priority) end as wanted
      from lane
),
picked as materialized (
    -- Stamped after the row is locked, when this transaction has its id: the sweep for expired leases rests on that.
    select p.*, clock_timestamp() as taken_at
      from share
     cross join lateral (
        select p.id, p.priority, p.attempts, p.token, p.run_at
          from fencepost.pending p
         where p.queue_id = cast(:queue_id as int)
           and p.priority = share.priority
           and (p.run_at, p.id) > (share.run_at, share.id)
           and p.run_at <= now()
         order by p.run_at, p.id
         limit share.wanted
           for update skip locked
     ) p
     where share.wanted > 0
),
gone as (
    delete from fencepost.pending p
     where p.queue_id = cast(:queue_id as int)
       and p.id = any (array (select k.id from picked k))
),
leased as (
    insert into fencepost.leases (id, queue_id, priority, attempt, token, worker_id, started_at, locked_until)
    select k.id, cast(:queue_id as int), k.priority, k.attempts + 1, k.token + 1, cast(:worker_id as uuid),
           k.taken_at, k.taken_at + make_interval(secs => cast(:lease_seconds as float8))
      from picked k
)
-- Times that were written by hand may be beyond those that a client can read: this statement's end must not depend on it.
select share.priority, share.wanted, greatest(rest.run_at, timestamptz '0001-01-01 00:00+00') as rest_run_at,
       rest.id as rest_id,
       case when rest.id is null
            then (
                select least(p.run_at, timestamptz '9999-01-01 00:00+00')
                  from fencepost.pending p
                 where p.queue_id = cast(:queue_id as int)
                   and p.priority = share.priority
                   and p.run_at > now()
                 order by p.run_at
                 limit 1
            ) end as next_run_at,
       taken.ids, taken.attempts, taken.tokens, taken.run_at,
       cast(pg_current_snapshot() as text) as snapshot, now() as seen_at,
       -- Taken even by a claim that finds nothing: the next one's snapshot then knows all that began before this.
       cast(cast(pg_current_xact_id() as text) as bigint) as transaction,
       null::uuid as id, null::text as type, null::text as payload, null::smallint as max_attempts,
       null::float8 as timeout_seconds, null::text as request_id, false as settled
  from share
  left join lateral (
    -- What was seen and not taken: beyond the slots, or in the hands of another dispatcher. Cursors stop before it.
    select p.run_at, p.id
      from fencepost.pending p
     where p.queue_id = cast(:queue_id as int)
       and p.priority = share.priority
       and (p.run_at, p.id) > (share.run_at, share.id)
       and p.run_at <= now()
       and p.id not in (select k.id from picked k)
     order by p.run_at, p.id
     limit 1
 ) rest on true
  left join lateral (
    select array_agg(k.id) as ids, array_agg(k.attempts + 1) as attempts, array_agg(k.token + 1) as tokens,
           case when share.lanes > 1
                then array_agg(greatest(k.run_at, timestamptz '0001-01-01 00:00+00')) end as run_at
      from picked k
     where k.priority = share.priority
 ) taken on true
union all
select null, null, null, null, null, null, null, null, null,
       -- A column of its own would cost those that have none of it more than all the rest of this.
       case when j.tags is not null or j.metadata is not null or j.trace_context is not null
                 or j.expires_at is not null
            then cast(jsonb_build_object(
                'tags', coalesce(j.tags, '{}'), 'metadata', j.metadata, 'trace_context', j.trace_context,
                'expired', coalesce(j.expires_at <= now(), false)
            ) as text) end,
       null, null, j.id, j.type, cast(j.payload as text), j.max_attempts, j.timeout_seconds, j.request_id, false
  from fencepost.jobs j
 where j.queue_id = cast(:queue_id as int)
   and j.id = any (array (select k.id from picked k))
