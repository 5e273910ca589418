-- Whether there is anything left to do for a worker that is to run all that is due and then stop: for tests.
--
-- Parameters: worker_id; queues, the names of those it serves (null: all).
-- Returns: one row with the database's clock, the queues in which something is due (paused ones left out), how many
--   jobs the worker has leased, and how many leases have run out. In one snapshot, where a due job that was just taken
--   is a lease. The clock is read after that snapshot, or a job that came in between would be seen and not be due.
-- Index: pending_lane and leases_expiry, once a queue. Locks: none.
with moment as materialized (
    select clock_timestamp() as now
)
select m.now,
       array(
           select q.id
             from fencepost.queues q
            where q.paused_at is null
              and (cast(:queues as text[]) is null or q.name = any (cast(:queues as text[])))
              and exists (
                  select
                    from fencepost.lanes l
                   cross join lateral (
                      select
                        from fencepost.pending p
                       where p.queue_id = l.queue_id
                         and p.priority = l.priority
                         and p.run_at <= m.now
                       limit 1
                   ) p
                   where l.queue_id = q.id
              )
       ) as due,
       (select count(*) from fencepost.leases l where l.worker_id = cast(:worker_id as uuid)) as leased,
       (
           select count(*)
             from fencepost.queues q
             join fencepost.leases l on l.queue_id = q.id
            where l.locked_until <= m.now
              and (cast(:queues as text[]) is null or q.name = any (cast(:queues as text[])))
       ) as expired
  from moment m
