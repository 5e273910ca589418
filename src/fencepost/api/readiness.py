"""Whether this process wants requests."""

from __future__ import annotations


class Readiness:
    """Ready until it drains. The composition root turns it; /readyz and the answers' headers follow."""

    def __init__(self) -> None:
        self._reason: str | None = None

    @property
    def ready(self) -> bool:
        """Whether load balancers should send requests here."""
        return self._reason is None

    @property
    def reason(self) -> str | None:
        """Why it isn't ready; None when it is."""
        return self._reason

    @property
    def draining(self) -> bool:
        """Whether connections should end after their answer."""
        return self._reason is not None

    def start_draining(self, reason: str = "draining: this process is about to stop") -> None:
        """Be unready from now on. Requests are still answered, each the last of its connection."""
        self._reason = reason
