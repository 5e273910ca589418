"""
Runs jobs: claims them, runs their handlers, writes down how they ended.

    dispatcher   waits for a free slot, claims for it, hands over
    executor     runs one attempt to an Outcome
    settler      writes outcomes, many at a time
    leases       renews what runs long, notices what was lost or is to be cancelled
    maintenance  takes back expired leases, keeps partitions ahead, says that we live
    worker       puts these together, and takes them apart in the right order
"""
