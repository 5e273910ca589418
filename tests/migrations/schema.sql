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
