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

table job_types
    -- Job types that some process knows. A worker that meets one it does not know leaves it to others, if it is here.
    name text not null
    declared_at timestamp with time zone not null default clock_timestamp() -- Said again each minute by processes that live; what was not said for a day is removed.
    constraint job_types_pkey PRIMARY KEY (name)

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
    unique_key text -- As asked for. Which job holds a key is in unique_keys.
    tags text[]
    metadata jsonb
    trace_context text
    expires_at timestamp with time zone -- Not started by then, it is never started.
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
    unique_key text
    tags text[]
    metadata jsonb
    trace_context text
    expires_at timestamp with time zone
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
    p fillfactor=90
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
    progress jsonb -- What the handler said last of how far it is. Gone when the attempt ends.
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
    surveyed_for jsonb -- The times for which its survey is made: seconds by status. For others it begins anew.
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

table unique_keys
    -- The last job stored under a unique key. Whether it stands in the way of another is told by where it is; nothing but an enqueue, a retry by hand and retention ever writes here.
    type text not null
    key text not null
    job_id uuid not null
    queue_id integer not null
    until text not null -- started: while it is pending and has not begun; finished: while it is pending or processing; period: until expires_at.
    expires_at timestamp with time zone
    constraint unique_keys_check CHECK (((until = 'period'::text) = (expires_at IS NOT NULL)))
    constraint unique_keys_key_check CHECK (((octet_length(key) >= 1) AND (octet_length(key) <= 255)))
    constraint unique_keys_until_check CHECK ((until = ANY (ARRAY['started'::text, 'finished'::text, 'period'::text])))
    constraint unique_keys_pkey PRIMARY KEY (type, key)

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

function cancel_waiting(waiting uuid, its_queue integer, kind text, reason text) returns void
    plpgsql, volatile, parallel unsafe, search_path=pg_catalog, pg_temp
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

function check_job(type text, payload jsonb, queue text, priority integer, max_attempts integer, run_at timestamp with time zone, delay interval, timeout interval, expires interval, idempotency_key text, tags text[], metadata jsonb) returns void
    plpgsql, stable, parallel unsafe, search_path=pg_catalog, pg_temp
    -- Raises invalid_parameter_value when an argument of enqueue can't be. The same limits as the API's.
    declare
        a_name constant text := 'must be 1 to 100 of the characters A-Z a-z 0-9 _ . : - '
                                'and start with a letter, a digit or _, not ';
        wrong text;
        tag text;
    begin
        wrong := case
            when type is null or length(type) > 100 or type !~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]*$' then
                'type: ' || a_name || coalesce(quote_literal(left(type, 60)), 'null')
            when payload is null then
                'payload: must not be null; the JSON value null is jsonb ''null'' '
            when queue is null or length(queue) > 100 or queue !~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]*$' then
                'queue: ' || a_name || coalesce(quote_literal(left(queue, 60)), 'null')
            when priority is null or priority not between 0 and 100 then
                format('priority: must be a whole number from 0 to 100, not %s', coalesce(cast(priority as text), 'null'))
            when max_attempts is null or max_attempts not between 1 and 100 then
                format(
                    'max_attempts: must be a whole number from 1 to 100, not %s', coalesce(cast(max_attempts as text), 'null')
                )
            when run_at < timestamptz '1970-01-01 00:00+00' or run_at >= timestamptz '2100-01-01 00:00+00' then
                format('run_at: must be between the years 1970 and 2099, not %s', run_at)
            when run_at is not null and delay is not null then
                'delay: can''t be given together with run_at; use one of them'
            when delay < interval '0' or delay > interval '3650 days' then
                format('delay: must be from 0 to ten years, not %s', delay)
            when timeout < interval '1 ms' or timeout > interval '24 hours' then
                format('timeout: must be from 1ms to 24h, not %s', timeout)
            when expires < interval '1 ms' or expires > interval '3650 days' then
                format('expires: must be from 1ms to ten years, not %s', expires)
            when length(idempotency_key) > 255 or idempotency_key !~ '^[!-~]([ -~]*[!-~])?$' then
                'idempotency_key: must be 1 to 255 printable ASCII characters, not '
                || quote_literal(left(idempotency_key, 60))
            when cardinality(tags) > 20 then
                format('tags: must be at most 20, not %s', cardinality(tags))
            when jsonb_typeof(metadata) <> 'object' then
                'metadata: must be a JSON object'
            when octet_length(cast(metadata as text)) > 16384 then
                format(
                    'metadata: takes %s bytes; the limit is 16,384',
                    to_char(octet_length(cast(metadata as text)), 'FM999,999,999')
                )
        end;
        foreach tag in array coalesce(tags, '{}') loop
            if tag is null or octet_length(tag) not between 1 and 100 or not fencepost.is_printable(tag) then
                wrong := coalesce(
                    wrong,
                    'tags: must each be 1 to 100 bytes of printable text, not '
                    || coalesce(quote_literal(left(tag, 60)), 'null')
                );
            end if;
        end loop;
        if wrong is not null then
            raise exception using errcode = 'invalid_parameter_value', message = trim(wrong);
        end if;
    end

