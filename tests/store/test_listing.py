"""Lists: filters, pages without gaps or repeats, and no more work than a page is worth."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from fencepost.domain.ids import new_id
from fencepost.domain.job import Job, Status
from fencepost.domain.outcome import Ending
from fencepost.store import listing as listing_module
from fencepost.store.jobs import Jobs
from fencepost.store.listing import Filter, Listing
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore

from .support import Connection, claim, completed, ended, job

pytestmark = pytest.mark.anyio


async def read_to_the_end(listing: Listing, which: Filter, *, limit: int) -> tuple[list[Job], int]:
    """Every page; returns the jobs and how many pages it took."""
    found: list[Job] = []
    before: UUID | None = None
    for pages in range(1, 200):
        page = await listing.page(which, limit=limit, before=before)
        assert len(page.jobs) <= limit
        found += page.jobs
        before = page.next_before
        if before is None:
            return found, pages
    raise AssertionError("the list never ends")


async def spread(jobs: Jobs, queues: Queues, store: WorkerStore, count: int) -> dict[UUID, Status]:
    """Jobs in every status, in turn; where each is."""
    made = [job(queue=f"q{number % 2}", type=f"t{number % 3}", max_attempts=1) for number in range(count)]
    await jobs.enqueue(made)
    cycle = [Status.COMPLETED, Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED, Status.PROCESSING, Status.PENDING]
    wanted = {one.id: cycle[number % 6] for number, one in enumerate(made)}
    back = []
    for queue in ("q0", "q1"):
        queue_id = await queues.id_of(queue)
        leases = await claim(store, queue_id, slots=count)
        outcomes = []
        for lease in leases:
            status = wanted[lease.id]
            if status is Status.COMPLETED:
                outcomes.append(completed(lease))
            elif status is Status.PENDING:
                back.append(ended(lease, Ending.RELEASED, status))
                outcomes.append(back[-1])
            elif status is not Status.PROCESSING:
                ending = {Status.FAILED: Ending.PERMANENT, Status.CANCELLED: Ending.CANCELLED}
                outcomes.append(ended(lease, ending.get(status, Ending.FAILED), status))
        assert len(await store.settle(queue_id, outcomes)) == len(outcomes)
    return wanted


async def test_every_filter_finds_exactly_its_jobs_newest_first(
    jobs: Jobs, queues: Queues, listing: Listing, worker_store: WorkerStore
) -> None:
    where = await spread(jobs, queues, worker_store, 120)
    records = {one.id: one for one in (await read_to_the_end(listing, Filter(), limit=50))[0]}
    assert records.keys() == where.keys()
    for status in (None, *Status):
        for kind in (None, "t0", "t2", "unknown"):
            for queue in (None, "q1", "unknown"):
                which = Filter(status=status, type=kind, queue=queue)
                expected = sorted(
                    (
                        one
                        for one, record in records.items()
                        if (status is None or where[one] is status)
                        and kind in (None, record.type)
                        and queue in (None, record.queue)
                    ),
                    reverse=True,
                )
                found, _ = await read_to_the_end(listing, which, limit=7)
                assert [one.id for one in found] == expected, which
                assert all(one.status is where[one.id] for one in found)


@pytest.mark.parametrize("status", [None, *Status])
async def test_a_tag_finds_the_jobs_that_have_it(
    jobs: Jobs, queues: Queues, listing: Listing, worker_store: WorkerStore, sql: Connection, status: Status | None
) -> None:
    where = await spread(jobs, queues, worker_store, 60)
    ids = sorted(where, reverse=True)
    await sql.execute("update fencepost.jobs set tags = '{blue,red}' where id = any($1)", ids[:30])
    await sql.execute("update fencepost.jobs set tags = '{bluer}' where id = any($1)", ids[30:45])
    expected = [one for one in ids if status in (None, where[one])]
    for tag, tagged in (("blue", ids[:30]), ("red", ids[:30]), ("bluer", ids[30:45]), ("blu", []), ("blue,red", [])):
        found, _ = await read_to_the_end(listing, Filter(status=status, tag=tag), limit=4)
        assert [one.id for one in found] == [one for one in expected if one in tagged], tag
    found, _ = await read_to_the_end(listing, Filter(status=status, tag="red", type="t1", queue="q0"), limit=4)
    assert all((one.type, one.queue) == ("t1", "q0") for one in found)


@pytest.mark.parametrize("limit", [1, 2, 19, 20, 21, 100])
async def test_pages_have_no_gaps_and_no_repeats(jobs: Jobs, listing: Listing, limit: int) -> None:
    made = [job() for _ in range(20)]
    await jobs.enqueue(made)
    found, pages = await read_to_the_end(listing, Filter(), limit=limit)
    assert [one.id for one in found] == sorted((one.id for one in made), reverse=True)
    assert pages == -(-20 // limit), "the last page knows that it is the last"


async def test_new_jobs_and_moves_between_pages_disturb_nothing(
    jobs: Jobs, queues: Queues, listing: Listing, worker_store: WorkerStore
) -> None:
    made = [job() for _ in range(10)]
    await jobs.enqueue(made)
    first = await listing.page(Filter(), limit=4)
    await jobs.enqueue([job()])
    await claim(worker_store, await queues.id_of("default"), slots=5)
    rest = await listing.page(Filter(), limit=100, before=first.next_before)
    ids = [one.id for one in first.jobs + rest.jobs]
    assert ids == sorted((one.id for one in made), reverse=True)


async def test_an_empty_list(listing: Listing) -> None:
    for status in (None, *Status):
        page = await listing.page(Filter(status=status), limit=10)
        assert (page.jobs, page.next_before) == ([], None)


@pytest.mark.parametrize("status", [None, *Status])
async def test_a_page_looks_at_no_more_than_it_may(
    jobs: Jobs, queues: Queues, listing: Listing, worker_store: WorkerStore, status: Status | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A filter that few match gives short pages with a way on, and in the end everything."""
    monkeypatch.setattr(listing_module, "SCAN_ROWS", 5)
    where = await spread(jobs, queues, worker_store, 120)
    found, pages = await read_to_the_end(listing, Filter(status=status, type="t2"), limit=3)
    records, _ = await read_to_the_end(listing, Filter(), limit=50)
    expected = [one.id for one in records if status in (None, where[one.id]) and one.type == "t2"]
    assert [one.id for one in found] == expected
    assert pages > len(expected) / 3
    if status is None:
        assert pages >= 120 / 5
    if status is Status.COMPLETED:
        assert pages >= 80 / 5, "the ended jobs that aren't completed count as looked at"


