-- Say that a worker process lives, or still lives. Index: workers' primary key. Locks: that row.
insert into fencepost.workers (id, host, pid, version, slots)
values (cast(:id as uuid), cast(:host as text), cast(:pid as int), cast(:version as text), cast(:slots as int))
    on conflict (id) do update set heartbeat_at = clock_timestamp()
