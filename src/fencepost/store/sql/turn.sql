-- Write how attempts ended and take the next jobs, in one statement and one commit.
--
-- What it does, reads and locks is what settle.sql and claim.sql do: their texts are put together here, so that a
-- worker with few slots pays for one round trip and one commit a job rather than two. Both halves see the same
-- snapshot: a job that goes back to pending is there for the next claim, not for this one.
-- fuse settle claim
-- Returns: claim.sql's rows, then a row for each attempt settled: id and token, its job's status as type, attempt null.
select s.id, null, null, null, null, null, null, null, null, null, s.token, s.status, null, null, null, null
  from settled s