function check_strangers(jobs jsonb) returns void
    plpgsql, stable, parallel unsafe, search_path=pg_catalog, pg_temp, enable_seqscan=off
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

function check_unique(key text, asked_until text, until text, period interval, mode text) returns void
    plpgsql, stable, parallel unsafe, search_path=pg_catalog, pg_temp
    -- Raises invalid_parameter_value when what enqueue is told about a unique key can't be.
    declare
        wrong text;
    begin
        wrong := case
            when key is null and asked_until is not null then 'unique_until: needs a unique_key'
            when key is null and period is not null then 'unique_period: needs a unique_key'
            when key is null and mode is not null then 'unique_mode: needs a unique_key'
            when octet_length(key) not between 1 and 255 or not fencepost.is_printable(key) then
                'unique_key: must be 1 to 255 bytes of printable text, not ' || quote_literal(left(key, 60))
            when until not in ('started', 'finished', 'period') then
                'unique_until: must be one of started, finished, period, not ' || quote_literal(left(until, 60))
            when until = 'period' and period is null then
                'unique_period: is needed with unique_until period'
            when until <> 'period' and period is not null then
                'unique_period: can''t be given together with unique_until ' || until
            when period < interval '1 ms' or period > interval '3650 days' then
                format('unique_period: must be from 1ms to ten years, not %s', period)
            when mode not in ('skip', 'replace', 'earliest', 'latest') then
                'unique_mode: must be one of skip, replace, earliest, latest, not ' || quote_literal(left(mode, 60))
        end;
        if wrong is not null then
            raise exception using errcode = 'invalid_parameter_value', message = wrong;
        end if;
    end

function complete(attempt jsonb) returns boolean
    sql, volatile, parallel unsafe, search_path=pg_catalog, pg_temp, enable_seqscan=off
    -- End a running attempt as completed, in the caller's own transaction: the job is completed if that commits, and
        -- still runs if it doesn't.
        --
        -- Takes an object with id, queue_id and token, which name the attempt, and its result. Returns false, and has
        -- written nothing, when the attempt has lost its lease.
        -- Index: leases' primary key. Locks: the lease, until the transaction ends; whoever else wants it (a settlement,
        -- an extension, a recovery) passes it over meanwhile.
        with gone as (
            delete from fencepost.leases l
             where l.id = cast(complete.attempt ->> 'id' as uuid)
               and l.queue_id = cast(complete.attempt ->> 'queue_id' as int)
               and l.token = cast(complete.attempt ->> 'token' as bigint)
            returning l.id, l.queue_id, l.attempt as spent, l.token, l.started_at
        ),
        ended as (
            insert into fencepost.finished (id, queue_id, status, attempts, token, started_at, finished_at, result)
            select g.id, g.queue_id, 'completed', g.spent, g.token, g.started_at, clock_timestamp(),
                   nullif(complete.attempt -> 'result', jsonb 'null')
              from gone g
            returning id
        )
        select exists (select from ended e)

