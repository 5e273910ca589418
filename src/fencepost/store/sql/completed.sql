-- Which of these attempts have completed their jobs. Read for those that may have ended in a transaction of their own.
--
-- Index: finished's primary key. Locks: none.
select f.id, f.token
  from unnest(cast(:ids as uuid[]), cast(:tokens as bigint[])) i (id, token)
 cross join lateral (
    select f.id, f.token
      from fencepost.finished f
     where f.id = i.id
       and f.queue_id = cast(:queue_id as int)
       and f.token = i.token
       and f.status = 'completed'
     limit 1
 ) f
