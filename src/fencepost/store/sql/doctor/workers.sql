-- Workers that were heard of lately, and those that were not and are still on the list.
select count(*) filter (
           where w.heartbeat_at > clock_timestamp() - make_interval(secs => cast(:silence_seconds as float8))
       ) as alive,
       count(*) as listed,
       coalesce(sum(w.slots) filter (
           where w.heartbeat_at > clock_timestamp() - make_interval(secs => cast(:silence_seconds as float8))
       ), 0) as slots
  from fencepost.workers w
