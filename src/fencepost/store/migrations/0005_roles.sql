-- Least privilege: workers and producers need not own anything. What takes the owner's rights is in functions that act
-- as the owner, and nobody may call one who wasn't granted that. `fencepost grant` has the list of grants.
--
-- Locks: none on a table.

do $$
-- Execution was everybody's, and each function acted with its caller's rights. It is granted from now on, and whoever
-- could use a function before still can. Those that act as the owner now, below, are left to roles that could store
-- jobs without them. Functions here are called by their full names: whoever may create some in a schema that the
-- migrating role looks in could have made one that fits better.
--
-- A session's temporary objects come first wherever pg_temp isn't named: a temporary type called uuid would be taken
-- for PostgreSQL's. That matters in what acts as the owner, and in all that those functions call. The few small ones
-- that have no path are put into the statements which call them, as they couldn't be with a setting of their own;
-- called by a function, they have its path.
declare
    ours constant text[] := array[
        'bytes_of', 'cancel_replaced', 'check_job', 'check_unique', 'complete', 'drop_range', 'enqueue', 'enqueue_jobs',
        'ensure_partitions', 'first_id_at', 'is_expired', 'is_printable', 'new_id', 'note_survivor', 'part_suffix',
        'places_of', 'replays', 'retention_turn', 'schedule_of', 'seconds_of', 'store_jobs', 'store_keyed',
        'store_unique', 'survivors_of', 'wake_up', 'watch_range'
    ];
    owners constant text[] := array['drop_range', 'enqueue', 'enqueue_jobs', 'ensure_partitions', 'watch_range'];
    fn record;
    grantee text;
    users text[];
begin
    for fn in
        select p.oid, cast(p.oid as regprocedure) as signature, p.proname as name, p.prosecdef as is_definer, p.proacl,
               'search_path=pg_catalog' = any (p.proconfig) as has_path, c.relowner as owner, n.nspacl, c.relacl
          from pg_catalog.pg_class c
          join pg_catalog.pg_namespace n on n.oid = c.relnamespace
          join pg_catalog.pg_proc p on p.pronamespace = n.oid
         where c.oid = 'fencepost.jobs'::regclass
           and p.proname = any (ours)
    loop
        -- Before anything is taken away. One of them may be everybody.
        users := array(
            select case when x.grantee = 0 then 'public' else pg_catalog.pg_get_userbyid(x.grantee) end
              from (
                select a.grantee, false as stores from pg_catalog.aclexplode(fn.nspacl) a
                union all
                select a.grantee, a.privilege_type = 'INSERT' from pg_catalog.aclexplode(fn.relacl) a
              ) x
             where x.grantee <> fn.owner
               and not fn.is_definer
             group by x.grantee
            having not fn.name = any (owners)
                or (pg_catalog.bool_or(x.stores) and fn.name in ('enqueue', 'enqueue_jobs'))
        );
        users := array(
            select u.name
              from pg_catalog.unnest(users) u (name)
             where pg_catalog.has_function_privilege(u.name, fn.oid, 'execute')
        );
        execute pg_catalog.format('revoke execute on function %s from public', fn.signature);
        -- Execution that default privileges handed out, say, did no harm while a function acted with its caller's rights.
        for grantee in
            select pg_catalog.pg_get_userbyid(a.grantee)
              from pg_catalog.aclexplode(fn.proacl) a
             where a.grantee not in (0, fn.owner)
               and fn.name = any (owners)
               and not fn.is_definer
        loop
            execute pg_catalog.format('revoke all on function %s from %I cascade', fn.signature, grantee);
        end loop;
        foreach grantee in array users loop
            execute pg_catalog.format('grant execute on function %s to %I', fn.signature, grantee);
        end loop;
        if fn.has_path then
            execute pg_catalog.format('alter function %s set search_path = pg_catalog, pg_temp', fn.signature);
        end if;
    end loop;
end
$$;

create or replace function fencepost.ensure_partitions(width interval, ahead int) returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
-- Makes the partitions that ids of the coming `ahead` × `width` will need; returns how many ranges were new. Acts as
-- the owner, so it makes no more than anybody needs.
--
-- Locks: share update exclusive on the three tables, and for an instant access exclusive on their default
-- partitions. When they aren't to be had at once it fails, and is tried again later: there are days to do it in,
-- and waiting would hold up every claim behind it.
declare
    range_start timestamptz;
    range_end timestamptz;
    made int := 0;
    parent text;
    part text;
