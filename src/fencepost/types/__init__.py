"""
Job types: what a function says about itself, and how its payload is read and written.

    jobtype      one type: its function, its payload, how it is run, what it asks for
    signature    a function's parameters, as the members of a payload
    codec        values as JSON and back: what msgspec can't do by itself
    unique       which arguments make two jobs the same
"""
