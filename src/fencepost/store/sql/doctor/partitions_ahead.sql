-- How far ahead there are partitions, in seconds from now on; and whether this moment has one.
select extract(epoch from max(p.ends_at) - clock_timestamp())::float8 as ahead_seconds,
       coalesce(bool_or(p.starts_at <= clock_timestamp() and p.ends_at > clock_timestamp()), false) as has_now
  from fencepost.partitions p
