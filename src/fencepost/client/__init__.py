"""
How jobs are enqueued, waited for and looked at, from Python.

    job        a declared function, as its callers hold it
    options    what one enqueue may ask for
    producer   from calls to stored jobs, in our connections or the caller's
    draft      jobs on their way, and the functions around them
    handle     what an enqueue gives back
    watching   waiting for a job's end
    clients    connections, one set for each event loop; address, where to
    portal     a loop for sync callers; loops, who those may be
    forking    what a forked child makes anew
    access     looking at jobs, and changing them
"""
