-- Make jobs that wait, as if they had been handed in over time.
--
-- Parameters: 1 and 2, since when and until when they were handed in, at an even pace; 3 and 4, the first
--   and the last of them to make now, of 5; 6, their queue; 7, their payload; 8, how long from now the first
--   is due; 9, over how long a time the others are.
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
)
insert into fencepost.pending (id, queue_id, priority, attempts, token, run_at)
select id, $6, 0, 0, 0, clock_timestamp() + cast($8 as interval) + cast($9 as interval) * random() from made
