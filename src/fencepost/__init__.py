"""fencepost: a PostgreSQL job queue with fenced leases."""

from fencepost.errors import FencepostError, InvalidJob, Permanent, Retry

__version__ = "0.1.0"

__all__ = ["FencepostError", "InvalidJob", "Permanent", "Retry", "__version__"]
