-- Stop the clock: at $1, or (null) at what it says now.
update fencepost_clock.hands h
   set at = coalesce($1::timestamptz, coalesce(h.at, pg_catalog.clock_timestamp()) + h.ahead),
       ahead = '0'
