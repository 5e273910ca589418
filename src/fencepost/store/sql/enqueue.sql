-- Store new jobs in a transaction of their own.
--
-- Parameters: jobs, a jsonb array of what the function takes (migrations/0003_producers.sql); whole, whether a conflict
--   of one idempotency key keeps all of them from being stored; channel and hint, the wake-up to send with the commit
--   (null: none).
-- Returns: the function's answer. No row, and nothing is stored, where no claim would look, as in enqueue_plain.sql. The
--   function itself doesn't look whether the queue is there, and whether it is the one that was meant.
-- Indexes: the primary keys. Locks: the rows it inserts, and as told there.
with lost as materialized (
    select p.queue_id
      from (
        select distinct i.queue, i.queue_id, coalesce(i.priority, 0) as priority
          from jsonb_to_recordset(cast(:jobs as jsonb)) as i (queue text, queue_id int, priority smallint)
      ) p
      left join lateral (
        select l.queue_id from fencepost.lanes l where l.queue_id = p.queue_id and l.priority = p.priority limit 1
      ) l on true
      left join lateral (
        select q.name from fencepost.queues q where q.id = p.queue_id limit 1
      ) q on true
     where l.queue_id is null
        or q.name is distinct from p.queue
     limit 1
),
stored as materialized (
    select fencepost.enqueue_jobs(cast(:jobs as jsonb), false, cast(:whole as boolean)) as answer
     where not exists (select from lost)
)
select s.answer,
       cast(
           (
               select pg_notify(cast(:channel as text), cast(:hint as text))
                where cast(:hint as text) is not null
                  and not s.answer ? 'quiet'
           ) as text
       ) as sent
  from stored s
