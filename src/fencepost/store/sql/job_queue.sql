-- The queue of a job, which never changes. Index: jobs' primary key. Locks: none.
select j.queue_id from fencepost.jobs j where j.id = cast(:id as uuid)
