"""`POST /jobs`, measured: one API process, with its store and without."""

from __future__ import annotations

import msgspec

from fencepost.cli.bench import api_child, load_child
from fencepost.cli.bench.ground import Ground
from fencepost.cli.bench.plan import Figures, Plan, Show
from fencepost.cli.bench.processes import Process, process
from fencepost.cli.bench.reading import percentiles
from fencepost.errors import FencepostError

CONNECTIONS = 64
WARM_UP = 2_000
"""Requests that aren't timed, at the most; never more than are."""
ROUND = 10_000
"""After so many requests progress is shown, and the load begins anew on new connections."""


class Loaded(msgspec.Struct, frozen=True):
    """What a load came to."""

    requests_per_second: float
    api_cpu_microseconds: float
    """Of the API process, a request."""
    delays_ns: list[int]


async def http(ground: Ground, plan: Plan, show: Show) -> Figures:
    """POST /jobs over 64 connections to one API process; the same with a store that stores nothing."""
    null = await _load(ground, plan, show, stores=False)
    real = await _load(ground, plan, show, stores=True)
    return {
        "requests_per_second": real.requests_per_second,
        "null_store_requests_per_second": null.requests_per_second,
        "ratio_to_null_store": real.requests_per_second / null.requests_per_second,
        "api_cpu_microseconds": real.api_cpu_microseconds,
        "null_store_api_cpu_microseconds": null.api_cpu_microseconds,
        **percentiles(real.delays_ns),
    }


async def _load(ground: Ground, plan: Plan, show: Show, *, stores: bool) -> Loaded:
    count = max(CONNECTIONS, plan.jobs)
    seconds, delays_ns = 0.0, []
    question = api_child.Question(ground.dsn, ground.schema, stores)
    async with process(api_child.__name__) as api, process(load_child.__name__) as client:
        port = (await api.ask(question, api_child.State)).port
        await _send(client, plan, port, min(WARM_UP, count))
        before = await api.ask(question, api_child.State)
        with show("with its store" if stores else "without a store", count) as advance:
            for done in range(0, count, ROUND):
                answered = await _send(client, plan, port, min(ROUND, count - done))
                seconds += answered.seconds
                delays_ns += answered.delays_ns
                advance("", len(answered.delays_ns))
        after = await api.ask(question, api_child.State)
    return Loaded(count / seconds, (after.cpu_seconds - before.cpu_seconds) / count * 1e6, delays_ns)


async def _send(client: Process, plan: Plan, port: int, requests: int) -> load_child.Answered:
    load = load_child.Load(
        port=port,
        connections=CONNECTIONS,
        requests=requests,
        body=b'{"type": "noop", "payload": %b}' % plan.payload,
    )
    answered = await client.ask(load, load_child.Answered)
    if answered.refused:
        raise FencepostError(f"the API refused {answered.refused:,} of the benchmark's {requests:,} requests")
    return answered
