"""
fencepost: a PostgreSQL job queue with fenced leases.

What programs use is here: `Fencepost`, what its functions say and raise. Each name is loaded when it is first used;
none of them loads a driver or a web framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencepost.app import Fencepost
    from fencepost.client.draft import Draft
    from fencepost.client.handle import Handle
    from fencepost.client.job import Job
    from fencepost.domain.backoff import Constant, Exponential, Linear
    from fencepost.domain.context import Context
    from fencepost.domain.job import Job as JobRecord
    from fencepost.domain.job import Status, Unique
    from fencepost.errors import (
        Cancel,
        DatabaseUnavailable,
        DuplicateJob,
        FencepostError,
        InvalidJob,
        InvalidSettings,
        JobFailed,
        JobNotFound,
        KeyConflict,
        LeaseLost,
        Permanent,
        ResultTimeout,
        Retry,
        Snooze,
        WrongConnection,
        WrongStatus,
    )
    from fencepost.settings import Settings
    from fencepost.store.bulk import Result as BulkResult
    from fencepost.store.bulk import Selection
    from fencepost.telemetry.events import Event
    from fencepost.types.signature import Payload, resource
    from fencepost.types.unique import UniqueBy

__version__ = "0.1.0"

__all__ = [
    "BulkResult",
    "Cancel",
    "Constant",
    "Context",
    "DatabaseUnavailable",
    "Draft",
    "DuplicateJob",
    "Event",
    "Exponential",
    "Fencepost",
    "FencepostError",
    "Handle",
    "InvalidJob",
    "InvalidSettings",
    "Job",
    "JobFailed",
    "JobNotFound",
    "JobRecord",
    "KeyConflict",
    "LeaseLost",
    "Linear",
    "Payload",
    "Permanent",
    "ResultTimeout",
    "Retry",
    "Selection",
    "Settings",
    "Snooze",
    "Status",
    "Unique",
    "UniqueBy",
    "WrongConnection",
    "WrongStatus",
    "__version__",
    "resource",
]

_MODULES = {
    "app": "Fencepost",
    "client.draft": "Draft",
    "client.handle": "Handle",
    "client.job": "Job",
    "domain.backoff": "Constant Exponential Linear",
    "domain.context": "Context",
    "domain.job": "Status Unique Job:JobRecord",
    "errors": (
        "Cancel DatabaseUnavailable DuplicateJob FencepostError InvalidJob InvalidSettings JobFailed JobNotFound "
        "KeyConflict LeaseLost Permanent ResultTimeout Retry Snooze WrongConnection WrongStatus"
    ),
    "settings": "Settings",
    "store.bulk": "Selection Result:BulkResult",
    "telemetry.events": "Event",
    "types.signature": "Payload resource",
    "types.unique": "UniqueBy",
}
_HOME = {
    # Public name → module and its name there, which differ where two things bear one.
    name.rpartition(":")[2]: (module, name.partition(":")[0])
    for module, names in _MODULES.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fencepost' has no attribute {name!r}")
    module, name_there = _HOME[name]
    value = getattr(import_module(f"fencepost.{module}"), name_there)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
