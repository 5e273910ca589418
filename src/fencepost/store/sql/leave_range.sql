-- Note that what is past its time was deleted from a range just now, and let its next survey begin anew.
--
-- What ends in it stays watched. Index: the primary keys. Locks: the range's row of partitions, and its survivors.
with turn as materialized (
    select fencepost.retention_turn() as mine
),
span as (
    update fencepost.partitions p
       set pruned_at = clock_timestamp(), expired = 0,
           surveyed_to = case when p.surveyed_to is not null then uuid '00000000-0000-0000-0000-000000000000' end
     where p.starts_at = cast(:starts_at as timestamptz)
       and (select t.mine from turn t)
    returning fencepost.first_id_at(p.starts_at) as low, fencepost.first_id_at(p.ends_at) as high
),
gone as (
    delete from fencepost.survivors s
     using span
     where s.id >= span.low
       and s.id < span.high
)
select t.mine from turn t
