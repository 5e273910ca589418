-- Jobs of a range of ids that are nowhere, or in several places; and places whose job isn't there.
--
-- Parameters: low and high, the first id and the first beyond; most, how many of each to name.
-- Index: the primary keys. Locks: none.
with places as (
    select p.id, p.queue_id, 'pending' as place
      from fencepost.pending p
     where p.id >= cast(:low as uuid) and p.id < cast(:high as uuid)
    union all
    select l.id, l.queue_id, 'leases'
      from fencepost.leases l
     where l.id >= cast(:low as uuid) and l.id < cast(:high as uuid)
    union all
    select f.id, f.queue_id, 'finished'
      from fencepost.finished f
     where f.id >= cast(:low as uuid) and f.id < cast(:high as uuid)
),
wrong as materialized (
    select 'lost' as problem, j.id, null as places
      from fencepost.jobs j
     where j.id >= cast(:low as uuid) and j.id < cast(:high as uuid)
       and not exists (select from places p where p.id = j.id and p.queue_id = j.queue_id)
    union all
    select 'twice', p.id, string_agg(p.place, ' and ' order by p.place)
      from places p
     group by p.id, p.queue_id
    having count(*) > 1
    union all
    select 'stray', p.id, p.place
      from places p
     where not exists (
        select
          from fencepost.jobs j
         where j.id >= cast(:low as uuid) and j.id < cast(:high as uuid)
           and j.id = p.id and j.queue_id = p.queue_id
     )
)
select w.problem, count(*) as rows, (array_agg(w.id order by w.id))[1:cast(:most as int)] as ids,
       (array_agg(w.places order by w.id))[1] as places
  from wrong w
 group by w.problem
 order by w.problem
