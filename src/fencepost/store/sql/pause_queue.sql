-- Stop claims from a queue, or allow them again. Pausing twice keeps the first time.
--
-- Index: queues' primary key. Locks: that row; claims only read it.
update fencepost.queues q
   set paused_at = case when cast(:paused as bool) then coalesce(q.paused_at, clock_timestamp()) end
 where q.id = cast(:queue_id as int)
returning q.paused_at,
          case when cast(:hint as text) is not null
               then cast(pg_notify(cast(:channel as text), cast(:hint as text)) as text) end as sent
