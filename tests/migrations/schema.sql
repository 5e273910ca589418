table attempts
    partition by RANGE (id)
    -- Attempts that did not succeed, under their tokens: the attempt number starts again after a manual retry, the token never does.
    id uuid not null
    queue_id integer not null
    token bigint not null
    attempt smallint not null
    outcome text not null
    worker_id uuid not null
    started_at timestamp with time zone not null
    ended_at timestamp with time zone not null
    error_type text
    error text
    traceback text
    constraint attempts_outcome_check CHECK ((outcome = ANY (ARRAY['failed'::text, 'timed_out'::text, 'permanent'::text, 'cancelled'::text, 'released'::text, 'lost'::text])))
    constraint attempts_pkey PRIMARY KEY (id, queue_id, token)

table attempts_default
    partition of attempts DEFAULT
    id uuid not null
    queue_id integer not null
    token bigint not null
    attempt smallint not null
    outcome text not null
    worker_id uuid not null
    started_at timestamp with time zone not null
    ended_at timestamp with time zone not null
    error_type text
    error text
    traceback text
    constraint attempts_outcome_check CHECK ((outcome = ANY (ARRAY['failed'::text, 'timed_out'::text, 'permanent'::text, 'cancelled'::text, 'released'::text, 'lost'::text])))
    constraint attempts_default_pkey PRIMARY KEY (id, queue_id, token)

table finished
    partition by RANGE (id)
    -- Status completed, failed, dead_letter or cancelled. Partitioned like jobs.
    id uuid not null
    queue_id integer not null
    status text not null
    attempts smallint not null
    token bigint not null
    started_at timestamp with time zone -- When the last attempt started; null when it never ran.
    finished_at timestamp with time zone not null
    result jsonb
    constraint finished_check CHECK (((result IS NULL) OR (status = 'completed'::text)))
    constraint finished_status_check CHECK ((status = ANY (ARRAY['completed'::text, 'failed'::text, 'dead_letter'::text, 'cancelled'::text])))
    constraint finished_pkey PRIMARY KEY (id, queue_id)
    CREATE INDEX finished_unsuccessful ON ONLY fencepost.finished USING btree (status, id) WHERE (status <> 'completed'::text)

table finished_default
    partition of finished DEFAULT
    id uuid not null
    queue_id integer not null
    status text not null
    attempts smallint not null
    token bigint not null
    started_at timestamp with time zone
    finished_at timestamp with time zone not null
    result jsonb
    constraint finished_check CHECK (((result IS NULL) OR (status = 'completed'::text)))
    constraint finished_status_check CHECK ((status = ANY (ARRAY['completed'::text, 'failed'::text, 'dead_letter'::text, 'cancelled'::text])))
    constraint finished_default_pkey PRIMARY KEY (id, queue_id)
    CREATE INDEX finished_default_status_id_idx ON fencepost.finished_default USING btree (status, id) WHERE (status <> 'completed'::text)

table idempotency_keys
    -- One key, one job.
    key text not null
    job_id uuid not null
    queue_id integer not null
    schedule text not null -- The due time as asked for, so that a repeated request can be told from another one.
    created_at timestamp with time zone not null default clock_timestamp()
    constraint idempotency_keys_key_check CHECK (((octet_length(key) >= 1) AND (octet_length(key) <= 255)))
    constraint idempotency_keys_pkey PRIMARY KEY (key)
    CREATE INDEX idempotency_keys_job ON fencepost.idempotency_keys USING btree (job_id)

table jobs
    partition by RANGE (id)
    -- What was asked for. Written once; partitioned by id, which is a UUIDv7, so by time of creation.
    id uuid not null
    queue_id integer not null
    type text not null
    priority smallint not null
    payload jsonb not null
    max_attempts smallint not null
    timeout_seconds double precision
    idempotency_key text
    request_id text
    created_at timestamp with time zone not null
    constraint jobs_max_attempts_check CHECK (((max_attempts >= 1) AND (max_attempts <= 100)))
    constraint jobs_priority_check CHECK (((priority >= 0) AND (priority <= 100)))
    constraint jobs_timeout_seconds_check CHECK ((timeout_seconds > (0)::double precision))
    constraint jobs_pkey PRIMARY KEY (id, queue_id)

table jobs_default
    partition of jobs DEFAULT
    id uuid not null
    queue_id integer not null
    type text not null
    priority smallint not null
    payload jsonb not null
    max_attempts smallint not null
    timeout_seconds double precision
    idempotency_key text
    request_id text
    created_at timestamp with time zone not null
    constraint jobs_max_attempts_check CHECK (((max_attempts >= 1) AND (max_attempts <= 100)))
    constraint jobs_priority_check CHECK (((priority >= 0) AND (priority <= 100)))
    constraint jobs_timeout_seconds_check CHECK ((timeout_seconds > (0)::double precision))
    constraint jobs_default_pkey PRIMARY KEY (id, queue_id)

table lanes
    -- The priorities in use in a queue. Jobs of one lane are taken in order of run_at; lanes are merged at claim time.
    queue_id integer not null
    priority smallint not null
    constraint lanes_pkey PRIMARY KEY (queue_id, priority)

