"""Processes and connections that die while jobs run."""
