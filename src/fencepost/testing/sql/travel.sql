-- Put the clock forward by $1. One that runs goes on running from there.
update fencepost_clock.hands h
   set ahead = h.ahead + $1::interval
