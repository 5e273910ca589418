-- The tables, by what a row in them means.
--
--   jobs       the definition of a job: written once, never updated
--   pending    it waits: due at run_at
--   leases     it runs: one attempt owns it until locked_until
--   finished   it ended
--
-- A job is in exactly one of the last three, in any snapshot: that is its status.
-- Every move between them is one statement that deletes here and inserts there.
--
-- Locks: creates only, so nothing waits.

create table fencepost.queues (
    id int generated always as identity primary key,
    name text not null unique check (octet_length(name) between 1 and 100),
    paused_at timestamptz,
    created_at timestamptz not null default clock_timestamp()
);
comment on table fencepost.queues is 'Known queues. A queue exists from its first job on.';
comment on column fencepost.queues.paused_at is 'Set while nothing may be claimed from it.';

create table fencepost.lanes (
    queue_id int not null,
    priority smallint not null,
    primary key (queue_id, priority)
);
comment on table fencepost.lanes is 'The priorities in use in a queue. Jobs of one lane are taken in order of run_at; lanes are merged at claim time.';

create table fencepost.jobs (
    id uuid not null,
    queue_id int not null,
    type text not null,
    priority smallint not null check (priority between 0 and 100),
    payload jsonb not null,
    max_attempts smallint not null check (max_attempts between 1 and 100),
    timeout_seconds float8 check (timeout_seconds > 0),
    idempotency_key text,
    request_id text,
    created_at timestamptz not null,
    primary key (id, queue_id)
) partition by range (id);
comment on table fencepost.jobs is 'What was asked for. Written once; partitioned by id, which is a UUIDv7, so by time of creation.';

create table fencepost.pending (
    id uuid not null,
    queue_id int not null,
    priority smallint not null,
    attempts smallint not null,
    token bigint not null,
    run_at timestamptz not null,
    primary key (id, queue_id)
);
-- Partial, though its condition always holds: so only what asks for a range of run_at can use it. To the planner a
-- table full of dead rows looks empty, and a lookup by key would walk the index of the whole queue as if it were.
create index pending_lane on fencepost.pending (queue_id, priority, run_at, id) where run_at is not null;
comment on table fencepost.pending is 'Status pending: claimable from run_at on.';
comment on column fencepost.pending.attempts is 'Attempts already spent.';
comment on column fencepost.pending.token is 'The last lease token given out for this job; the next claim takes one more.';
comment on column fencepost.pending.run_at is 'Never before the clock_timestamp() of the insert: the claim cursors rest on that.';

create table fencepost.leases (
    id uuid not null,
    queue_id int not null,
    priority smallint not null,
    attempt smallint not null,
    token bigint not null,
    worker_id uuid not null,
    started_at timestamptz not null,
    locked_until timestamptz not null,
    cancel_requested_at timestamptz,
    primary key (id, queue_id),
    check (locked_until > started_at)
);
-- Partial for the same reason as pending_lane.
create index leases_expiry on fencepost.leases (queue_id, locked_until) where locked_until is not null;
comment on table fencepost.leases is 'Status processing: the attempt that holds (id, token) may end it, or recovery once locked_until has passed.';

create table fencepost.finished (
    id uuid not null,
    queue_id int not null,
    status text not null check (status in ('completed', 'failed', 'dead_letter', 'cancelled')),
    attempts smallint not null,
    token bigint not null,
    started_at timestamptz,
    finished_at timestamptz not null,
    result jsonb,
    primary key (id, queue_id),
    check (result is null or status = 'completed')
) partition by range (id);
create index finished_unsuccessful on fencepost.finished (status, id) where status <> 'completed';
comment on table fencepost.finished is 'Status completed, failed, dead_letter or cancelled. Partitioned like jobs.';
comment on column fencepost.finished.started_at is 'When the last attempt started; null when it never ran.';

create table fencepost.attempts (
    id uuid not null,
    queue_id int not null,
    token bigint not null,
    attempt smallint not null,
    outcome text not null check (outcome in ('failed', 'timed_out', 'permanent', 'cancelled', 'released', 'lost')),
    worker_id uuid not null,
    started_at timestamptz not null,
    ended_at timestamptz not null,
    error_type text,
    error text,
    traceback text,
    primary key (id, queue_id, token)
) partition by range (id);
comment on table fencepost.attempts is 'Attempts that did not succeed, under their tokens: the attempt number starts again after a manual retry, the token never does.';

create table fencepost.idempotency_keys (
    key text primary key check (octet_length(key) between 1 and 255),
    job_id uuid not null,
    queue_id int not null,
    schedule text not null,
    created_at timestamptz not null default clock_timestamp()
);
comment on table fencepost.idempotency_keys is 'One key, one job.';
comment on column fencepost.idempotency_keys.schedule is 'The due time as asked for, so that a repeated request can be told from another one.';

create table fencepost.workers (
    id uuid primary key,
    host text not null,
    pid int not null,
    version text not null,
    slots int not null,
    started_at timestamptz not null default clock_timestamp(),
    heartbeat_at timestamptz not null default clock_timestamp()
);
comment on table fencepost.workers is 'Live worker processes. For people: no claim depends on it.';

create table fencepost.partitions (
    starts_at timestamptz primary key,
    ends_at timestamptz not null,
    check (ends_at > starts_at)
);
comment on table fencepost.partitions is 'The time ranges for which jobs, finished and attempts have a partition each.';

-- Jobs whose id is outside every range (a client whose clock is wrong) land here and work like all others.
create table fencepost.jobs_default partition of fencepost.jobs default;
create table fencepost.finished_default partition of fencepost.finished default;
create table fencepost.attempts_default partition of fencepost.attempts default;

create function fencepost.first_id_at(moment timestamptz) returns uuid
language sql immutable parallel safe
as $$
    -- The smallest UUIDv7 that can be made at a moment: its milliseconds in the first 48 bits.
    select rpad(lpad(to_hex(floor(extract(epoch from moment) * 1000)::bigint), 12, '0'), 32, '0')::uuid
$$;

create function fencepost.ensure_partitions(width interval, ahead int) returns int
language plpgsql
set search_path = pg_catalog
as $$
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
$$;
