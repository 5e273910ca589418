-- The ranges of ids that have partitions, in their order.
select fencepost.first_id_at(p.starts_at) as low, fencepost.first_id_at(p.ends_at) as high
  from fencepost.partitions p
 order by p.starts_at
