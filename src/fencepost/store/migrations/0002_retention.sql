-- What retention needs: how far each range has been surveyed, which jobs outlive theirs, and what drops a range.
--
-- Locks: idempotency_keys against writes while its index is built (a second for a million keys), partitions for an
-- instant; otherwise creates only.

alter table fencepost.partitions
    add column surveyed_to uuid,
    add column expired bigint not null default 0,
    add column pruned_at timestamptz;
comment on column fencepost.partitions.surveyed_to is 'Set once what ends in this old range is watched: finished jobs up to this id have been looked at.';
comment on column fencepost.partitions.expired is 'How many of those are past their time.';
comment on column fencepost.partitions.pruned_at is 'When what is past its time was last deleted from it, since too much must stay for it to be dropped.';

create table fencepost.survivors (
    id uuid primary key
);
comment on table fencepost.survivors is 'Finished jobs that a survey found, or that ended since: their range is not dropped without moving them out first.';

-- From a job to its key, and keys in order of age. Costs requests with a key a little, and others nothing.
create index idempotency_keys_job on fencepost.idempotency_keys (job_id);

create function fencepost.is_expired(status text, finished_at timestamptz, keep jsonb) returns bool
language sql stable parallel safe
as $$
    -- Whether a finished job is past its time. keep has the seconds for each status; what isn't in it is kept for ever.
    select coalesce(finished_at < now() - make_interval(secs => cast(keep ->> status as float8)), false)
$$;

create function fencepost.retention_turn() returns bool
language sql volatile
as $$
    -- Whether this transaction is the only one that prunes this schema. Each step asks; who hears no leaves it to others.
    select pg_try_advisory_xact_lock(hashtextextended('retention of ' || 'fencepost.jobs'::regclass::oid, 0))
$$;

create function fencepost.part_suffix(range_start timestamptz) returns text
language sql stable parallel safe
as $$
    -- How ensure_partitions ends the names of a range's three partitions.
    select to_char(range_start at time zone 'UTC', '_YYYYMMDD"t"HH24MI')
$$;

create function fencepost.note_survivor() returns trigger
language plpgsql
set search_path = pg_catalog
as $$
begin
    insert into fencepost.survivors (id) values (new.id) on conflict do nothing;
    return null;
end
$$;

create function fencepost.watch_range(range_start timestamptz) returns bool
language plpgsql
set search_path = pg_catalog
as $$
-- Has every job that ends in an old range from now on noted as a survivor, so that a survey which takes many
-- statements misses none. Returns false when another process is pruning.
--
--     survey                              a job of that range, created long ago
--                                         ends; commits
--     watch_range: waits for open
--     transactions that ended jobs here
--     looks at ids up to x                (committed before: the survey meets it)
--                                         ends under an id below x: noted by the trigger
--     looks at the rest
--
-- Locks: share row exclusive on the range's partition of finished, for an instant. Only jobs that end in this old
-- range meet it. When it isn't to be had at once it fails, and is tried again later.
begin
    perform set_config('lock_timeout', '100ms', true);
    if not fencepost.retention_turn() then
        return false;
    end if;
    perform from fencepost.partitions p where p.starts_at = range_start and p.surveyed_to is null for update;
    if found then
        execute format(
            'create trigger note_survivor after insert on fencepost.%I for each row execute function fencepost.note_survivor()',
            'finished' || fencepost.part_suffix(range_start)
        );
        update fencepost.partitions p
           set surveyed_to = uuid '00000000-0000-0000-0000-000000000000'
         where p.starts_at = range_start;
    end if;
    return true;
end
$$;

create function fencepost.survivors_of(low uuid, high uuid, at_most int) returns uuid[]
language sql volatile
as $$
    -- The jobs of a surveyed range that must outlive it, one more than at_most at the most: those that haven't ended,
    -- those that the survey noted, and those that ended since it began.
    select array(
        (select p.id from fencepost.pending p where p.id >= low and p.id < high limit at_most + 1)
        union
        (select l.id from fencepost.leases l where l.id >= low and l.id < high limit at_most + 1)
        union
        (select s.id from fencepost.survivors s where s.id >= low and s.id < high limit at_most + 1)
        limit at_most + 1
    )
$$;

create function fencepost.bytes_of(low uuid, high uuid, ids uuid[]) returns bigint
language sql volatile
as $$
    -- How much of a range has to be written again to move these of its jobs elsewhere, but for what is the same in all.
    select (
        select coalesce(sum(pg_column_size(j.payload)), 0)
          from fencepost.jobs j
         where j.id >= low and j.id < high and j.id = any (ids)
    ) + (
        select coalesce(sum(coalesce(pg_column_size(f.result), 0)), 0)
          from fencepost.finished f
         where f.id >= low and f.id < high and f.id = any (ids)
    ) + (
        select coalesce(sum(200 + coalesce(pg_column_size(a.error), 0) + coalesce(pg_column_size(a.traceback), 0)), 0)
          from fencepost.attempts a
         where a.id >= low and a.id < high and a.id = any (ids)
    )
