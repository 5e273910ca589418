"""
Worker processes under one parent, which restarts the dead and passes on the signal to stop.

    messages     what the two say to each other, as lines of JSON over a pair of sockets
    child        a worker process: `python -m fencepost.cli.processes.child`
    link         the parent's end of one worker process
    supervisor   keeps a number of them running

A worker process is a fresh interpreter in a session of its own: nothing of the parent's
threads, loops or connections is in it, and Ctrl-C in a terminal reaches only the parent,
who passes it on in words. When the parent is gone, however it went, its end of the
sockets closes; that tells the worker process to stop in good order by itself.
"""
