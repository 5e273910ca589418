-- What was found to go wrong. A call of enqueue_jobs for more queues than one hint has room for wakes the workers of them all.
-- A waiting job whose own time is over stands in no other's way. Partitions are made where some are missing between others,
-- too, and beside tables that are there under their names.
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

create function fencepost.cancel_waiting(waiting uuid, its_queue int, kind text, reason text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- Ends a waiting job, whose row is locked, for a reason that its history tells. For enqueue_jobs only.
--
-- The entry takes a token of its own, since the job's last one may have an entry already.
declare
    gone record;
begin
    delete from fencepost.pending p
     where p.id = waiting
       and p.queue_id = its_queue
    returning p.attempts, p.token + 1 as token
         into strict gone;
    insert into fencepost.finished (id, queue_id, status, attempts, token, started_at, finished_at)
    values (
        waiting, its_queue, 'cancelled', gone.attempts, gone.token,
        (
            select a.started_at
              from fencepost.attempts a
             where a.id = waiting
               and a.queue_id = its_queue
             order by a.token desc
             limit 1
        ),
        clock_timestamp()
    );
    insert into fencepost.attempts (
        id, queue_id, token, attempt, outcome, worker_id, started_at, ended_at, error_type, error
    )
    values (
        waiting, its_queue, gone.token, gone.attempts, 'cancelled', uuid '00000000-0000-0000-0000-000000000000',
        clock_timestamp(), clock_timestamp(), kind, reason
    );
end
$$;

revoke execute on function fencepost.cancel_waiting(uuid, int, text, text) from public;

create or replace function fencepost.store_unique(job jsonb, places jsonb, moment timestamptz) returns jsonb
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
-- Stores a job whose unique key another one may hold, or does what its mode says. For enqueue_jobs only.
--
-- Returns what it did if it isn't just that it stored the job: effect, and the id that the caller gets; queue_id and
-- run_at of a waiting job that was moved, or held back until this transaction ends.
--
-- Locks: the key's row, so that requests with one key take turns; then the row of the waiting job that is to be
-- changed, or that must not start yet:
--
--     this transaction                    claim
--     changes a row of its own
--     asks for a job, until = started;
--     one waits: this request is skipped,
--     since that one will see the change
--                                         skips the waiting job: it is locked. Had it been taken, it would
--                                         have run before the change was there, and nothing would run after
--     commits
--                                         takes the job, which sees the change
--
-- A waiting job whose own time is over (expires) can't start any more, so it stands in nobody's way: it is ended here as a
-- claim would end it. Nor is it moved to where it could not start.
--
-- A job that is just being moved by others is found nowhere, or not where it was: it is looked at again, in a new
-- snapshot. Where there is no new one (repeatable read), PostgreSQL refuses and the caller has to start again.
declare
    asked record;
    holder record;
    place record;
    waiting fencepost.pending;
    target timestamptz;
    unstarted boolean;
    stands boolean;
    left_over boolean;
begin
    select cast(job ->> 'id' as uuid) as id, job ->> 'type' as type,
           cast(coalesce(job ->> 'queue_id', places ->> (job ->> 'queue')) as int) as queue_id,
           i.key, i.until, coalesce(i.mode, 'skip') as mode,
           case when i.until = 'period' then moment + i.period_microseconds * interval '1 microsecond' end as expires_at,
           least(
               greatest(
                   coalesce(
                       cast(job ->> 'run_at' as timestamptz),
                       moment + cast(job ->> 'delay_microseconds' as bigint) * interval '1 microsecond'
                   ),
                   moment
               ),
               timestamptz '9999-01-01 00:00+00'
           ) as run_at
      into asked
      from jsonb_to_record(job -> 'unique') as i (key text, until text, period_microseconds bigint, mode text);
    for round in 1 .. 100 loop
        insert into fencepost.unique_keys (type, key, job_id, queue_id, until, expires_at)
        values (asked.type, asked.key, asked.id, asked.queue_id, asked.until, asked.expires_at)
            on conflict (type, key) do nothing;
        if found then
            perform fencepost.store_jobs(jsonb_build_array(job), places, moment, null);
            return null;
        end if;
        select k.job_id, k.queue_id, k.until, k.expires_at
          into holder
          from fencepost.unique_keys k
         where k.type = asked.type
           and k.key = asked.key
           for update;
        -- Retention removed it in between.
        continue when not found;
        select p.attempts, p.token, p.id is not null as waits, l.id is not null as runs, j.expires_at
          into place
          from (select) one
          left join lateral (
            select p.id, p.attempts, p.token
              from fencepost.pending p
             where p.id = holder.job_id
               and p.queue_id = holder.queue_id
          ) p on true
          left join lateral (
            select j.expires_at from fencepost.jobs j where j.id = p.id and j.queue_id = holder.queue_id limit 1
          ) j on true
          left join lateral (
            select l.id from fencepost.leases l where l.id = holder.job_id and l.queue_id = holder.queue_id
          ) l on true;
        unstarted := place.waits and place.attempts = 0;
        stands := case holder.until when 'started' then unstarted
                                    when 'finished' then place.waits or place.runs
                                    else holder.expires_at > clock_timestamp() end;
        -- What was given back, or put back by hand, is started all the same.
        left_over := place.waits and (place.attempts > 0 or place.token = 0) and place.expires_at <= clock_timestamp();
        if left_over and stands and holder.until <> 'period' then
            perform
               from fencepost.pending p
              where p.id = holder.job_id
                and p.queue_id = holder.queue_id
                and p.token = place.token
                for update;
            -- A claim that began in time has taken it.
            continue when not found;
            perform fencepost.cancel_waiting(
                holder.job_id, holder.queue_id, 'Expired', 'its time was over before this attempt started'
            );
            stands := false;
        end if;
        if unstarted and stands and (asked.mode <> 'skip' or 'started' in (holder.until, asked.until)) then
            select p.*
              into waiting
              from fencepost.pending p
             where p.id = holder.job_id
               and p.queue_id = holder.queue_id
               for update;
            continue when not found or waiting.attempts > 0;
        else
            waiting := null;
        end if;
        if stands and (waiting.id is null or asked.mode = 'skip') then
            return jsonb_strip_nulls(
                jsonb_build_object(
                    'effect', 'skipped', 'id', holder.job_id, 'queue_id', waiting.queue_id, 'run_at', waiting.run_at
                )
            );
        end if;
        if stands and asked.mode in ('earliest', 'latest') then
            -- Not before the clock of a moment at which this transaction had its id, as if it were inserted.
            target := case asked.mode when 'earliest' then least(waiting.run_at, asked.run_at)
                                      else greatest(waiting.run_at, asked.run_at) end;
            if target = waiting.run_at then
                return jsonb_build_object(
                    'effect', 'skipped', 'id', holder.job_id, 'queue_id', waiting.queue_id, 'run_at', waiting.run_at
                );
            end if;
            if place.expires_at is null or target < place.expires_at then
                update fencepost.pending p set run_at = target where p.id = waiting.id and p.queue_id = waiting.queue_id;
                return jsonb_build_object(
                    'effect', 'rescheduled', 'id', waiting.id, 'queue_id', waiting.queue_id, 'run_at', target
                );
            end if;
        end if;
        if stands then
            perform fencepost.cancel_waiting(
                waiting.id, waiting.queue_id, 'Replaced',
                format('job %s has the same unique key and took its place before it started', asked.id)
            );
        end if;
        update fencepost.unique_keys k
           set job_id = asked.id, queue_id = asked.queue_id, until = asked.until, expires_at = asked.expires_at
         where k.type = asked.type
           and k.key = asked.key;
        perform fencepost.store_jobs(jsonb_build_array(job), places, moment, null);
        return case when stands
                    then jsonb_build_object('effect', 'replaced', 'id', asked.id, 'replaced', waiting.id) end;
    end loop;
    raise exception 'the job with the unique key % kept moving; try again', asked.key
        using errcode = 'serialization_failure';
end
$$;

drop function fencepost.cancel_replaced(uuid, int, uuid);

create function fencepost.make_part(parent text, range_start timestamptz, range_end timestamptz) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- Makes the partition that one of the three tables needs for a range. One that is attached already stays; a table of its
-- name that was detached is attached again, if it is like the others. For ensure_partitions only, which says what it locks.
declare
    part constant text := parent || fencepost.part_suffix(range_start);
    low constant uuid := fencepost.first_id_at(range_start);
    high constant uuid := fencepost.first_id_at(range_end);
    bounds constant text := format('for values from (%L) to (%L)', low, high);
    whole oid;
    there oid;
begin
    select max(c.oid) filter (where c.relname = parent), max(c.oid) filter (where c.relname = part)
      into whole, there
      from pg_class c
     where c.relnamespace = (select j.relnamespace from pg_class j where j.oid = 'fencepost.jobs'::regclass)
       and c.relname in (parent, part);
    if there is null then
        execute format(
            'create table fencepost.%I (like fencepost.%I including defaults including constraints)', part, parent
        );
    elsif exists (
        select
          from pg_inherits i
          join pg_class c on c.oid = i.inhrelid
         where c.oid = there and i.inhparent = whole and lower(pg_get_expr(c.relpartbound, c.oid)) = bounds
    ) then
        return;
    elsif (select count(distinct c.relowner) from pg_class c where c.oid in (whole, there)) > 1 then
        -- Its triggers would run as the owner of ours.
        raise exception 'partition % can''t be attached: it belongs to another role', part
            using errcode = 'duplicate_table';
    elsif array(
        select format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod))
          from pg_attribute a
         where a.attrelid = whole and a.attnum > 0 and not a.attisdropped
         order by a.attnum
    ) <> array(
        select format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod))
          from pg_attribute a
         where a.attrelid = there and a.attnum > 0 and not a.attisdropped
         order by a.attnum
    ) then
        -- Rows are moved into it by the order of its columns.
        raise exception 'partition % can''t be attached: its columns aren''t those of %', part, parent
            using errcode = 'duplicate_table';
    end if;
    -- A row that was filed under the default, for want of a partition or because its id came from the future, would
    -- refuse the new range. Locked first: where rows arrive all the time, one would get in between.
    execute format('lock table fencepost.%I in access exclusive mode', parent || '_default');
    execute format(
        'with moved as (delete from fencepost.%I where id >= $1 and id < $2 returning *) insert into fencepost.%I select * from moved',
        parent || '_default', part
    ) using low, high;
    execute format('alter table fencepost.%I attach partition fencepost.%I %s', parent, part, bounds);
