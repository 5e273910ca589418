-- Look at the next finished jobs of an old range that is watched, and note those that are not past their time.
--
-- Goes on where the last one stopped, whoever that was: how far it came is in partitions, written with what it noted. One
-- that was made for other times begins anew; what it noted stays noted, which keeps too much rather than too little.
-- Parameters: keep, seconds by status; begun, whether this survey has begun, and is left if another was begun since;
--   max_rows; most_jobs, where counting the survivors may stop.
-- Returns: whether it was this transaction's turn, how many rows it looked at, how many survivors the range has at
--   least, whether this was the end of it, and whether it is one for other times by now.
-- Index: finished's primary key, one partition; survivors' and partitions' primary keys. Locks: the range's row of
--   partitions.
with turn as materialized (
    select fencepost.retention_turn() as mine
),
span as materialized (
    select p.starts_at, fencepost.first_id_at(p.starts_at) as low, fencepost.first_id_at(p.ends_at) as high,
           p.surveyed_for is distinct from cast(:keep as jsonb) as is_of_others,
           case when p.surveyed_for = cast(:keep as jsonb) then p.surveyed_to
                else uuid '00000000-0000-0000-0000-000000000000' end as surveyed_to
      from fencepost.partitions p
     where p.starts_at = cast(:starts_at as timestamptz)
       and p.surveyed_to is not null
       and (not cast(:begun as bool) or p.surveyed_for = cast(:keep as jsonb))
       and (select t.mine from turn t)
       for update
),
looked as materialized (
    select f.id, f.status, f.finished_at, s.high
      from span s
     cross join lateral (
        select f.id, f.status, f.finished_at
          from fencepost.finished f
         where f.id >= s.low
           and f.id > s.surveyed_to
           and f.id < s.high
         order by f.id
         limit cast(:max_rows as int)
     ) f
),
noted as (
    insert into fencepost.survivors (id)
    select l.id from looked l where not fencepost.is_expired(l.status, l.finished_at, cast(:keep as jsonb))
        on conflict do nothing
    returning id
),
far as (
    update fencepost.partitions p
       set surveyed_to = case when (select count(*) from looked) < cast(:max_rows as int) then s.high
                              else (select l.id from looked l order by l.id desc limit 1) end,
           surveyed_for = cast(:keep as jsonb),
           expired = case when s.is_of_others then 0 else p.expired end + (
               select count(*) from looked l where fencepost.is_expired(l.status, l.finished_at, cast(:keep as jsonb))
           )
      from span s
     where p.starts_at = s.starts_at
    returning p.surveyed_to, s.high
)
select t.mine,
       (select count(*) from looked) as looked,
       (select count(*) from noted) + (
           select count(*)
             from (
               select from span sp
                cross join lateral (
                   select from fencepost.survivors s
                    where s.id >= sp.low
                      and s.id < sp.high
                    limit cast(:most_jobs as int) + 1
                ) s
             ) known
       ) as survivors,
       coalesce((select f.surveyed_to = f.high from far f), false) as complete,
       cast(:begun as bool) and exists (
           select
             from fencepost.partitions p
            where p.starts_at = cast(:starts_at as timestamptz)
              and p.surveyed_for is distinct from cast(:keep as jsonb)
       ) as is_of_others
  from turn t
