-- Whether the outcome of an attempt is in the history already, and where its job went. Read for one that was sent when
-- the connection broke: its answer was lost, and now its lease is gone.
--
-- Parameters: id and token name the attempt; ending is how it ended. A recovery's ending is another, so what it writes
-- about an attempt isn't taken for the worker's own word.
-- Returns: one row, or none if it isn't there: a snooze leaves no trace, and neither does a lease that was lost.
-- Index: attempts' and finished's primary keys. Locks: none.
select coalesce(f.status, 'pending') as status
  from fencepost.attempts a
  left join lateral (
    select f.status
      from fencepost.finished f
     where f.id = a.id
       and f.queue_id = a.queue_id
       and f.token = a.token
     limit 1
  ) f on true
 where a.id = cast(:id as uuid)
   and a.queue_id = cast(:queue_id as int)
   and a.token = cast(:token as bigint)
   and a.outcome = cast(:ending as text)
 limit 1
