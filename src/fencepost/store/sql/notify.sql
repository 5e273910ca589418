-- Send a hint. Takes an instance-wide lock at commit, so it is never sent once a job.
select cast(pg_notify(cast(:channel as text), cast(:hint as text)) as text) as sent