begin
    if width is null or width not between interval '1 day' and interval '3650 days' or ahead is null
        or ahead not between 0 and 100
    then
        raise exception 'width: must be from a day to ten years, and ahead from 0 to 100, not % and %', width, ahead
            using errcode = 'invalid_parameter_value';
    end if;
    perform set_config('lock_timeout', '200ms', true);
    perform pg_advisory_xact_lock(hashtextextended('partitions of ' || 'fencepost.jobs'::regclass::oid, 0));
    select greatest(max(ends_at), date_bin(width, clock_timestamp(), timestamptz '2020-01-06 00:00+00'))
      into range_start
      from fencepost.partitions;
    while range_start < clock_timestamp() + width * ahead loop
        -- Back on the grid after a change of width.
        range_end := date_bin(width, range_start, timestamptz '2020-01-06 00:00+00') + width;
        foreach parent in array array['jobs', 'finished', 'attempts'] loop
            part := parent || to_char(range_start at time zone 'UTC', '_YYYYMMDD"t"HH24MI');
            execute format(
                'create table fencepost.%I (like fencepost.%I including defaults including constraints)', part, parent
            );
            -- A row that was filed under the default, for want of a partition or because its id came from the future,
            -- would refuse the new range. Locked first: where rows arrive all the time, one would get in between.
            execute format('lock table fencepost.%I in access exclusive mode', parent || '_default');
            execute format(
                'with moved as (delete from fencepost.%I where id >= $1 and id < $2 returning *) insert into fencepost.%I select * from moved',
                parent || '_default', part
            ) using fencepost.first_id_at(range_start), fencepost.first_id_at(range_end);
            execute format(
                'alter table fencepost.%I attach partition fencepost.%I for values from (%L) to (%L)',
                parent, part, fencepost.first_id_at(range_start), fencepost.first_id_at(range_end)
            );
        end loop;
        insert into fencepost.partitions (starts_at, ends_at) values (range_start, range_end);
        made := made + 1;
        range_start := range_end;
    end loop;
    return made;
end
$$;

create function fencepost.check_strangers(jobs jsonb) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
-- Refuses jobs of a role that can't insert any by itself, and so isn't known to mean well: an id that another job has, or
-- had and left its idempotency key; a queue's id; and what neither the API nor enqueue would take. For enqueue_jobs only.
declare
    -- In microseconds. An interval of ten years, which enqueue takes, is two days and a half longer than 3650 days.
    most constant bigint := 3650 * bigint '86400000000';
    ten_years constant bigint := 87660 * bigint '3600000000';
    taken uuid;
begin
    if jobs @? '$[*].queue_id' then
        raise exception 'queue_id: name the queue instead' using errcode = 'insufficient_privilege';
    end if;
    select i.id
      into taken
      from (
        select r.id, count(*) as times from jsonb_to_recordset(jobs) as r (id uuid) group by 1
      ) i
      left join lateral (select true as found from fencepost.jobs j where j.id = i.id limit 1) j on true
      left join lateral (select true as found from fencepost.idempotency_keys k where k.job_id = i.id limit 1) k on true
     where i.times > 1
        or j.found
        or k.found
     limit 1;
    if found then
        raise exception 'id: there is a job with this id already: %', taken using errcode = 'unique_violation';
    end if;
    perform fencepost.check_job(
                i.type, coalesce(i.payload, jsonb 'null'), i.queue, coalesce(i.priority, 0), i.max_attempts, i.run_at,
                i.delay * interval '1 microsecond', make_interval(secs => i.timeout_seconds),
                i.expires * interval '1 microsecond', i.idempotency_key, i.tags, null
            ),
            fencepost.check_unique(i.key, i.until, i.until, i.period * interval '1 microsecond', i.mode)
       from (
        select r.*, r."unique" ->> 'key' as key, r."unique" ->> 'until' as until, r."unique" ->> 'mode' as mode,
               case when r.delay_microseconds <= ten_years then least(r.delay_microseconds, most)
                    else r.delay_microseconds end as delay,
               case when r.expires_microseconds <= ten_years then least(r.expires_microseconds, most)
                    else r.expires_microseconds end as expires,
               case when p.period_microseconds <= ten_years then least(p.period_microseconds, most)
                    else p.period_microseconds end as period
          from jsonb_to_recordset(jobs) as r (
                   type text, payload jsonb, queue text, priority int, max_attempts int, run_at timestamptz,
                   delay_microseconds bigint, timeout_seconds float8, expires_microseconds bigint,
                   idempotency_key text, tags text[], "unique" jsonb
               )
         cross join lateral (
            select cast(r."unique" ->> 'period_microseconds' as bigint) as period_microseconds
         ) p
       ) i;
    if exists (
        select
          from jsonb_to_recordset(jobs) as i (expires_at timestamptz)
         where i.expires_at < timestamptz '1970-01-01 00:00+00'
    ) then
        raise exception 'expires_at: must not be before the year 1970' using errcode = 'invalid_parameter_value';
    end if;
end
$$;

