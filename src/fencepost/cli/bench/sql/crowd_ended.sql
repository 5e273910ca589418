-- Make jobs that have ended, as if they had been handed in over time.
--
-- Parameters: 1 and 2, since when and until when they were handed in, at an even pace; 3 and 4, the first
--   and the last of them to make now, of 5; 6, their queue; 7, their payload.
--
-- Of a hundred, one has failed, one is dead and one was cancelled; the first two with an attempt to tell of.
with made as materialized (
    select n, at,
           cast(substr(cast(fencepost.first_id_at(at) as text), 1, 14) || '7'
                || substr(cast(gen_random_uuid() as text), 16) as uuid) as id
      from generate_series(cast($3 as int), cast($4 as int)) n
     cross join (select cast($1 as timestamptz) as since, cast($2 as timestamptz) as until) span
     cross join lateral (select since + (until - since) * (n / cast($5 as float8)) as at) m
),
defined as (
    insert into fencepost.jobs (id, queue_id, type, priority, payload, max_attempts, created_at)
    select id, cast($6 as int), 'noop', 0, cast($7 as jsonb), 5, at from made
),
ended as (
    select id, at, coalesce((array['failed', 'dead_letter', 'cancelled'])[n % 100], 'completed') as status from made
),
failed as (
    insert into fencepost.attempts
        (id, queue_id, token, attempt, outcome, worker_id, started_at, ended_at, error_type, error)
    select id, $6, 1, 1, 'failed', gen_random_uuid(), at, at + interval '1 s', 'ValueError', 'it broke'
      from ended
     where status in ('failed', 'dead_letter')
)
insert into fencepost.finished (id, queue_id, status, attempts, token, started_at, finished_at)
select id, $6, status, 1, 1, at, at + interval '1 s' from ended
