-- Store new jobs in a transaction of their own.
--
-- Parameters: jobs, a jsonb array of what the function takes (migrations/0003_producers.sql); whole, whether a conflict
--   of one idempotency key keeps all of them from being stored; channel and hint, the wake-up to send with the commit
--   (null: none).
-- Returns: the function's answer. Indexes: the primary keys. Locks: the rows it inserts, and as told there.
with stored as materialized (
    select fencepost.enqueue_jobs(cast(:jobs as jsonb), false, cast(:whole as boolean)) as answer
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
