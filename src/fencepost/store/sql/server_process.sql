-- The id of the server's first process, for benchmarks on its machine. Refused to roles that may not read the server's
-- files: the right is checked before anything runs, so the statement can't ask for it itself. Locks: none.
select split_part(pg_read_file('postmaster.pid'), chr(10), 1) as pid
