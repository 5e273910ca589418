"""
What is wrong with a database that fencepost works in, or soon will be.

Each module looks at one thing and returns findings; `examination` asks all of them, in one
transaction that can't write. Nothing here changes anything, and nothing takes a lock that
would be in anybody's way.
"""
