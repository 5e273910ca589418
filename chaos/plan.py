"""What is to go wrong, and when: drawn from a seed before anything starts, so that it can be read and replayed."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

FORMAT = 1


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that goes wrong."""

    at: float
    """Seconds after the start of the fault phase."""
    kind: str
    target: str = ""
    """The member of the fleet it strikes; empty for what strikes the database."""
    seconds: float = 0.0
    """How long it lasts."""
    amount: float = 0.0
    """How much: a share, a delay or a jump in seconds."""


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """How often a kind of fault strikes, and how hard."""

    every: float
    """Seconds from one to the next, on average."""
    on: str = ""
    """Which members: workers, apis, clients (both), or none of them."""
    seconds: tuple[float, float] = (0.0, 0.0)
    amount: tuple[float, float] = (0.0, 0.0)


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """All faults of a run, in the order of time."""

    format: int = FORMAT
    seed: int
    seconds: float
    """How long the fault phase is."""
    faults: tuple[Fault, ...]

    def count(self, kind: str) -> int:
        """How many faults there are of a kind."""
        return sum(fault.kind == kind for fault in self.faults)


KINDS: dict[str, Rate] = {
    "kill": Rate(every=4, on="workers"),
    "kill_group": Rate(every=11, on="workers"),
    "kill_api": Rate(every=20, on="apis"),
    "stop": Rate(every=9, on="workers", seconds=(0.2, 1.2)),
    "stop_long": Rate(every=9, on="workers", seconds=(3.0, 5.0)),
    "stop_api": Rate(every=25, on="apis", seconds=(0.5, 3.0)),
    "terminate": Rate(every=12, on="clients"),
    "kill_postmaster": Rate(every=15),
    "crash": Rate(every=30),
    "restart": Rate(every=45),
    "terminate_backends": Rate(every=8, amount=(0.2, 1.0)),
    "cancel_backends": Rate(every=15, amount=(0.3, 1.0)),
    "stop_backend": Rate(every=12, seconds=(1.0, 4.0)),
    "cut": Rate(every=10, on="clients"),
    "refuse": Rate(every=20, on="clients", seconds=(0.5, 3.0)),
    "swallow": Rate(every=20, on="clients", seconds=(1.0, 4.0)),
    "lose_answers": Rate(every=8, on="clients", seconds=(0.1, 0.5)),
    "delay": Rate(every=15, on="clients", seconds=(1.0, 4.0), amount=(0.01, 0.2)),
    "isolate": Rate(every=12, on="workers", seconds=(4.5, 5.5)),
    "outage": Rate(every=60, seconds=(4.0, 8.0)),
    "read_only": Rate(every=40, seconds=(1.0, 3.0)),
    "failover": Rate(every=30),
    "clock": Rate(every=20, on="clients", amount=(-3600.0, 3600.0)),
    "disk_full": Rate(every=40, seconds=(1.0, 3.0), amount=(0.3, 1.0)),
    "timeouts": Rate(every=40, seconds=(1.0, 3.0)),
    "lock_rows": Rate(every=15, seconds=(1.0, 4.0)),
    "lock_table": Rate(every=40, seconds=(0.5, 2.0)),
    "hold_keys": Rate(every=15, seconds=(1.0, 6.0)),
    "connection_limit": Rate(every=60, seconds=(1.0, 3.0)),
    "kill_pooler": Rate(every=30),
    "pause_standby": Rate(every=60, seconds=(1.0, 4.0)),
}
"""Every kind of fault, as often as in the mixed preset."""

PRESETS: dict[str, dict[str, Rate]] = {
    "mixed": KINDS,
    "kills": {
        "kill": Rate(every=0.9, on="workers"),
        "kill_group": Rate(every=3, on="workers"),
        "kill_api": Rate(every=15, on="apis"),
        "stop": Rate(every=6, on="workers", seconds=(0.2, 1.2)),
        "stop_long": Rate(every=6, on="workers", seconds=(3.0, 5.0)),
        "isolate": Rate(every=30, on="workers", seconds=(4.5, 5.5)),
        "terminate": Rate(every=10, on="clients"),
    },
    "postgres": {
        "kill_postmaster": Rate(every=5),
        "crash": Rate(every=25),
        "terminate_backends": Rate(every=10, amount=(0.2, 1.0)),
        "kill": Rate(every=5, on="workers"),
        "lose_answers": Rate(every=10, on="clients", seconds=(0.1, 0.5)),
    },
    "failovers": {
        "failover": Rate(every=9),
        "kill": Rate(every=6, on="workers"),
        "terminate_backends": Rate(every=20, amount=(0.2, 1.0)),
        "pause_standby": Rate(every=30, seconds=(1.0, 4.0)),
    },
    "outages": {
        "outage": Rate(every=42, seconds=(30.0, 30.0)),
        "kill": Rate(every=4, on="workers"),
        "kill_api": Rate(every=30, on="apis"),
        "swallow": Rate(every=30, on="clients", seconds=(3.0, 8.0)),
    },
    "recovery": {
        "kill": Rate(every=6, on="workers"),
        "kill_postmaster": Rate(every=30),
        "outage": Rate(every=60, seconds=(10.0, 10.0)),
    },
    "calm": {},
}
"""Named mixtures of faults."""


def draw_schedule(
    seed: int,
    seconds: float,
    rates: dict[str, Rate],
    *,
    workers: tuple[str, ...],
    apis: tuple[str, ...],
) -> Schedule:
    """
    Draw a schedule. The same arguments give the same one.

    Each kind has a stream of its own, so leaving one out changes nothing about the others. Every
    kind strikes at least once, if there is time at all.
    """
    members = {"workers": workers, "apis": apis, "clients": (*workers, *apis)}
    faults: list[Fault] = []
    for kind, rate in rates.items():
        draw = random.Random(f"{seed} {kind}")
        # Evenly spread with some play, so that how many there are doesn't hang on the seed.
        count = max(1, round(seconds / rate.every)) if seconds > 0 else 0
        for number in range(count):
            faults.append(
                Fault(
                    at=round((number + draw.uniform(0.05, 0.95)) * seconds / count, 3),
                    kind=kind,
                    target=draw.choice(members[rate.on]) if rate.on else "",
                    seconds=round(draw.uniform(*rate.seconds), 3),
                    amount=round(draw.uniform(*rate.amount), 3),
                )
            )
    faults.sort(key=lambda fault: (fault.at, fault.kind))
    return Schedule(seed=seed, seconds=seconds, faults=tuple(faults))


def read_schedule(path: Path) -> Schedule:
    """A schedule that a run has saved."""
    schedule = msgspec.json.decode(path.read_bytes(), type=Schedule)
    if schedule.format != FORMAT:
        raise ValueError(f"{path} has format {schedule.format}; this version reads {FORMAT}")
    return schedule


def write_schedule(schedule: Schedule, path: Path) -> None:
    """Save a schedule, for `--schedule`."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(schedule), indent=1))
