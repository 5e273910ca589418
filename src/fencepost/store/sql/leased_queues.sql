-- The queues in which something runs. Index: leases_expiry, one probe a queue. Locks: none.
select q.id
  from fencepost.queues q
 where exists (select from fencepost.leases l where l.queue_id = q.id and l.locked_until > timestamptz '-infinity')
