"""
Statements of ours in connections of others.

    adapt(connection)   how to run one in any of the eight kinds that are known

Nothing is imported for it: a connection is recognised by the names of its class and
of what that derives from.
"""

from __future__ import annotations

from fencepost.transactions.adapters import Adapter
from fencepost.transactions.recognise import adapt

__all__ = ["Adapter", "adapt"]
