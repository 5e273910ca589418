-- End an attempt as completed, in the transaction of a caller's connection, whichever driver that has: one text goes
-- in, one comes out, 'true' or 'false' when the attempt had lost its lease and nothing was written.
--
-- What it reads and locks is in the function (migrations/0004_attempts.sql).
select cast(fencepost.complete(cast(cast(:attempt as text) as jsonb)) as text)