exception
    when integrity_constraint_violation or wrong_object_type or datatype_mismatch or invalid_object_definition then
        raise exception 'partition % can''t be attached: %', part, sqlerrm using errcode = 'duplicate_table';
end
$$;
revoke execute on function fencepost.make_part(text, timestamptz, timestamptz) from public;

create or replace function fencepost.ensure_partitions(width interval, ahead int) returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
-- Makes the partitions that ids of the coming `ahead` × `width` will need; returns how many ranges were new. Acts as
-- the owner, so it makes no more than anybody needs.
--
-- From now on there is no gap in the list afterwards. A range that isn't on it may have some of its tables: make_part.
--
-- Locks: share update exclusive on the three tables, and for an instant access exclusive on their default
-- partitions. When they aren't to be had at once it fails, and is tried again later: there are days to do it in,
-- and waiting would hold up every claim behind it.
declare
    reached timestamptz;
    enough timestamptz;
    range_start timestamptz;
    range_end timestamptz;
    made int := 0;
    parent text;
begin
    if width is null or width not between interval '1 day' and interval '3650 days' or ahead is null
        or ahead not between 0 and 100
    then
        raise exception 'width: must be from a day to ten years, and ahead from 0 to 100, not % and %', width, ahead
            using errcode = 'invalid_parameter_value';
    end if;
    perform set_config('lock_timeout', '200ms', true);
    perform pg_advisory_xact_lock(hashtextextended('partitions of ' || 'fencepost.jobs'::regclass::oid, 0));
    reached := clock_timestamp();
    enough := reached + width * ahead;
    loop
        select max(p.ends_at) into range_end from fencepost.partitions p where p.starts_at <= reached and p.ends_at > reached;
        if range_end is null then
            -- On the grid, but for what is there on either side: its width may have been another one.
            range_start := date_bin(width, reached, timestamptz '2020-01-06 00:00+00');
            range_end := range_start + width;
            select greatest(range_start, max(p.ends_at) filter (where p.ends_at <= reached)),
                   least(range_end, min(p.starts_at) filter (where p.starts_at > reached))
              into range_start, range_end
              from fencepost.partitions p;
            foreach parent in array array['jobs', 'finished', 'attempts'] loop
                perform fencepost.make_part(parent, range_start, range_end);
            end loop;
            insert into fencepost.partitions (starts_at, ends_at) values (range_start, range_end);
            made := made + 1;
        end if;
        reached := range_end;
        exit when reached >= enough;
    end loop;
    return made;
end
$$;
