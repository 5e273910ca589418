"""
A fault campaign: a fleet on a PostgreSQL of its own, faults by a seeded schedule, and an audit from outside.

`python -m chaos --seed 7 --minutes 2`, or `make chaos`. What is injected and what is
checked is told in docs/explanation/chaos.md.
"""
