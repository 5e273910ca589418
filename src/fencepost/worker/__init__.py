"""
Runs jobs: claims them, runs their handlers, writes down how they ended.

    dispatcher   waits for a free slot, claims for it, hands over
    runtime      what a worker is given: job types, lifespan, what goes around attempts
    executor     runs one attempt to an Outcome
    endings      which outcome that is
    around       an app's own functions around attempts
    resources    what the lifespan opens for handlers
    threads      plain handlers
    children     CPU-bound ones, in processes that can be killed
    completing   ends an attempt in its handler's own transaction
    settler      writes outcomes, many at a time
    leases       renews what runs long, notices what was lost or is to be cancelled
    maintenance  takes back expired leases, keeps partitions ahead, says that we live
    worker       puts these together, and takes them apart in the right order
"""