async def test_a_full_scan_that_ends_exactly_at_the_end(
    jobs: Jobs, listing: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing_module, "SCAN_ROWS", 10)
    await jobs.enqueue([job() for _ in range(10)])
    found, _ = await read_to_the_end(listing, Filter(type="nothing"), limit=3)
    assert found == []


async def test_since_and_until_bound_the_creation(jobs: Jobs, listing: Listing) -> None:
    start = datetime(2026, 5, 1, tzinfo=UTC)

    def at(minutes: int) -> UUID:
        now = int((start + timedelta(minutes=minutes)).timestamp()) * 10**9
        return new_id(now_ns=lambda: now)

    made = [job(id=at(minutes)) for minutes in range(10)]
    await jobs.enqueue(made)
    for since, until in [(None, None), (3, None), (None, 3), (3, 7), (7, 3), (0, 10), (9, 10), (10, 20), (3, 3)]:
        which = Filter(
            since=None if since is None else start + timedelta(minutes=since),
            until=None if until is None else start + timedelta(minutes=until),
        )
        found, _ = await read_to_the_end(listing, which, limit=2)
        low, high = since or 0, 10 if until is None else until
        assert [one.id for one in found] == [one.id for one in reversed(made[low:high])], (since, until)


async def test_the_history_of_attempts_is_newest_first_and_bounded(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore
) -> None:
    made = job(max_attempts=1)
    await jobs.enqueue([made])
    queue_id = await queues.id_of("default")
    for number in range(205):
        [lease] = await claim(worker_store, queue_id)
        outcome = ended(lease, Ending.RELEASED, Status.PENDING, error=f"number {number + 1}")
        await worker_store.settle(queue_id, [outcome])
    attempts = await jobs.attempts(made.id)
    assert [one.token for one in attempts] == list(range(205, 5, -1))
    assert attempts[0].error == "number 205"
    assert (await jobs.get(made.id)).last_error == "number 205"
