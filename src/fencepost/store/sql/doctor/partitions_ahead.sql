-- How far ahead there are partitions without a gap, in seconds from now on; and whether this moment has one.
select extract(epoch from min(p.ends_at) filter (where not exists (
           select from fencepost.partitions n where n.starts_at <= p.ends_at and n.ends_at > p.ends_at
       )) - clock_timestamp())::float8 as ahead_seconds,
       coalesce(bool_or(p.starts_at <= clock_timestamp()), false) as has_now
  from fencepost.partitions p
 where p.ends_at > clock_timestamp()
