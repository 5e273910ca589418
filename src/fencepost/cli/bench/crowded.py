"""Claims, reads and lists in a database full of other jobs, measured."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from uuid import uuid4

from fencepost.cli.bench.crowd import UNSERVED, beginning, gather
from fencepost.cli.bench.ground import Ground
from fencepost.cli.bench.plan import Figures, Plan, Show, job
from fencepost.cli.bench.reaching import settings_of
from fencepost.cli.bench.reading import percentiles
from fencepost.domain.ids import first_id_at
from fencepost.domain.job import Job, Status
from fencepost.domain.outcome import succeeded
from fencepost.store.database import HOT_SESSION, Database
from fencepost.store.listing import Filter, Listing
from fencepost.store.workers import WorkerStore
from fencepost.worker.cursors import Cursors

CLAIMS_RATE = 100
"""Claims a second."""
CLAIM_SLOTS = 10
LEASE_SECONDS = AGING_SECONDS = 60.0
PAGE_JOBS = 50
_draw = random.Random()

LISTS: dict[str, Filter] = {
    "all": Filter(),
    **{status.value: Filter(status=status) for status in Status},
    "queue": Filter(queue=UNSERVED),
    # As much work as a page can make: it looks at as many jobs as it may, and finds none.
    "type": Filter(type="nothing-like-this"),
}
"""What is listed."""


async def crowded(ground: Ground, plan: Plan, show: Show) -> Figures:
    """Claims of ten jobs beside millions that are scheduled, finished or due elsewhere; reads and lists of those."""
    await ground.queues.ensure("default", 0)
    empty = percentiles(await _claims(ground, plan, show, "claims, empty"))
    await gather(ground, plan, show)
    full = percentiles(await _claims(ground, plan, show, "claims, crowded"))
    return {
        "claim_p50_ms": full["p50_ms"],
        "claim_p99_ms": full["p99_ms"],
        "empty_claim_p50_ms": empty["p50_ms"],
        "empty_claim_p99_ms": empty["p99_ms"],
        "ratio_to_empty": (full["p99_ms"] or 0) / (empty["p99_ms"] or 1),
        **await _reads(ground, plan, show),
    }


async def _claims(ground: Ground, plan: Plan, show: Show, label: str) -> list[int]:
    """Claim ten jobs a hundred times a second, each time from where the last claim came to, as a worker does."""
    settings = settings_of(ground.dsn, ground.schema)
    database = Database.of(settings, ground.dsn, connections=2, session=HOT_SESSION)
    await database.open()
    store, cursors, delays_ns = WorkerStore(database, uuid4()), Cursors(), []
    queue_id = await ground.queues.id_of("default")
    count = int(plan.seconds * CLAIMS_RATE)
    start = time.monotonic()
    try:
        with show(label, count) as advance:
            for number in range(count):
                await asyncio.sleep(max(0.0, start + number / CLAIMS_RATE - time.monotonic()))
                await ground.jobs.enqueue([job(plan) for _ in range(CLAIM_SLOTS)])
                starts, began = cursors.starts(), time.perf_counter_ns()
                claim = await store.claim(
                    queue_id,
                    slots=CLAIM_SLOTS,
                    cursors=starts,
                    lease_seconds=LEASE_SECONDS,
                    aging_seconds=AGING_SECONDS,
                )
                delays_ns.append(time.perf_counter_ns() - began)
                cursors.claimed(starts, claim)
                await store.settle(queue_id, [succeeded(lease, None) for lease in claim.leases])
                advance("")
    finally:
        await database.close()
    return delays_ns


async def _reads(ground: Ground, plan: Plan, show: Show) -> Figures:
    """Lists from random places on, and jobs of those lists by their id."""
    listing = Listing(ground.database, ground.queues)
    now = datetime.now(UTC)
    since, looks = beginning(now), max(20, min(500, plan.jobs // 100))
    found: list[Job] = []
    figures: Figures = {}
    with show("lists and reads", looks * (len(LISTS) + 1)) as advance:
        for name, which in LISTS.items():

            async def page(which: Filter = which) -> None:
                before = first_id_at(since + (now - since) * _draw.random())
                found.extend((await listing.page(which, limit=PAGE_JOBS, before=before)).jobs[:2])
                advance("")

            figures[f"list_{name}_p99_ms"] = await _p99(looks, page)

        async def get() -> None:
            await ground.jobs.get(_draw.choice(found).id)
            advance("")

        return {"get_p99_ms": await _p99(looks, get) if found else None, **figures}


async def _p99(count: int, call: Callable[[], Awaitable[None]]) -> float | None:
    """Make *count* calls, one after the other, and take the time of the slowest but one in a hundred."""
    delays_ns: list[int] = []
    await call()
    for _ in range(count):
        began = time.perf_counter_ns()
        await call()
        delays_ns.append(time.perf_counter_ns() - began)
    return percentiles(delays_ns)["p99_ms"]
