"""The service that is fuzzed: `fencepost serve` with jobs in every status, ready for the first request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tests.fuzz.requests import TOKEN, Known
from tests.service.support import Service

SETTINGS = {
    "API_TOKENS": TOKEN,
    "WORKERS": "2",
    "POLL_INTERVAL": "200ms",
    "BACKOFF_BASE": "100ms",
    # What a fuzzer asks for is no news; what is ours is.
    "LOG_LEVEL": "warning",
    "LOG_FORMAT": "json",
}
_WANTED: tuple[tuple[dict[str, object], str], ...] = (
    ({"type": "send_email", "payload": {"to": "a@example.org"}}, "completed"),
    ({"type": "fail_test", "max_attempts": 1}, "dead_letter"),
    ({"type": "sleep", "payload": {"duration": "nonsense"}}, "failed"),
    ({"type": "send_email", "delay": "1h", "queue": "quiet"}, "pending"),
    ({"type": "send_email", "delay": "1h", "queue": "odd.name:1"}, "cancelled"),
)


class Ready(msgspec.Struct, frozen=True):
    """A service to send requests to."""

    service: Service
    known: Known


@contextmanager
def ready(database_url: str, **settings: str) -> Iterator[Ready]:
    """Start one; it is killed afterwards."""
    token = {"Authorization": f"Bearer {TOKEN}"}
    with Service(DATABASE_URL=database_url, **{**SETTINGS, **settings}) as service:
        ids = []
        for _ in range(3):
            for wanted, status in _WANTED:
                job_id = service.post(wanted, **token)["id"]
                if status == "cancelled":
                    service.call("POST", f"/jobs/{job_id}/cancel", **token)
                ids.append((job_id, status))
        for job_id, status in ids:
            _wait_for(service, job_id, status, token)
        yield Ready(service, Known(tuple(job_id for job_id, _ in ids)))


def _wait_for(service: Service, job_id: str, status: str, token: dict[str, str]) -> None:
    from tests.service.support import wait_until

    wait_until(
        lambda: service.call("GET", f"/jobs/{job_id}", **token).body["status"] == status, 30, f"{job_id} to be {status}"
    )


def complaints(service: Service) -> list[str]:
    """What the service has logged as an error of its own, or said on stderr that is a traceback."""
    logged = [line for line in list(service.logged) if '"level":"error"' in line.replace(" ", "")]
    return logged + [line for line in list(service.said) if "Traceback" in line]