$$;

create function fencepost.drop_range(range_start timestamptz, most_jobs int, most_bytes bigint)
returns table (outcome text, removed bigint, moved int)
language plpgsql
set search_path = pg_catalog
as $$
-- Drops the three partitions of a range that was surveyed to its end; its survivors go to the default partitions.
--
-- Returns: outcome 'dropped', with how many jobs went and how many were moved; 'many' when more than most_jobs or
-- most_bytes would have to be moved; 'busy' when another process is pruning; 'not ready' for a range that isn't
-- surveyed, isn't past, or isn't there any more.
--
-- Locks: access exclusive on the three tables, on the range's partitions and on the default ones, all in 100 ms or
-- not at all: whoever waits for such a lock holds up everybody behind it. finished comes first and jobs last, as in
-- turn.sql. Statements that take them the other way round (read_jobs.sql, recover.sql) can stand in the way, and then
-- this function gives up before PostgreSQL would even look for a deadlock. Detaching concurrently isn't possible: there
-- are default partitions. With the locks in hand, everything takes as long as moving the survivors, some 20 ms.
--
-- Rows can't be moved first and the range detached later, since the default partitions refuse ids that a range is there
-- for; so it is one transaction. Nobody sees a state in between:
--
--     drop_range                          claim, settlement, retry, cancellation, read
--                                         began before: holds its locks to the end of its transaction
--     waits, at most 100 ms
--     has all locks; counts the
--     survivors again, in a new
--     snapshot: nothing moves now
--                                         comes now: waits for its tables, before it takes its snapshot
--     detaches, moves, drops, commits
--                                         finds the job in a default partition, where it works like all others
--
-- A transaction of several statements that reads one snapshot may take that before it waits. It can miss moved jobs in
-- this one read (a page of a list); no statement that changes a job works like that.
declare
    span fencepost.partitions;
    low uuid;
    high uuid;
    kept uuid[];
    suffix text := fencepost.part_suffix(range_start);
    parent text;
    relation text;
    give_up_at timestamptz;
begin
    outcome := 'not ready';
    removed := 0;
    moved := 0;
    perform set_config('lock_timeout', '100ms', true);
    if not fencepost.retention_turn() then
        outcome := 'busy';
        return next;
        return;
    end if;
    perform pg_advisory_xact_lock(hashtextextended('partitions of ' || 'fencepost.jobs'::regclass::oid, 0));
    select p.* into span from fencepost.partitions p where p.starts_at = range_start for update;
    low := fencepost.first_id_at(span.starts_at);
    high := fencepost.first_id_at(span.ends_at);
    if span.ends_at is null or span.ends_at > clock_timestamp() or span.surveyed_to is distinct from high then
        return next;
        return;
    end if;
    -- Asked twice, so that a range which can't be dropped holds nobody up.
    kept := fencepost.survivors_of(low, high, most_jobs);
    if cardinality(kept) > most_jobs or fencepost.bytes_of(low, high, kept) > most_bytes then
        outcome := 'many';
        return next;
        return;
    end if;
    give_up_at := clock_timestamp() + interval '100 ms';
    foreach relation in array array[
        'finished', 'attempts', 'jobs', 'finished' || suffix, 'attempts' || suffix, 'jobs' || suffix,
        'finished_default', 'attempts_default', 'jobs_default'
    ] loop
        perform set_config(
            'lock_timeout',
            greatest(1, floor(extract(epoch from give_up_at - clock_timestamp()) * 1000))::int || 'ms',
            true
        );
        execute format('lock table only fencepost.%I in access exclusive mode', relation);
    end loop;
    kept := fencepost.survivors_of(low, high, most_jobs);
    if cardinality(kept) > most_jobs or fencepost.bytes_of(low, high, kept) > most_bytes then
        outcome := 'many';
        return next;
        return;
    end if;
    foreach parent in array array['finished', 'attempts', 'jobs'] loop
        execute format('alter table fencepost.%I detach partition fencepost.%I', parent, parent || suffix);
        execute format(
            'insert into fencepost.%I select p.* from fencepost.%I p where p.id = any ($1)',
            parent || '_default', parent || suffix
        ) using kept;
        get diagnostics moved = row_count;
        execute format('drop table fencepost.%I', parent || suffix);
    end loop;
    delete from fencepost.survivors s where s.id >= low and s.id < high;
    delete from fencepost.partitions p where p.starts_at = range_start;
    outcome := 'dropped';
    removed := span.expired;
    return next;
end
$$;
