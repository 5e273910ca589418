"""Mistakes that would have put jobs in the wrong place, or said nothing: each is refused with a sentence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from fencepost import Fencepost, InvalidJob, InvalidSettings, Unique, UniqueBy


@pytest.mark.parametrize("dsn", ["", "  ", 5, b"postgresql://x/y", ["postgresql://x/y"]])
def test_what_is_no_address_is_refused_when_it_is_said(dsn: Any) -> None:
    with pytest.raises(InvalidSettings, match=r"^dsn is .*; it must be a PostgreSQL address such as"):
        Fencepost(dsn)
    with pytest.raises(InvalidSettings, match="it must be a PostgreSQL address"):
        Fencepost().use(dsn)


def test_an_address_that_cannot_be_one_is_refused_as_the_service_refuses_it() -> None:
    with pytest.raises(InvalidSettings, match=r"^dsn must begin with postgresql:// alone"):
        Fencepost("postgresql+asyncpg://localhost/app")
    with pytest.raises(InvalidSettings, match=r"^what dsn returned must be an address such as"):
        Fencepost(lambda: "sqlite:///app.db").database_url()
    with pytest.raises(InvalidSettings, match=r"^listen_url must be an address such as"):
        Fencepost("postgresql://localhost/app", listen_url="localhost:5432")


def test_a_function_that_tells_no_address_is_not_passed_over(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    nothing: Callable[[], Any] = lambda: None  # noqa: E731
    with pytest.raises(InvalidSettings, match=r"^the function given as dsn returned None; it must be"):
        Fencepost(nothing).database_url()
    assert Fencepost(lambda: database_url).database_url() == database_url


def test_a_call_of_another_app_is_refused() -> None:
    app, other = Fencepost("postgresql://nowhere/a"), Fencepost("postgresql://nowhere/b")

    @other.job
    async def greet(name: str) -> None: ...

    with pytest.raises(InvalidJob, match=r"^jobs\[0\]: calls: is of another app's 'greet'; enqueue it there$"):
        app.enqueue_many_sync([greet.call("Ada")])
    with pytest.raises(InvalidJob, match="is of another app's 'greet'"):
        asyncio.run(app.enqueue_many([greet.call("Ada")]))


@pytest.mark.parametrize("call", ["greet", None, 5])
def test_what_is_no_call_is_refused(call: Any) -> None:
    with pytest.raises(InvalidJob, match=r"^jobs\[0\]: calls: must be made by job\.call\(…\), not "):
        Fencepost("postgresql://nowhere/a").enqueue_many_sync([call])


def test_a_unique_rule_by_a_name_that_is_no_parameter_is_refused_everywhere() -> None:
    app = Fencepost()

    @app.job
    async def greet(name: str) -> None: ...

    @app.job
    async def open_ended(**more: str) -> None: ...

    with pytest.raises(InvalidJob, match=r"^unique: is by 'nme', which is none of its parameters: name$"):
        greet.options(unique=UniqueBy("nme"))
    open_ended.options(unique=UniqueBy("nme"))
    with pytest.raises(InvalidSettings, match=r"unique.* is by 'nme', which is none of its parameters: name"):

        @app.job(name="other", unique=UniqueBy("nme"))
        async def other(name: str) -> None: ...

    three: Any = 3
    with pytest.raises(InvalidSettings, match="UniqueBy takes names of parameters, or one function, not 3"):
        UniqueBy(three)
    wrong: Any = Unique(key="x", mode="drop")  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match=r"^unique: mode must be one of"):
        greet.options(unique=wrong)


async def _async_one() -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("function", [_async_one, lambda drafts: None, 5])
def test_what_cannot_go_around_an_enqueue_is_refused_when_it_is_declared(function: Any) -> None:
    with pytest.raises(InvalidSettings, match=r"^around_enqueue: .* must be a plain generator function"):
        Fencepost().around_enqueue(function)


def test_what_cannot_go_around_an_attempt_or_listen_is_refused_when_it_is_declared() -> None:
    wrong: Any = lambda context: None  # noqa: E731
    with pytest.raises(InvalidSettings, match=r"^around_attempt: .* must be a generator function, async or plain"):
        Fencepost().around_attempt(wrong)

    async def listener(event: object) -> None: ...

    with pytest.raises(InvalidSettings, match=r"^on_event: .* must be a plain function; nothing awaits it"):
        Fencepost().on_event(listener)


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ({"status": "done"}, "status: must be one of pending, processing, completed, failed, dead_letter, cancelled"),
        ({"since": "2h"}, "since: must be a datetime"),
        ({"ids": ["x"]}, "id: 'x' is not a job id"),
    ],
)
async def test_conditions_that_cannot_be_are_refused(database_url: str, conditions: Any, said: str) -> None:
    async with Fencepost(database_url) as app:
        with pytest.raises(InvalidJob, match=f"^{said}"):
            await app.delete_all(**conditions)
        with pytest.raises(InvalidJob, match=r"^id: 'not-a-uuid' is not a job id"):
            app.handle("not-a-uuid")
        with pytest.raises(InvalidJob, match=r"^status: must be one of"):
            _ = [job async for job in app.jobs(status="done")]


async def test_a_payload_of_any_object_can_be_registered(database_url: str) -> None:
    app = Fencepost(database_url)
    got: list[object] = []
    app.register("anything", lambda context, payload: got.append(payload), object)

    @app.job
    async def also(*, value: object) -> object:
        return value

    anything = app.declare("elsewhere", payload=object)
    assert anything.call([1]).payload == b"[1]"
    async with app, app.worker():
        handle = await also.enqueue(value={"a": [1, None]})
        assert await handle.result(timeout=5) == {"a": [1, None]}
