"""
`fencepost bench`: how fast this is, here, with everything on.

    command     runs the measures, several times over; the figures for people and for scripts
    ground      the database it runs in: its own, made and dropped
    plan        what every measure is given, and the jobs they hand in
    measures    handing in
    drains      running a backlog: how fast, and what it takes
    steady      keeping up: latency, a mixed load, doing nothing
    http        requests to the API
    crowded     claims and lists beside millions of other jobs
    crowd       those other jobs
    workers     worker processes from this side
    child       and from theirs
    processes   other processes, from both sides
    api_child   the API in one
    load_child  its clients in another
    reading     from what was noted to figures
"""