function drop_range(range_start timestamp with time zone, most_jobs integer, most_bytes bigint) returns TABLE(outcome text, removed bigint, moved integer)
    plpgsql, volatile, parallel unsafe, security definer, search_path=pg_catalog, pg_temp
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

function enqueue(type text, payload jsonb, queue text, priority integer, max_attempts integer, run_at timestamp with time zone, delay interval, timeout interval, expires interval, idempotency_key text, unique_key text, unique_until text, unique_period interval, unique_mode text, tags text[], metadata jsonb) returns uuid
    plpgsql, volatile, parallel unsafe, security definer, search_path=pg_catalog, pg_temp
    -- Stores one job in the caller's transaction: it is there when that commits, and not at all if it rolls back.
    --
    -- Returns the id of the job, or of the one that is there already under the idempotency key or the unique key. Raises
    -- 22023 (invalid_parameter_value) with a message that begins with the argument's name, and FP001 when the idempotency
    -- key was used for another request. Locks: what enqueue_jobs says.
    declare
        job jsonb;
        answer jsonb;
        until text := coalesce(unique_until, case when unique_period is null then 'finished' else 'period' end);
    begin
        if array_ndims(tags) > 1 then
            raise exception 'tags: must be an array of one dimension, not %', array_ndims(tags)
                using errcode = 'invalid_parameter_value';
        end if;
        -- One that is there twice counts once.
        tags := (
            select array_agg(t.tag order by t.place)
              from (
                select a.tag, min(a.place) as place
                  from unnest(enqueue.tags) with ordinality as a (tag, place)
                 group by a.tag
              ) t
        );
        perform fencepost.check_job(
            type, payload, queue, priority, max_attempts, run_at, delay, timeout, expires, idempotency_key, tags, metadata
        );
        perform fencepost.check_unique(unique_key, unique_until, until, unique_period, unique_mode);
        job := jsonb_build_object(
            'id', fencepost.new_id(), 'queue', queue, 'type', type, 'payload', payload, 'priority', priority,
            'max_attempts', max_attempts, 'timeout_seconds', extract(epoch from timeout), 'run_at', run_at,
            'delay_microseconds', cast(extract(epoch from delay) * 1000000 as bigint), 'tags', tags,
            'metadata', metadata, 'expires_microseconds', cast(extract(epoch from expires) * 1000000 as bigint)
        );
        if unique_key is not null then
            job := job || jsonb_build_object(
                'unique',
                jsonb_build_object(
                    'key', unique_key, 'until', until, 'mode', coalesce(unique_mode, 'skip'), 'period_microseconds',
                    cast(extract(epoch from unique_period) * 1000000 as bigint)
                )
            );
        end if;
        if idempotency_key is not null then
            job := job || jsonb_build_object(
                'idempotency_key', idempotency_key, 'schedule',
                fencepost.schedule_of(run_at, delay, expires)
                || case when unique_key is null then ''
                        else format(
                            ', unique until %s%s, %s, by %s', until,
                            coalesce(' of ' || fencepost.seconds_of(unique_period) || 's', ''),
                            coalesce(unique_mode, 'skip'), unique_key
                        ) end
            );
        end if;
        for round in 1 .. 5 loop
            answer := fencepost.enqueue_jobs(jsonb_build_array(job)) -> 'differing' -> 0;
            if answer is null or answer ->> 'effect' not in ('conflict', 'key_gone') then
                return coalesce(answer ->> 'id', job ->> 'id');
            end if;
            exit when answer ->> 'effect' = 'conflict';
        end loop;
        if answer ->> 'effect' = 'key_gone' then
            raise exception 'idempotency_key: its job is being removed right now; try again'
                using errcode = 'serialization_failure';
        end if;
        raise exception 'idempotency_key: % already made job %; use a new key for a new request',
            quote_literal(idempotency_key),
            (answer ->> 'id')
            || case when answer ? 'gone' then ', which has ended and was removed since' else ' from another request' end
            using errcode = 'FP001';
    end

function enqueue_jobs(jobs jsonb, wake boolean, whole boolean) returns jsonb
    plpgsql, volatile, parallel unsafe, security definer, search_path=pg_catalog, pg_temp
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

