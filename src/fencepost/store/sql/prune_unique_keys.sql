-- Remove the unique keys that keep nothing away any more among the next few, in their order.
--
-- A key is kept while its job is waiting or runs, however often it has begun, and while it is a dead letter, which may
-- be put back; one for a period until that is over.
-- Parameters: after_type and after_key, where the last step stopped; max_rows.
-- Returns: whether it was this transaction's turn, how many rows it looked at and the last of them, how many went.
-- Indexes: the primary keys. Locks: the keys that go; one that an enqueue holds is passed over. An enqueue that meets
-- one being removed waits for the commit and then takes the key.
with turn as materialized (
    select fencepost.retention_turn() as mine
),
looked as materialized (
    select k.type, k.key, k.job_id, k.queue_id, k.until, k.expires_at
      from fencepost.unique_keys k
     where (k.type, k.key) > (cast(:after_type as text), cast(:after_key as text))
       and (select t.mine from turn t)
     order by k.type, k.key
     limit cast(:max_rows as int)
),
idle as materialized (
    select l.type, l.key, l.job_id
      from looked l
     where case when l.until = 'period' then l.expires_at <= now()
                else not exists (
                    select from fencepost.pending p where p.id = l.job_id and p.queue_id = l.queue_id
                )
                and not exists (
                    select from fencepost.leases e where e.id = l.job_id and e.queue_id = l.queue_id
                )
                and not exists (
                    select
                      from fencepost.finished f
                     where f.id = l.job_id
                       and f.queue_id = l.queue_id
                       and f.status = 'dead_letter'
                ) end
),
held as materialized (
    select k.type, k.key
      from idle i
     cross join lateral (
        select k.type, k.key
          from fencepost.unique_keys k
         where k.type = i.type
           and k.key = i.key
           -- Not one that another job has taken meanwhile.
           and k.job_id = i.job_id
           for update skip locked
     ) k
),
gone as (
    delete from fencepost.unique_keys k
     where (k.type, k.key) in (select h.type, h.key from held h)
    returning k.key
)
select t.mine,
       (select count(*) from looked) as looked,
       last.type as last_type, last.key as last_key,
       (select count(*) from gone) as keys
  from turn t
  left join lateral (
    select l.type, l.key from looked l order by l.type desc, l.key desc limit 1
  ) last on true
