-- Remove a worker that stops, and those not heard of for a while. Locks: those rows.
delete from fencepost.workers w
 where w.id = cast(:id as uuid)
    or w.heartbeat_at < clock_timestamp() - make_interval(secs => cast(:silence_seconds as float8))
