-- Jobs of a range of ids that are nowhere, in several places, or where nobody looks; and places whose job isn't there.
--
-- Parameters: low and high, the first id and the first beyond; most, how many of each to name.
-- Index: the primary keys; each table's part of the range is read once for each question. Locks: none.
with wrong as materialized (
    select 'lost' as problem, j.id, null as place
      from fencepost.jobs j
     where j.id >= cast(:low as uuid) and j.id < cast(:high as uuid)
       and not exists (
        select
          from fencepost.pending p
         where p.id >= cast(:low as uuid) and p.id < cast(:high as uuid)
           and p.id = j.id and p.queue_id = j.queue_id
     )
       and not exists (
        select
          from fencepost.leases l
         where l.id >= cast(:low as uuid) and l.id < cast(:high as uuid)
           and l.id = j.id and l.queue_id = j.queue_id
     )
       and not exists (
        select
          from fencepost.finished f
         where f.id >= cast(:low as uuid) and f.id < cast(:high as uuid)
           and f.id = j.id and f.queue_id = j.queue_id
     )
    union all
    select 'twice', p.id, 'pending and leases'
      from fencepost.pending p
      join fencepost.leases l on l.id = p.id and l.queue_id = p.queue_id
     where p.id >= cast(:low as uuid) and p.id < cast(:high as uuid)
       and l.id >= cast(:low as uuid) and l.id < cast(:high as uuid)
    union all
    select 'twice', p.id, 'pending and finished'
      from fencepost.pending p
      join fencepost.finished f on f.id = p.id and f.queue_id = p.queue_id
     where p.id >= cast(:low as uuid) and p.id < cast(:high as uuid)
       and f.id >= cast(:low as uuid) and f.id < cast(:high as uuid)
    union all
    select 'twice', l.id, 'leases and finished'
      from fencepost.leases l
      join fencepost.finished f on f.id = l.id and f.queue_id = l.queue_id
     where l.id >= cast(:low as uuid) and l.id < cast(:high as uuid)
       and f.id >= cast(:low as uuid) and f.id < cast(:high as uuid)
    union all
    select 'stray', p.id, 'pending'
      from fencepost.pending p
     where p.id >= cast(:low as uuid) and p.id < cast(:high as uuid)
       and not exists (
        select
          from fencepost.jobs j
         where j.id >= cast(:low as uuid) and j.id < cast(:high as uuid)
           and j.id = p.id and j.queue_id = p.queue_id
     )
    union all
    select 'stray', l.id, 'leases'
      from fencepost.leases l
     where l.id >= cast(:low as uuid) and l.id < cast(:high as uuid)
       and not exists (
        select
          from fencepost.jobs j
         where j.id >= cast(:low as uuid) and j.id < cast(:high as uuid)
           and j.id = l.id and j.queue_id = l.queue_id
     )
    union all
    select 'stray', f.id, 'finished'
      from fencepost.finished f
     where f.id >= cast(:low as uuid) and f.id < cast(:high as uuid)
       and not exists (
        select
          from fencepost.jobs j
         where j.id >= cast(:low as uuid) and j.id < cast(:high as uuid)
           and j.id = f.id and j.queue_id = f.queue_id
     )
    union all
    select 'unseen', p.id, 'pending'
      from fencepost.pending p
     where p.id >= cast(:low as uuid) and p.id < cast(:high as uuid)
       and not exists (
        select
          from fencepost.lanes l
          join fencepost.queues q on q.id = l.queue_id
         where l.queue_id = p.queue_id and l.priority = p.priority
     )
    union all
    select 'unseen', l.id, 'leases'
      from fencepost.leases l
     where l.id >= cast(:low as uuid) and l.id < cast(:high as uuid)
       and not exists (select from fencepost.queues q where q.id = l.queue_id)
)
select w.problem, count(*) as rows, (array_agg(w.id order by w.id))[1:cast(:most as int)] as ids,
       (array_agg(distinct w.place)) as places
  from wrong w
 group by w.problem
 order by w.problem
