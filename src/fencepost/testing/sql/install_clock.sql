-- Give a test's database a clock that can be set. Until it is, it is PostgreSQL's own. Does nothing a second time.
--
-- Sessions that look into fencepost_clock before pg_catalog (store/sessions.py, look_first) find these functions under
-- the names that every statement uses. Functions and columns of ours that chose PostgreSQL's when they were made are
-- pointed here one by one. Partitions and ids keep the real time: then the id of a new job is inside a partition that
-- is there, whatever the clock says.
--
-- Locks: the tables whose defaults change, for an instant. Nothing else uses a test's database.
do $install$
declare
    ours oid := (select c.relnamespace from pg_catalog.pg_class c where c.oid = 'fencepost.jobs'::regclass);
    item record;
begin
    if to_regnamespace('fencepost_clock') is null then
        create schema fencepost_clock;
        create table fencepost_clock.hands (
            at timestamptz,
            ahead interval not null default '0'
        );
        comment on table fencepost_clock.hands is 'One row: standing at a moment (null: running), and put forward by so much.';
        insert into fencepost_clock.hands default values;
        create function fencepost_clock.clock_timestamp() returns timestamptz
        language sql volatile
        as $$ select coalesce(h.at, pg_catalog.clock_timestamp()) + h.ahead from fencepost_clock.hands h $$;
        create function fencepost_clock.now() returns timestamptz
        language sql stable
        as $$ select coalesce(h.at, pg_catalog.now()) + h.ahead from fencepost_clock.hands h $$;
    end if;
    for item in
        select cast(p.oid as regprocedure) as name
          from pg_catalog.pg_proc p
         where p.pronamespace = ours
           and p.proname not in ('ensure_partitions', 'new_id')
           and exists (select from unnest(p.proconfig) s (setting) where s.setting in ('search_path=pg_catalog', 'search_path=pg_catalog, pg_temp'))
    loop
        execute format('alter function %s set search_path = fencepost_clock, pg_catalog, pg_temp', item.name);
    end loop;
    for item in
        select cast(d.adrelid as regclass) as tab, a.attname as col
          from pg_catalog.pg_attrdef d
          join pg_catalog.pg_class c on c.oid = d.adrelid
          join pg_catalog.pg_attribute a on a.attrelid = d.adrelid and a.attnum = d.adnum
         where c.relnamespace = ours
           and pg_get_expr(d.adbin, d.adrelid) in ('clock_timestamp()', 'pg_catalog.clock_timestamp()')
    loop
        execute format(
            'alter table %s alter column %I set default fencepost_clock.clock_timestamp()', item.tab, item.col
        );
    end loop;
end
$install$;
