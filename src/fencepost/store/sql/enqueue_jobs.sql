-- Store jobs in whatever transaction it runs in, over any driver: one text goes in, one comes out.
--
-- What it does is said in the function, in migrations/0003_producers.sql. Locks: as told there.
select cast(fencepost.enqueue_jobs(cast(cast(:jobs as text) as jsonb)) as text) as answer
