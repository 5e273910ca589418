-- Make a lane known, before the first job in it is stored, so that no claim misses it.
--
-- Its own transaction. Index: lanes' primary key. Locks: waits for another that makes the same lane.
insert into fencepost.lanes (queue_id, priority)
values (cast(:queue_id as int), cast(:priority as smallint))
    on conflict do nothing
