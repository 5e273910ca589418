"""
Child processes that run CPU-bound handlers, and that can be killed.

    pool       a worker's children: one for each running job, kept for the next
    process    one child, as its worker sees it
    output     what a child prints
    messages   what the two say to each other
    program    the child itself
    streams    its stdout and stderr
    forks      processes that a job has forked
    records    what it logs
    finding    a job type by the path of its function
"""
