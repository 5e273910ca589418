"""What a kit says of an app's jobs, and how it runs them."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
import traceback
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import asyncpg
import pytest

from fencepost import (
    Cancel,
    Constant,
    Context,
    Fencepost,
    InvalidJob,
    JobNotFound,
    Payload,
    Permanent,
    Retry,
    Settings,
    Snooze,
    Status,
)
from fencepost.domain.outcome import Ending
from fencepost.errors import DatabaseUnavailable, FencepostError
from fencepost.testing import HandlerFailed, Kit
from tests.patience import limit
from tests.worker.support import wait_until

from . import processes
from .conftest import MakeKit

pytestmark = pytest.mark.anyio

ID = UUID("0195c2a8-7d2e-7c31-9b0e-7d3b6a1f2c4d")


@dataclasses.dataclass(frozen=True)
class Order:
    number: int
    at: datetime


async def test_enqueued_has_the_arguments_as_the_function_will_get_them(app: Fencepost, make_kit: MakeKit) -> None:
    @app.job(queue="mail")
    async def send(who: UUID, order: Order, *, price: Decimal = Decimal("1.10"), labels: set[str] = set()) -> None: ...  # noqa: B006

    @app.job
    async def whole(order: Payload[Order]) -> None: ...

    @app.job
    async def open_ended(first: int, **rest: str) -> None: ...

    order = Order(7, datetime(2026, 5, 1, 12, tzinfo=UTC))
    elsewhere = app.declare("elsewhere", payload=dict[str, int])
    async with make_kit(app) as kit:
        assert kit.enqueued() == []
        await send.options(tags=["a"], metadata={"t": 1}, delay=60, priority=3).enqueue(ID, order, labels={"b", "a"})
        await whole.enqueue(order)
        await open_ended.enqueue(1, x="y")
        await elsewhere.enqueue({"n": 1})
        first, second, third, fourth = kit.enqueued()
        assert first.arguments == {"who": ID, "order": order, "price": Decimal("1.10"), "labels": {"a", "b"}}
        assert first.payload["order"] == {"number": 7, "at": "2026-05-01T12:00:00Z"}
        assert (first.type, first.queue, first.priority, first.tags) == ("send", "mail", 3, ("a",))
        assert first.metadata == {"t": 1}
        assert first.run_at is not None
        assert timedelta(seconds=50) < first.run_at - kit.now() < timedelta(seconds=61)
        assert second.arguments == order
        assert third.arguments == {"first": 1, "x": "y"}
        assert (fourth.type, fourth.arguments) == ("elsewhere", {"n": 1})
        assert kit.enqueued(whole) == kit.enqueued(whole, order) == [second]
        assert kit.enqueued(send, labels={"a", "b"}) == kit.enqueued(send, price=Decimal("1.10")) == [first]
        assert kit.enqueued(send, labels={"a"}) == kit.enqueued(whole, Order(8, order.at)) == []
        assert kit.enqueued(open_ended, x="y") == [third]
        assert kit.enqueued(elsewhere, {"n": 1}) == [fourth]


async def test_assert_enqueued_says_what_is_there_instead(app: Fencepost, make_kit: MakeKit) -> None:
    @app.job
    async def greet(name: str, *, shout: bool = False) -> None: ...

    @app.job
    async def other(n: int) -> None: ...

    async with make_kit(app) as kit:
        with pytest.raises(AssertionError) as raised:
            kit.assert_enqueued(greet)
        assert str(raised.value) == "expected 1 greet(…) to be enqueued, found 0.\nNothing is enqueued."
        kit.assert_enqueued(greet, count=0)
        await other.enqueue(1)
        await greet.enqueue("Ada")
        await greet.enqueue("Ada", shout=True)
        kit.assert_enqueued(greet, count=2)
        kit.assert_enqueued(greet, "Ada", count=2)
        [found] = kit.assert_enqueued(greet, "Ada", shout=False)
        assert found.arguments == {"name": "Ada", "shout": False}
        with pytest.raises(AssertionError) as raised:
            kit.assert_enqueued(greet, "Bob")
        first, head, *lines = str(raised.value).splitlines()
        assert first == "expected 1 greet(name='Bob') to be enqueued, found 0."
        assert head == "Enqueued:"
        assert [line.split(" in default, due ")[0] for line in lines] == [
            "  greet(name='Ada', shout=False)",
            "  greet(name='Ada', shout=True)",
            "  other(n=1)",
        ]
        with pytest.raises(AssertionError, match=r"expected no greet\(shout=True\) to be enqueued, found 1"):
            kit.assert_enqueued(greet, shout=True, count=0)
        with pytest.raises(InvalidJob, match="nmae: is no argument of greet; there are name, shout"):
            kit.assert_enqueued(greet, nmae="Ada")
        with pytest.raises(InvalidJob, match="by position"):
            kit.enqueued(other, 1, 2)


async def test_a_drain_tells_every_way_in_which_attempts_end(app: Fencepost, make_kit: MakeKit) -> None:
    @app.job(max_attempts=2, backoff=Constant(3600))
    async def act(how: str) -> str:
        match how:
            case "retry":
                raise Retry("later", after=60)
            case "snooze":
                raise Snooze(60)
            case "cancel":
                raise Cancel("not wanted")
            case "permanent":
                raise Permanent("never")
            case "fail":
                raise KeyError("k")
        return how

    @app.job
    async def slow() -> None:
        await asyncio.sleep(60)

    async with make_kit(app) as kit:
        kit.freeze()
        for how in ("fine", "retry", "snooze", "cancel", "permanent", "fail"):
            await act.enqueue(how)
        await slow.options(timeout=0.05, max_attempts=1).enqueue()
        report = await kit.drain()
        assert (report.completed, report.retried, report.snoozed, report.cancelled) == (1, 2, 1, 1), str(report)
        assert (report.failed, report.dead_letter) == (1, 1)
        assert len(report.attempts) == 7
        assert sorted(report.errors) == sorted(
            [
                "act: Retry: later",
                "act: Cancel: not wanted",
                "act: Permanent: never",
                "act: KeyError: 'k'",
                "slow: Timeout: the attempt exceeded its timeout of 0.05 seconds",
            ]
        )
        assert "act (attempt 1) failed, now pending: KeyError: 'k'" in str(report).splitlines()
        [failed] = [ran for ran in report.attempts if ran.error_type == "KeyError"]
        assert (failed.type, failed.queue, failed.attempt, failed.ending) == ("act", "default", 1, Ending.FAILED)
        assert isinstance(failed.exception, KeyError)
        assert failed.retry_delay_seconds is not None
        assert str(await kit.drain()) == "ran nothing"
        kit.travel(hours=1)
        again = await kit.drain()
        assert (again.dead_letter, again.snoozed) == (2, 1)


async def test_a_drain_runs_what_its_jobs_enqueue_and_leaves_what_is_not_due(app: Fencepost, make_kit: MakeKit) -> None:
    ran: list[int] = []

    @app.job
    async def count_down(n: int) -> None:
        ran.append(n)
        if n:
            await count_down.enqueue(n - 1)

    @app.job
    def in_a_thread(n: int) -> None:
        ran.append(n)
        if n:
            in_a_thread.enqueue_sync(n - 1)

    async with make_kit(app) as kit:
        await count_down.enqueue(5)
        later = await count_down.options(delay=3600).enqueue(9)
        report = await kit.drain()
        assert (ran, report.completed) == ([5, 4, 3, 2, 1, 0], 6)
        assert [one.id for one in kit.enqueued()] == [later.id]
        ran.clear()
        await in_a_thread.enqueue(3)
        assert (await kit.drain()).completed == 4
        assert ran == [3, 2, 1, 0]
        assert kit.job(later.id).status is Status.PENDING
        with pytest.raises(JobNotFound):
            kit.job(ID)


async def test_a_drain_of_one_queue_leaves_the_others(app: Fencepost, make_kit: MakeKit, database_url: str) -> None:
    @app.job
    async def work(n: int) -> None: ...

    async with make_kit(app) as kit:
        await work.enqueue(1)
        await work.options(queue="mail").enqueue(2)
        await work.options(queue="slow").enqueue(3)
        report = await kit.drain("mail")
        assert [(ran.queue, ran.status) for ran in report.attempts] == [("mail", Status.COMPLETED)]
        assert [one.arguments["n"] for one in kit.enqueued()] == [1, 3]
        sql = await asyncpg.connect(database_url)
        await sql.execute("update fencepost.queues set paused_at = now() where name = 'slow'")
        assert [ran.queue for ran in (await kit.drain()).attempts] == ["default"]
        await sql.execute("update fencepost.queues set paused_at = null")
        await sql.close()
        assert [ran.queue for ran in (await kit.drain()).attempts] == ["slow"]


async def test_a_drain_raises_what_a_handler_raised_with_its_traceback(app: Fencepost, make_kit: MakeKit) -> None:
    def deep_inside(n: int) -> None:
        raise ZeroDivisionError(f"n is {n}")

    @app.job
    async def fails(n: int) -> None:
        deep_inside(n)

    @app.job
    def fails_in_a_thread(n: int) -> None:
        deep_inside(n)

    @app.job
    async def snoozes() -> None:
        raise Snooze(60)

    @app.job
    async def slow() -> None:
        await asyncio.sleep(60)

    async with make_kit(app) as kit:
        # Else what has failed may be due again by the next drain, on a slow machine.
        kit.freeze()
        await snoozes.enqueue()
        assert (await kit.drain(raise_errors=True)).snoozed == 1, "to be put off is no error"
        for job in (fails, fails_in_a_thread):
            handle = await job.enqueue(4)
            with pytest.raises(ZeroDivisionError, match="n is 4") as raised:
                await kit.drain(raise_errors=True)
            names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
            assert names[-2:] == [job.function.__name__, "deep_inside"]
            assert kit.job(handle.id).last_error == "n is 4", "it is stored all the same"
        await slow.options(timeout=0.05).enqueue()
        with pytest.raises(HandlerFailed, match=r"slow \(attempt 1\) timed_out: Timeout: the attempt exceeded"):
            await kit.drain(raise_errors=True)


async def test_jobs_in_child_processes_are_drained_too(make_kit: MakeKit) -> None:
    async with make_kit(processes.app) as kit:
        handle = await processes.divide.enqueue(3)
        assert (await kit.drain(raise_errors=True)).completed == 1
        assert await handle.result(timeout=5) == 4.0
        assert await kit.run_inline(processes.divide, 4) == 3.0
        await processes.divide.enqueue(0)
        with pytest.raises(
            HandlerFailed, match=r"divide \(attempt 1\) failed: ZeroDivisionError: division by zero"
        ) as raised:
            await kit.drain(raise_errors=True)
        assert "return 12 / by" in str(raised.value), "the line of the child"


async def test_a_payload_that_does_not_fit_is_shown_and_raised(
    app: Fencepost, make_kit: MakeKit, database_url: str
) -> None:
    @app.job
    async def greet(name: str) -> None: ...

    async with make_kit(app) as kit:
        sql = await asyncpg.connect(database_url)
        await sql.execute("""select fencepost.enqueue('greet', '{"nmae": 1}')""")
        await sql.close()
        [waiting] = kit.enqueued(greet)
        assert waiting.arguments == {"nmae": 1}
        with pytest.raises(HandlerFailed, match="payload does not fit 'greet'"):
            await kit.drain(raise_errors=True)


async def test_a_drain_that_never_ends_is_ended(app: Fencepost, make_kit: MakeKit) -> None:
    @app.job
    async def again() -> None:
        await again.enqueue()

    async with make_kit(app) as kit:
        await again.enqueue()
        with pytest.raises(AssertionError, match=r"drain has run \d+ attempts and more is due; .*again \(\d+\)"):
            await kit.drain(limit=20)
        assert len(kit.enqueued()) == 1, "nothing is lost"


async def test_a_day_of_backoff_takes_milliseconds(app: Fencepost, make_kit: MakeKit) -> None:
    @app.job(max_attempts=5, backoff=Constant(86_400, jitter=False))
    async def flaky(context: Context) -> int:
        if context.attempt < 4:
            raise ConnectionError("not yet")
        return context.attempt

    async with make_kit(app) as kit:
        started = time.monotonic()
        frozen = kit.freeze()
        handle = await flaky.enqueue()
        for attempt in range(1, 4):
            assert (await kit.drain()).retried == 1
            [waiting] = kit.enqueued(flaky)
            assert waiting.run_at == frozen + timedelta(days=attempt)
            assert (await kit.drain()).attempts == (), "nothing is due before its time"
            assert kit.travel(days=1) == frozen + timedelta(days=attempt)
        assert (await kit.drain()).completed == 1
        assert time.monotonic() - started < limit(5)
        assert await handle.result(timeout=5) == 4
        record = kit.job(handle.id)
        assert record.created_at == frozen
        assert record.finished_at == frozen + timedelta(days=3)


def test_sync_tests_have_all_of_it(app: Fencepost, make_kit: MakeKit) -> None:
    threads: set[str] = set()

    @app.job
    async def greet(name: str) -> str:
        threads.add(threading.current_thread().name)
        return f"Hello, {name}!"

    @app.job
    def fails() -> None:
        raise ValueError("no")

    with make_kit(app) as kit:
        handle = greet.enqueue_sync("Ada")
        kit.assert_enqueued(greet, "Ada")
        assert kit.drain_sync().completed == 1
        assert app.wait(handle.result(timeout=5)) == "Hello, Ada!"
        fails.enqueue_sync()
        with pytest.raises(ValueError, match=r"^no$"):
            kit.drain_sync(raise_errors=True)
        assert kit.run_inline_sync(greet, "Bob") == "Hello, Bob!"
    assert "MainThread" not in threads


async def test_an_app_is_where_it_was_before_once_its_kit_is_closed(
    make_kit: MakeKit, database_url: str, empty_url: str
) -> None:
    app = Fencepost(database_url)

    @app.job
    async def work(n: int) -> None: ...

    async with app:
        kept = await work.enqueue(1)
        # The kit brings its own database up to date.
        async with Kit(app, empty_url) as kit:
            kit.freeze(datetime(2030, 1, 1, tzinfo=UTC))
            await work.enqueue(2)
            await asyncio.to_thread(work.enqueue_sync, 3)
            assert [one.arguments for one in kit.enqueued()] == [{"n": 2}, {"n": 3}]
        assert await kept.status() is Status.PENDING
        await work.enqueue(4)
        async with make_kit(app) as kit:
            assert [one.arguments["n"] for one in kit.enqueued()] == [1, 4]
        async with Kit(app, empty_url) as kit:
            assert len(kit.enqueued()) == 2
            assert kit.now() < datetime.now(UTC) + timedelta(minutes=1), "the clock was let go"


async def test_a_kit_that_is_not_open_says_so(app: Fencepost, make_kit: MakeKit) -> None:
    kit = make_kit(app)
    for use in (kit.enqueued, kit.freeze, kit.now, kit.unfreeze, kit.drain_sync):
        with pytest.raises(FencepostError, match="isn't open"):
            use()
    async with kit:
        with pytest.raises(FencepostError, match="open already"):
            kit.__enter__()
        assert kit.enqueued() == []
    with pytest.raises(FencepostError, match="isn't open"):
        await kit.drain()


async def test_a_kit_on_no_database_fails_and_leaves_the_app_alone(app: Fencepost) -> None:
    producer = app._producer
    before = producer._dsn
    with pytest.raises(DatabaseUnavailable):
        await Kit(app, "postgresql://nobody@127.0.0.1:1/nowhere").__aenter__()
    assert producer._dsn == before


async def test_a_kit_leaves_no_task_thread_or_connection_behind(
    app: Fencepost, make_kit: MakeKit, database_url: str
) -> None:
    @app.job
    async def work() -> None: ...

    before, threads = asyncio.all_tasks(), threading.enumerate()
    async with make_kit(app) as kit:
        await work.enqueue()
        await asyncio.to_thread(work.enqueue_sync)
        await kit.drain()
        kit.drain_sync()
    assert asyncio.all_tasks() == before
    left = [thread.name for thread in threading.enumerate() if thread not in threads]
    assert not [name for name in left if name.startswith("fencepost")]
    sql = await asyncpg.connect(database_url)

    async def alone() -> bool:
        others = await sql.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        )
        return bool(others == 0)

    # A backend is listed a moment longer than its client holds it.
    try:
        await wait_until(alone, 10, "every connection to be gone")
    finally:
        await sql.close()


async def test_settings_of_a_kit_are_those_of_its_worker(app: Fencepost, make_kit: MakeKit) -> None:
    running = most = 0

    @app.job
    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    async with make_kit(app, settings=Settings(workers=1)) as kit:
        await work.enqueue_many([work.call() for _ in range(5)])
        assert (await kit.drain()).completed == 5
    assert most == 1


async def test_what_leads_to_the_apps_own_database_is_not_used(make_kit: MakeKit) -> None:
    app = Fencepost(
        "postgresql://nobody@127.0.0.1:1/no", pooler="transaction", listen_url="postgresql://nobody@127.0.0.1:1/no"
    )

    @app.job
    async def work() -> str:
        return "done"

    async with make_kit(app) as kit:
        handle = await work.enqueue()
        waiting = asyncio.create_task(handle.result(timeout=20))
        await kit.drain()
        assert await waiting == "done"
        assert app._producer.settings.listen_url is None
    assert app._producer.settings.database_pooler == "transaction"
    assert app._producer.settings.listen_url is not None