function ensure_partitions(width interval, ahead integer) returns integer
    plpgsql, volatile, parallel unsafe, security definer, search_path=pg_catalog, pg_temp
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

function first_id_at(moment timestamp with time zone) returns uuid
    sql, immutable, parallel safe
    -- The smallest UUIDv7 that can be made at a moment: its milliseconds in the first 48 bits.
        select rpad(lpad(to_hex(floor(extract(epoch from moment) * 1000)::bigint), 12, '0'), 32, '0')::uuid

function is_expired(status text, finished_at timestamp with time zone, keep jsonb) returns boolean
    sql, stable, parallel safe
    -- Whether a finished job is past its time. keep has the seconds for each status; what isn't in it is kept for ever.
        select coalesce(finished_at < now() - make_interval(secs => cast(keep ->> status as float8)), false)

function is_printable(words text) returns boolean
    sql, immutable, parallel unsafe, search_path=pg_catalog, pg_temp
    -- No control characters, no invisible ones, no spaces but the plain one, none of private use: what Python calls
        -- printable, but for characters that are not assigned yet.
        select words !~ ('[\u0001-\u001f\u007f-\u00a0\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u1680\u180e'
                         '\u2000-\u200f\u2028-\u202f\u205f-\u2064\u2066-\u206f\u3000\ue000-\uf8ff\ufeff\ufff9-\ufffb'
                         '\U000110bd\U000110cd\U00013430-\U00013438\U0001bca0-\U0001bca3\U0001d173-\U0001d17a'
                         '\U000e0001-\U0010ffff]')

function make_part(parent text, range_start timestamp with time zone, range_end timestamp with time zone) returns void
    plpgsql, volatile, parallel unsafe, search_path=pg_catalog, pg_temp
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

function new_id() returns uuid
    sql, volatile, parallel unsafe, search_path=pg_catalog, pg_temp
    -- A UUIDv7 of this moment: 48 bits of milliseconds, 12 of their fraction, 62 random ones, as the library has it.
        select cast(
                   lpad(to_hex(micros / 1000), 12, '0') || '7' || lpad(to_hex(micros % 1000 * 4096 / 1000), 3, '0')
                   || right(replace(cast(gen_random_uuid() as text), '-', ''), 16) as uuid
               )
          from (select cast(floor(extract(epoch from clock_timestamp()) * 1000000) as bigint) as micros) clock

function note_survivor() returns trigger
    plpgsql, volatile, parallel unsafe, search_path=pg_catalog, pg_temp
    begin
        insert into fencepost.survivors (id) values (new.id) on conflict do nothing;
        return null;
    end

function part_suffix(range_start timestamp with time zone) returns text
    sql, stable, parallel safe
    -- How ensure_partitions ends the names of a range's three partitions.
        select to_char(range_start at time zone 'UTC', '_YYYYMMDD"t"HH24MI')

function places_of(jobs jsonb) returns jsonb
    plpgsql, volatile, parallel unsafe, search_path=pg_catalog, pg_temp
    -- The ids of the queues that jobs name, by name; queues and lanes that are new are made. For enqueue_jobs only.
    --
    -- A queue or a lane that another open transaction has just made is waited for. Both stay for ever, so that concerns
    -- the first job of each.
    declare
        known jsonb := '{}';
        place record;
        found_id int;
    begin
        for place in
            select distinct i.queue as name, coalesce(i.priority, 0) as priority
              from jsonb_to_recordset(jobs) as i (queue_id int, queue text, priority smallint)
             where i.queue_id is null
             order by 1, 2
        loop
            loop
                select q.id into found_id from fencepost.queues q where q.name = place.name;
                exit when found;
                insert into fencepost.queues (name) values (place.name) on conflict (name) do nothing;
            end loop;
            if not exists (select from fencepost.lanes l where l.queue_id = found_id and l.priority = place.priority) then
                insert into fencepost.lanes (queue_id, priority) values (found_id, place.priority) on conflict do nothing;
            end if;
            known := known || jsonb_build_object(place.name, found_id);
        end loop;
        return known;
    end