create or replace function fencepost.enqueue_jobs(jobs jsonb, wake boolean default true, whole boolean default true) returns jsonb
language plpgsql volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
-- Stores jobs, in whatever transaction it is called in. What the library calls; for people there is enqueue.
--
-- jobs is an array of objects: id (a UUIDv7), type, queue (or queue_id, of a queue and lane that are known), payload,
-- priority, max_attempts, timeout_seconds, run_at or delay_microseconds, request_id, tags, metadata, trace_context,
-- expires_at or expires_microseconds, idempotency_key with schedule (the times as asked for, in words: what else a
-- repeated request must repeat), and unique: an object of key, until, mode, period_microseconds.
-- wake: whether to notify workers of what is due soon.
--
-- Returns created_at, and differing: an array of what became of those jobs that were not just stored, with place (from
-- 0), id and effect: replayed, skipped, rescheduled (id is the job that is there), replaced (id is the new job),
-- conflict or key_gone (the idempotency key belongs to another request, or is being removed). With one of the last two
-- nothing at all is stored and nothing changed, and the caller's transaction can go on. quiet is there when no job was
-- stored or moved.
--
-- Acts as the owner. What it demands of a role that can't insert jobs by itself is in check_strangers.
--
-- whole: false is for jobs of several callers in a transaction of its own. Then one that is refused leaves the others
-- stored, and a key that another open transaction holds isn't waited for: the call fails with lock_not_available.
--
-- Locks: what store_keyed and store_unique say. The clock is read when this transaction has its id: a claim that passes
-- run_at without seeing the row knows whom to wait for.
declare
    moment timestamptz;
    place record;
    places jsonb;
    answers jsonb := '[]';
    refused jsonb;
    answer jsonb;
begin
    -- What workers could not read. The rest is up to the library, which checks more and says it better.
    if jobs @? '$[*].tags.type() ? (@ != "array" && @ != "null")'
        or jobs @? '$[*] ? (@.tags.type() == "array").tags[*].type() ? (@ != "string")'
    then
        raise exception 'tags: must be an array of texts, in one dimension' using errcode = 'invalid_parameter_value';
    end if;
    if jobs @? '$[*].metadata.type() ? (@ != "object" && @ != "null")' then
        raise exception 'metadata: must be a JSON object' using errcode = 'invalid_parameter_value';
    end if;
    -- Who may insert jobs by itself. Inside a function that acts as the owner, current_user is the owner.
    if not has_table_privilege(
        cast(coalesce(nullif(current_setting('role'), 'none'), session_user) as name), 'fencepost.jobs'::regclass, 'insert'
    ) then
        perform fencepost.check_strangers(jobs);
    elsif jobs @? '$[*].queue_id ? (@ != null)' then
        select p.*
          into place
          from (
            select distinct i.queue_id, coalesce(i.priority, 0) as priority
              from jsonb_to_recordset(jobs) as i (queue_id int, priority smallint)
             where i.queue_id is not null
          ) p
         where not exists (
            select from fencepost.lanes l where l.queue_id = p.queue_id and l.priority = p.priority
         )
         limit 1;
        if found then
            raise exception 'queue_id: there is no queue % with a lane of priority %, so nobody would look there',
                place.queue_id, place.priority
                using errcode = 'invalid_parameter_value';
        end if;
    end if;
    perform pg_current_xact_id();
    moment := clock_timestamp();
    if jobs @? '$[*] ? (exists (@.queue) || exists (@.idempotency_key) || exists (@.unique))' then
        if not whole then
            perform set_config('lock_timeout', '100ms', true);
        end if;
        places := fencepost.places_of(jobs);
        if not whole or not jobs @? '$[*].idempotency_key' then
            answers := fencepost.store_keyed(jobs, places, moment);
        else
            begin
                answers := fencepost.store_keyed(jobs, places, moment);
                refused := jsonb_path_query_array(answers, '$[*] ? (@.effect == "conflict" || @.effect == "key_gone")');
                if jsonb_array_length(refused) > 0 then
                    raise exception using errcode = 'FP001', message = 'undo';
                end if;
            exception when sqlstate 'FP001' then
                -- Variables are not undone.
                return jsonb_build_object('created_at', moment, 'differing', refused, 'quiet', true);
            end;
        end if;
    else
        perform fencepost.store_jobs(jobs, null, moment, null);
    end if;
    if wake then
        perform fencepost.wake_up(jobs, places, moment, answers);
    end if;
    answer := jsonb_build_object('created_at', moment, 'differing', answers);
    if jsonb_array_length(answers) = jsonb_array_length(jobs)
        and not answers @? '$[*] ? (@.effect == "replaced" || @.run_at != null)'
    then
        answer := answer || jsonb '{"quiet": true}';
    end if;
    return answer;
end
$$;

alter function fencepost.watch_range(timestamptz) security definer;
alter function fencepost.drop_range(timestamptz, int, bigint) security definer;
alter function fencepost.enqueue(
    text, jsonb, text, int, int, timestamptz, interval, interval, interval, text, text, text, interval, text, text[], jsonb
) security definer;

revoke execute on function fencepost.check_strangers(jsonb) from public;
