"""What a campaign is asked for, and what that makes of its fleet and its faults."""

from __future__ import annotations

import socket

import msgspec

from chaos.fleet import MemberSpec
from chaos.ground import Ground
from chaos.injector import FLEET_KINDS
from chaos.plan import KINDS, PRESETS, Rate, Schedule

RESERVED_SECONDS = 42.0
"""Of a run's time, what its start, the drain and the probes get."""
SHORTEST_SECONDS = 10.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for."""

    seed: int
    minutes: float
    rate: float
    preset: str = "mixed"
    faults: tuple[str, ...] | None = None
    """These kinds alone."""
    broken: str | None = None
    schedule: Schedule | None = None
    """This one, rather than one drawn from the seed."""

    @property
    def replay(self) -> str:
        """The command that does this again."""
        parts = [f"python -m chaos --seed {self.seed} --minutes {self.minutes:g} --rate {self.rate:g}"]
        parts.append(f"--preset {self.preset}")
        if self.faults is not None:
            parts.append(f"--faults {','.join(self.faults)}")
        if self.broken is not None:
            parts.append(f"--broken {self.broken}")
        return " ".join(parts)


def fault_seconds(minutes: float) -> float:
    """How long faults are injected in a run that is to take so long in all."""
    return max(SHORTEST_SECONDS, minutes * 60 - RESERVED_SECONDS)


def pooling(ground: Ground) -> bool:
    """Whether a worker can go through a pooler in transaction mode: there is one."""
    return "kill_pooler" in ground.kinds


def fleet_specs(*, pooled: bool) -> list[MemberSpec]:
    """Who belongs to the fleet. Ports are chosen now."""
    apis = [
        MemberSpec(
            name=f"a{number}",
            role="api",
            arguments=("serve", "chaos.jobs:app", "--workers", "0", "--http-addr", f"127.0.0.1:{port}"),
            port=port,
        )
        for number, port in enumerate(_free_ports(2), 1)
    ]
    work = ("worker", "chaos.jobs:app", "--workers", "8")
    return [
        *apis,
        MemberSpec(name="w1", role="worker", arguments=work),
        MemberSpec(name="w2", role="worker", arguments=work),
        MemberSpec(name="w3", role="worker", arguments=(*work, "--processes", "2"), processes=2),
        *([MemberSpec(name="w4", role="worker", arguments=work, pooled=True)] if pooled else []),
    ]


def rates(options: Options, ground_kinds: frozenset[str]) -> dict[str, Rate]:
    """The faults that are asked for and can be done here."""
    asked = dict(PRESETS[options.preset])
    if options.faults is not None:
        asked = {kind: asked.get(kind, KINDS[kind]) for kind in options.faults}
    possible = FLEET_KINDS | ground_kinds | ({"isolate"} if "refuse" in ground_kinds else set())
    return {kind: rate for kind, rate in asked.items() if kind in possible}


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