function replays(jobs jsonb, places jsonb, known integer[], unused jsonb) returns jsonb
    plpgsql, volatile, parallel unsafe, search_path=pg_catalog, pg_temp, enable_seqscan=off
    -- What the idempotency keys of some places have made, and whether those requests ask for the same again. unused: keys
    -- that the same call has let go of, since the request that took them made no job, with what to answer to that and to
    -- the same again; to another one the key is gone, and free. For enqueue_jobs only.
    --
    -- Payloads are compared as jsonb: order of keys, white space and spelling of numbers don't matter.
    declare
        answers jsonb;
    begin
        with asked as materialized (
            select cast(i.number - 1 as int) as place, o.place is not null as is_known, i.idempotency_key, i.type,
                   coalesce(i.queue_id, cast(places ->> i.queue as int)) as queue_id, coalesce(i.priority, 0) as priority,
                   coalesce(i.payload, jsonb 'null') as payload, i.max_attempts, i.timeout_seconds, i.tags, i.metadata,
                   i.schedule
              from rows from (
                       jsonb_to_recordset(jobs) as (
                           queue_id int, queue text, type text, priority smallint, payload jsonb, max_attempts smallint,
                           timeout_seconds float8, idempotency_key text, schedule text, tags text[], metadata jsonb
                       )
                   ) with ordinality as i (
                       queue_id, queue, type, priority, payload, max_attempts, timeout_seconds, idempotency_key, schedule,
                       tags, metadata, number
                   )
              left join unnest(known) as o (place) on o.place = i.number - 1
        )
        select coalesce(
                   jsonb_agg(
                       case when k.job_id is null and first.is_same then unused -> a.idempotency_key
                            else jsonb_strip_nulls(
                                jsonb_build_object(
                                    'id', k.job_id,
                                    'effect',
                                    case when k.job_id is null then 'key_gone'
                                         when first.is_same then 'replayed'
                                         else 'conflict' end,
                                    'gone', case when k.job_id is not null and first.is_same is null then true end
                                )
                            ) end
                       || jsonb_build_object('place', a.place)
                   ),
                   '[]'
               )
          into answers
          from asked a
          left join lateral (
            select k.job_id, k.queue_id, k.schedule
              from fencepost.idempotency_keys k
             where k.key = a.idempotency_key
             limit 1
          ) k on true
          left join lateral (
            select j.* from fencepost.jobs j where j.id = k.job_id and j.queue_id = k.queue_id limit 1
          ) j on true
          -- The request of this call that took the key and let go of it.
          left join asked f on f.idempotency_key = a.idempotency_key and not f.is_known and k.job_id is null
          left join lateral (
            select coalesce(
                       coalesce(j.type, f.type) = a.type
                       and coalesce(j.queue_id, f.queue_id) = a.queue_id
                       and coalesce(j.priority, f.priority) = a.priority
                       and coalesce(j.payload, f.payload) = a.payload
                       and coalesce(j.max_attempts, f.max_attempts) = a.max_attempts
                       and coalesce(j.timeout_seconds, f.timeout_seconds) is not distinct from a.timeout_seconds
                       and coalesce(j.tags, f.tags) is not distinct from a.tags
                       and coalesce(j.metadata, f.metadata) is not distinct from a.metadata
                       and coalesce(k.schedule, f.schedule) = a.schedule,
                       false
                   ) as is_same
             where j.id is not null
                or f.place is not null
          ) first on true
         where a.is_known;
        return answers;
    end

function retention_turn() returns boolean
    sql, volatile, parallel unsafe
    -- Whether this transaction is the only one that prunes this schema. Each step asks; who hears no leaves it to others.
        select pg_try_advisory_xact_lock(hashtextextended('retention of ' || 'fencepost.jobs'::regclass::oid, 0))

