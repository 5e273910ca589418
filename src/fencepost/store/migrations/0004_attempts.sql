-- What attempts gain: progress that can be read while they run, completion inside a caller's transaction, and which
-- types of job are known to any process.
--
-- Locks: leases in access exclusive mode for an instant; otherwise creates only.

alter table fencepost.leases add column progress jsonb;
-- Room for a row's next version beside it: progress that is written there touches no index.
alter table fencepost.leases set (fillfactor = 90);
comment on column fencepost.leases.progress is 'What the handler said last of how far it is. Gone when the attempt ends.';

create table fencepost.job_types (
    name text primary key,
    declared_at timestamptz not null default clock_timestamp()
);
comment on table fencepost.job_types is 'Job types that some process knows. A worker that meets one it does not know leaves it to others, if it is here.';
comment on column fencepost.job_types.declared_at is 'Said again each minute by processes that live; what was not said for a day is removed.';

create function fencepost.complete(attempt jsonb) returns boolean
language sql volatile
set search_path = pg_catalog
set enable_seqscan = off
as $$
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
$$;
