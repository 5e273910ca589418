-- Write how attempts ended and take the next jobs, in one statement and one commit.
--
-- What it does, reads and locks is what settle.sql and claim.sql do: their texts are put together here, so that a
-- worker with few slots pays for one round trip and one commit a job rather than two. Both halves see the same
-- snapshot: a job that goes back to pending is there for the next claim, not for this one.
-- fuse settle claim
-- Returns: claim.sql's rows, then settle.sql's, which are told by settled: id, token as transaction, status as type.
select null, null, null, null, null, null, null, null, null, null, null, s.token, s.id, s.status, null, null, null, null,
       true
  from settled s
