-- A call of enqueue_jobs for more queues than one hint has room for wakes the workers of them all.
--
-- Locks: none on a table.

create or replace function fencepost.wake_up(jobs jsonb, places jsonb, moment timestamptz, answers jsonb) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- Tells workers, when this transaction commits, which queues have something due by then or within a minute. What is
-- due later they find by themselves. For enqueue_jobs only.
declare
    due text;
    schema text;
begin
    select n.nspname
      into schema
      from pg_class c
      join pg_namespace n on n.oid = c.relnamespace
     where c.oid = cast('fencepost.jobs' as regclass);
    for due in
        with answered as materialized (
            select cast(e.answer ->> 'place' as int) as place, e.answer from jsonb_array_elements(answers) as e (answer)
        )
        select string_agg(cast(n.id as text), ',' order by n.id)
          from (
            select d.id, row_number() over (order by d.id) - 1 as number
              from (
                select coalesce(cast(a.answer ->> 'queue_id' as int), i.queue_id, cast(places ->> i.queue as int)) as id
                  from rows from (
                           jsonb_to_recordset(jobs) as (
                               queue_id int, queue text, run_at timestamptz, delay_microseconds bigint
                           )
                       ) with ordinality as i (queue_id, queue, run_at, delay_microseconds, number)
                  left join answered a on a.place = i.number - 1
                 where case when a.answer is null or a.answer ->> 'effect' = 'replaced'
                            then coalesce(i.run_at, moment + i.delay_microseconds * interval '1 microsecond', moment)
                            else cast(a.answer ->> 'run_at' as timestamptz) end < moment + interval '1 minute'
                 group by 1
              ) d
          ) n
         -- A payload has to stay under 8,000 bytes.
         group by n.number / 500
    loop
        perform pg_notify('fencepost:' || schema, 'due ' || due);
    end loop;
end
$$;
