"""Whether this process wants requests, and does what it is there for."""

from __future__ import annotations

from fencepost.telemetry.pulses import Look, LoopState, troubles


class Readiness:
    """Ready until it drains, while none of its loops is stuck. The composition root turns it; /readyz follows."""

    def __init__(self) -> None:
        self._reason: str | None = None
        self._looks: list[Look] = []

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

    def watch(self, look: Look) -> None:
        """Take these loops into account."""
        self._looks.append(look)

    def look(self) -> list[LoopState]:
        """How the loops of this process are, and of the processes under it. Logs what has got stuck since."""
        return [state for look in self._looks for state in look()]

    @property
    def trouble(self) -> str | None:
        """Which loops are stuck, since when and why, in a sentence each; None when all of them go round."""
        return "; ".join(troubles(self.look())) or None
