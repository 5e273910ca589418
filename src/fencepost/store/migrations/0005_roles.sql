-- Least privilege: workers and producers need not own anything. What takes the owner's rights is in functions that act
-- as the owner, and nobody may call one who wasn't granted that. `fencepost grant` has the list of grants.
--
-- Locks: none on a table.

do $$
-- Execution was everybody's, and each function acted with its caller's rights. It is granted from now on, and whoever
-- could use a function before still can. Those that act as the owner now, below, are left to roles that could store
-- jobs without them.
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
    fn record;
    grantee record;
begin
    for fn in
        select p.oid, cast(p.oid as regprocedure) as signature, p.proname as name, p.prosecdef as is_definer,
               'search_path=pg_catalog' = any (p.proconfig) as has_path, c.relowner as owner, n.nspacl, c.relacl
          from pg_catalog.pg_class c
          join pg_catalog.pg_namespace n on n.oid = c.relnamespace
          join pg_catalog.pg_proc p on p.pronamespace = n.oid
         where c.oid = 'fencepost.jobs'::regclass
           and p.proname = any (ours)
    loop
        for grantee in
            select case when x.grantee = 0 then 'public' else pg_catalog.pg_get_userbyid(x.grantee) end as name
              from (
                select a.grantee, false as stores from pg_catalog.aclexplode(fn.nspacl) a
                union all
                select a.grantee, a.privilege_type = 'INSERT' from pg_catalog.aclexplode(fn.relacl) a
              ) x
             where x.grantee <> fn.owner
             group by 1
            having (bool_or(x.stores) or fn.name not in ('enqueue', 'enqueue_jobs'))
               and fn.name not in ('ensure_partitions', 'watch_range', 'drop_range')
        loop
            if not fn.is_definer and has_function_privilege(grantee.name, fn.oid, 'execute') then
                execute format('grant execute on function %s to %I', fn.signature, grantee.name);
            end if;
        end loop;
        execute format('revoke execute on function %s from public', fn.signature);
        if fn.has_path then
            execute format('alter function %s set search_path = pg_catalog, pg_temp', fn.signature);
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
    if width is null or width < interval '1 day' or ahead is null or ahead not between 0 and 100 then
        raise exception 'width: must be a day or more, and ahead from 0 to 100, not % and %', width, ahead
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

alter function fencepost.watch_range(timestamptz) security definer;
alter function fencepost.drop_range(timestamptz, int, bigint) security definer;
alter function fencepost.enqueue_jobs(jsonb, boolean, boolean) security definer;
alter function fencepost.enqueue(
    text, jsonb, text, int, int, timestamptz, interval, interval, interval, text, text, text, interval, text, text[], jsonb
) security definer;
