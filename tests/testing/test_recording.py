"""Enqueues that are remembered instead of stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from fencepost import Draft, Fencepost, InvalidJob
from fencepost.errors import DatabaseUnavailable, FencepostError
from fencepost.testing import recording

pytestmark = pytest.mark.anyio

MOMENT = datetime(2030, 1, 1, tzinfo=UTC)


async def test_what_is_enqueued_is_remembered_and_nothing_is_connected(app: Fencepost) -> None:
    @app.job
    async def greet(name: str, *, shout: bool = False) -> None: ...

    with recording(app) as remembered:
        handle = await greet.options(delay=60, tags=["a"], metadata={"t": 1}, idempotency_key="k").enqueue("Ada")
        with pytest.raises(FencepostError, match="await instead"):
            greet.enqueue_sync("Bob")
        await asyncio.to_thread(greet.options(queue="mail", run_at=MOMENT).enqueue_sync, "Bob", shout=True)
        await greet.enqueue_many([greet.call("C"), greet.call("D")])
        await app.enqueue_many([greet.call("E")])
        [ada] = remembered.assert_enqueued(greet, "Ada", shout=False)
        assert (ada.id, ada.delay_seconds, ada.tags, ada.metadata) == (handle.id, 60, ("a",), {"t": 1})
        assert ada.idempotency_key == "k"
        [bob] = remembered.enqueued(greet, shout=True)
        assert (bob.queue, bob.run_at, bob.arguments) == ("mail", MOMENT, {"name": "Bob", "shout": True})
        assert [one.arguments["name"] for one in remembered.enqueued()] == ["Ada", "Bob", "C", "D", "E"]
        assert [one.type for one in remembered.jobs] == ["greet"] * 5
        with pytest.raises(AssertionError) as raised:
            remembered.assert_enqueued(greet, "Zoe")
        assert str(raised.value).splitlines()[:3] == [
            "expected 1 greet(name='Zoe') to be enqueued, found 0.",
            "Enqueued:",
            "  greet(name='Ada', shout=False) in default, due after 60 s",
        ]
    with pytest.raises(DatabaseUnavailable):
        await greet.enqueue("Ada")


async def test_jobs_in_the_callers_transaction_are_remembered_too(app: Fencepost) -> None:
    class Session:
        """Looks like SQLAlchemy's to whoever only knows names."""

    Session.__module__, Session.__name__ = "sqlalchemy.orm.session", "Session"

    @app.job
    async def greet(name: str) -> None: ...

    with recording(app) as remembered:
        greet.within(Session()).enqueue_sync("Ada")
        remembered.assert_enqueued(greet, "Ada")


async def test_arguments_are_checked_and_functions_around_enqueues_run(app: Fencepost) -> None:
    @app.job
    async def greet(name: str) -> None: ...

    @app.around_enqueue
    def tagged(drafts: list[Draft]) -> Iterator[None]:
        for draft in drafts:
            draft.tags.append("around")
        yield

    with recording(app) as remembered:
        with pytest.raises(InvalidJob, match="name"):
            await greet.enqueue(5)  # type: ignore[arg-type]
        await greet.enqueue("Ada")
        assert [one.tags for one in remembered.enqueued()] == [("around",)]


async def test_recordings_nest_and_end_with_an_error(app: Fencepost) -> None:
    @app.job
    async def greet(name: str) -> None: ...

    with recording(app) as outer:
        await greet.enqueue("one")
        with pytest.raises(InvalidJob), recording(app) as inner:  # noqa: PT012 - the second line is the one
            await greet.enqueue("two")
            await greet.enqueue(2)  # type: ignore[arg-type]
        await greet.enqueue("three")
        inner.assert_enqueued(greet, "two")
        assert [one.arguments["name"] for one in outer.enqueued()] == ["one", "three"]
    assert "enqueue" not in vars(app._producer)