table leases
    -- Status processing: the attempt that holds (id, token) may end it, or recovery once locked_until has passed.
    id uuid not null
    queue_id integer not null
    priority smallint not null
    attempt smallint not null
    token bigint not null
    worker_id uuid not null
    started_at timestamp with time zone not null
    locked_until timestamp with time zone not null
    cancel_requested_at timestamp with time zone
    constraint leases_check CHECK ((locked_until > started_at))
    constraint leases_pkey PRIMARY KEY (id, queue_id)
    CREATE INDEX leases_expiry ON fencepost.leases USING btree (queue_id, locked_until) WHERE (locked_until IS NOT NULL)

table partitions
    -- The time ranges for which jobs, finished and attempts have a partition each.
    starts_at timestamp with time zone not null
    ends_at timestamp with time zone not null
    surveyed_to uuid -- Set once what ends in this old range is watched: finished jobs up to this id have been looked at.
    expired bigint not null default 0 -- How many of those are past their time.
    pruned_at timestamp with time zone -- When what is past its time was last deleted from it, since too much must stay for it to be dropped.
    constraint partitions_check CHECK ((ends_at > starts_at))
    constraint partitions_pkey PRIMARY KEY (starts_at)

table pending
    -- Status pending: claimable from run_at on.
    id uuid not null
    queue_id integer not null
    priority smallint not null
    attempts smallint not null -- Attempts already spent.
    token bigint not null -- The last lease token given out for this job; the next claim takes one more.
    run_at timestamp with time zone not null -- Never before the clock_timestamp() of the insert: the claim cursors rest on that.
    constraint pending_pkey PRIMARY KEY (id, queue_id)
    CREATE INDEX pending_lane ON fencepost.pending USING btree (queue_id, priority, run_at, id) WHERE (run_at IS NOT NULL)

table queues
    -- Known queues. A queue exists from its first job on.
    id integer not null generated always as identity
    name text not null
    paused_at timestamp with time zone -- Set while nothing may be claimed from it.
    created_at timestamp with time zone not null default clock_timestamp()
    constraint queues_name_check CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 100)))
    constraint queues_pkey PRIMARY KEY (id)
    constraint queues_name_key UNIQUE (name)

sequence queues_id_seq

table schema_version
    number integer not null
    name text not null
    checksum text not null
    breaking boolean not null
    applied_at timestamp with time zone not null default clock_timestamp()
    constraint schema_version_pkey PRIMARY KEY (number)

table survivors
    -- Finished jobs that a survey found, or that ended since: their range is not dropped without moving them out first.
    id uuid not null
    constraint survivors_pkey PRIMARY KEY (id)

table workers
    -- Live worker processes. For people: no claim depends on it.
    id uuid not null
    host text not null
    pid integer not null
    version text not null
    slots integer not null
    started_at timestamp with time zone not null default clock_timestamp()
    heartbeat_at timestamp with time zone not null default clock_timestamp()
    constraint workers_pkey PRIMARY KEY (id)

function bytes_of(low uuid, high uuid, ids uuid[]) returns bigint
    sql, volatile, parallel unsafe
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

function drop_range(range_start timestamp with time zone, most_jobs integer, most_bytes bigint) returns TABLE(outcome text, removed bigint, moved integer)
    plpgsql, volatile, parallel unsafe, search_path=pg_catalog
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

function ensure_partitions(width interval, ahead integer) returns integer
    plpgsql, volatile, parallel unsafe, search_path=pg_catalog
    -- Makes the partitions that ids of the coming `ahead` × `width` will need; returns how many ranges were new.
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

function first_id_at(moment timestamp with time zone) returns uuid
    sql, immutable, parallel safe
    -- The smallest UUIDv7 that can be made at a moment: its milliseconds in the first 48 bits.
        select rpad(lpad(to_hex(floor(extract(epoch from moment) * 1000)::bigint), 12, '0'), 32, '0')::uuid

function is_expired(status text, finished_at timestamp with time zone, keep jsonb) returns boolean
    sql, stable, parallel safe
    -- Whether a finished job is past its time. keep has the seconds for each status; what isn't in it is kept for ever.
        select coalesce(finished_at < now() - make_interval(secs => cast(keep ->> status as float8)), false)

function note_survivor() returns trigger
    plpgsql, volatile, parallel unsafe, search_path=pg_catalog
    begin
        insert into fencepost.survivors (id) values (new.id) on conflict do nothing;
        return null;
    end

function part_suffix(range_start timestamp with time zone) returns text
    sql, stable, parallel safe
    -- How ensure_partitions ends the names of a range's three partitions.
        select to_char(range_start at time zone 'UTC', '_YYYYMMDD"t"HH24MI')

function retention_turn() returns boolean
    sql, volatile, parallel unsafe
    -- Whether this transaction is the only one that prunes this schema. Each step asks; who hears no leaves it to others.
        select pg_try_advisory_xact_lock(hashtextextended('retention of ' || 'fencepost.jobs'::regclass::oid, 0))

function survivors_of(low uuid, high uuid, at_most integer) returns uuid[]
    sql, volatile, parallel unsafe
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

function watch_range(range_start timestamp with time zone) returns boolean
    plpgsql, volatile, parallel unsafe, search_path=pg_catalog
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
