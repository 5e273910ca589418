-- Let the clock be PostgreSQL's again.
update fencepost_clock.hands h
   set at = null,
       ahead = '0'
