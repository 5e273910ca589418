"""
`fencepost bench`: how fast this is, here, with everything on.

    command     runs the measures, several times over; the figures for people and for scripts
    ground      the database it runs in: its own, made and dropped
    plan        what every measure is given, and the jobs they hand in
    measures    handing in
    drains      running a backlog
    steady      keeping up: latency, a mixed load, doing nothing
    workers     worker processes from this side
    child       and from theirs
    reading     from what was noted to figures
"""