function schedule_of(run_at timestamp with time zone, delay interval, expires interval) returns text
    sql, stable, parallel unsafe, search_path=pg_catalog, pg_temp
    -- The times as asked for, in the words that the library uses, so that either may repeat the other's key.
        select case when run_at is not null
                    then 'at ' || to_char(run_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS')
                         || case when cast(extract(microseconds from run_at) as int) % 1000000 = 0 then ''
                                 else to_char(run_at at time zone 'UTC', '.US') end
                         || '+00:00'
                    when delay is not null then 'in ' || fencepost.seconds_of(delay) || 's'
                    else 'now' end
               || coalesce(', expires in ' || fencepost.seconds_of(expires) || 's', '')

function seconds_of(length interval) returns text
    sql, stable, parallel unsafe, search_path=pg_catalog, pg_temp
    -- As Python writes a float.
        select case when seconds like '%.%' or seconds like '%e%' then seconds else seconds || '.0' end
          from (select cast(cast(extract(epoch from length) as float8) as text) as seconds) s

function store_jobs(jobs jsonb, places jsonb, moment timestamp with time zone, left_out integer[]) returns void
    plpgsql, volatile, parallel unsafe, search_path=pg_catalog, pg_temp
    -- Stores all jobs but those at the places left_out (null: all of them), at a moment of the clock at which this
    -- transaction had its id already. For enqueue_jobs only.
    begin
        with accepted as materialized (
            select coalesce(i.queue_id, cast(store_jobs.places ->> i.queue as int)) as queue_id, i.id, i.type,
                   coalesce(i.priority, 0) as priority, i.payload, i.max_attempts, i.timeout_seconds, i.idempotency_key,
                   i.request_id, i.unique ->> 'key' as unique_key, i.tags, i.metadata, i.trace_context, i.run_at,
                   i.delay_microseconds, i.expires_at, i.expires_microseconds
              from rows from (
                       jsonb_to_recordset(store_jobs.jobs) as (
                           id uuid, queue_id int, queue text, type text, priority smallint, payload jsonb,
                           max_attempts smallint, timeout_seconds float8, run_at timestamptz, delay_microseconds bigint,
                           idempotency_key text, request_id text, "unique" jsonb, tags text[], metadata jsonb,
                           trace_context text, expires_at timestamptz, expires_microseconds bigint
                       )
                   ) with ordinality as i (
                       id, queue_id, queue, type, priority, payload, max_attempts, timeout_seconds, run_at,
                       delay_microseconds, idempotency_key, request_id, "unique", tags, metadata, trace_context, expires_at,
                       expires_microseconds, number
                   )
             where not exists (select from unnest(left_out) as o (place) where o.place = i.number - 1)
        ),
        stored as (
            insert into fencepost.jobs (
                id, queue_id, type, priority, payload, max_attempts, timeout_seconds, idempotency_key, request_id,
                created_at, unique_key, tags, metadata, trace_context, expires_at
            )
            -- A payload of null arrives as SQL's.
            select a.id, a.queue_id, a.type, a.priority, coalesce(a.payload, jsonb 'null'), a.max_attempts,
                   a.timeout_seconds, a.idempotency_key, a.request_id, moment, a.unique_key, a.tags, a.metadata,
                   a.trace_context,
                   coalesce(
                       case when a.expires_at < timestamptz '9999-01-01 00:00+00' then a.expires_at end,
                       case when a.expires_at is not null then timestamptz '9999-01-01 00:00+00' end,
                       moment + a.expires_microseconds * interval '1 microsecond'
                   )
              from accepted a
        )
        insert into fencepost.pending (id, queue_id, priority, attempts, token, run_at)
        select a.id, a.queue_id, a.priority, 0, 0,
               -- Not beyond what clients can read.
               least(
                   greatest(coalesce(a.run_at, moment + a.delay_microseconds * interval '1 microsecond'), moment),
                   timestamptz '9999-01-01 00:00+00'
               )
          from accepted a;
    end

function store_keyed(jobs jsonb, places jsonb, moment timestamp with time zone) returns jsonb
    plpgsql, volatile, parallel unsafe, search_path=pg_catalog, pg_temp
    -- Stores jobs of which some have an idempotency key or a unique one. For enqueue_jobs only.
    --
    -- Returns an array of what became of those that were not just stored: place, id, effect.
    --
    -- Locks: keys, in their order, idempotency keys first, so that two calls with the same keys can't deadlock. A key
    -- that another open transaction holds is waited for.
    declare
        known int[];
        contested int[];
        answers jsonb := '[]';
        unused jsonb := '{}';
        item record;
        answer jsonb;
    begin
        with asked as (
            select i.number - 1 as place, i.id, i.queue_id, i.queue, i.idempotency_key, i.schedule
              from rows from (
                       jsonb_to_recordset(jobs) as (id uuid, queue_id int, queue text, idempotency_key text, schedule text)
                   ) with ordinality as i (id, queue_id, queue, idempotency_key, schedule, number)
             where i.idempotency_key is not null
        ),
        made as (
            insert into fencepost.idempotency_keys (key, job_id, queue_id, schedule)
            select a.idempotency_key, a.id, coalesce(a.queue_id, cast(places ->> a.queue as int)), a.schedule
              from asked a
             order by a.idempotency_key collate "C", a.place
                on conflict (key) do nothing
            returning job_id
        )
        select coalesce(array_agg(a.place), '{}')
          into known
          from asked a
         where a.id not in (select m.job_id from made m);
        with asked as (
            select i.number - 1 as place, i.id, coalesce(i.queue_id, cast(places ->> i.queue as int)) as queue_id, i.type,
                   i."unique" ->> 'key' as key, i."unique" ->> 'until' as until,
                   case when i."unique" ->> 'until' = 'period'
                        then moment + cast(i."unique" ->> 'period_microseconds' as bigint) * interval '1 microsecond'
                        end as expires_at
              from rows from (
                       jsonb_to_recordset(jobs) as (id uuid, queue_id int, queue text, type text, "unique" jsonb)
                   ) with ordinality as i (id, queue_id, queue, type, "unique", number)
             where i."unique" ->> 'key' is not null
               and not exists (select from unnest(known) as o (place) where o.place = i.number - 1)
        ),
        made as (
            -- Keys that nobody holds, which are most, are taken at once.
            -- Those that are there are locked in the same order: removed in between, they would be inserted out of it.
            insert into fencepost.unique_keys as k (type, key, job_id, queue_id, until, expires_at)
            select distinct on (a.type collate "C", a.key collate "C")
                   a.type, a.key, a.id, a.queue_id, a.until, a.expires_at
              from asked a
             order by a.type collate "C", a.key collate "C", a.place
                on conflict (type, key) do update set key = k.key where false
            returning job_id
        )
        select coalesce(array_agg(a.place), '{}')
          into contested
          from asked a
         where a.id not in (select m.job_id from made m);
        perform fencepost.store_jobs(jobs, places, moment, known || contested);
        for item in
            select i.number - 1 as place, i.job, i.job ->> 'idempotency_key' as idempotency_key
              from jsonb_array_elements(jobs) with ordinality as i (job, number)
              join unnest(contested) as o (place) on o.place = i.number - 1
             order by (i.job ->> 'type') collate "C", (i.job -> 'unique' ->> 'key') collate "C", i.number
        loop
            answer := fencepost.store_unique(item.job, places, moment);
            continue when answer is null;
            answers := answers || (answer || jsonb_build_object('place', item.place));
            if answer ->> 'effect' <> 'replaced' and item.idempotency_key is not null then
                -- It made no job, so it stays free: the same request may make one later.
                delete from fencepost.idempotency_keys k
                 where k.key = item.idempotency_key
                   and k.job_id = cast(item.job ->> 'id' as uuid);
                unused := unused || jsonb_build_object(item.idempotency_key, answer);
            end if;
        end loop;
        if cardinality(known) > 0 then
            answers := answers || fencepost.replays(jobs, places, known, unused);
        end if;
        return answers;
    end

function store_unique(job jsonb, places jsonb, moment timestamp with time zone) returns jsonb
    plpgsql, volatile, parallel unsafe, search_path=pg_catalog, pg_temp, enable_seqscan=off
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

function wake_up(jobs jsonb, places jsonb, moment timestamp with time zone, answers jsonb) returns void
    plpgsql, volatile, parallel unsafe, search_path=pg_catalog, pg_temp
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

function watch_range(range_start timestamp with time zone) returns boolean
    plpgsql, volatile, parallel unsafe, security definer, search_path=pg_catalog, pg_temp
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
