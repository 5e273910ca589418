-- Where keys that have a time of their own can be past it: up to the first id, and (clocks that were fast) from the last.
-- Parameters: key_seconds. Locks: none.
select fencepost.first_id_at(
           greatest(now() - make_interval(secs => cast(:key_seconds as float8)), timestamptz 'epoch')
       ) as until_id,
       fencepost.first_id_at(now() + interval '1 hour') as from_id
