"""
Keys: the same key for another request is told, and arguments are the same when they are equal. B11, B13.

Races are in tests/store/test_idempotency.py, test_unique.py and tests/api/test_submission.py.
"""

from __future__ import annotations

import itertools
from typing import Any

import httpx2
import pytest

from fencepost import Fencepost, InvalidJob, KeyConflict, UniqueBy
from fencepost.store.jobs import Jobs

from .doors import Doors, Refused

pytestmark = pytest.mark.anyio


@pytest.fixture
def doors(app: Fencepost, echo: Any, api: httpx2.AsyncClient, database_url: str) -> Doors:
    return Doors(app, echo, api, database_url)


async def test_a_key_means_one_request_through_every_door(doors: Doors, jobs: Jobs) -> None:
    """Whichever door was first: another repeats it, or is told that something differs."""
    same: list[dict[str, Any]] = [{"a": 1, "b": [1.0, None]}, {"b": [1.00, None], "a": 1}]
    for first in ("library", "http", "sql"):
        key = "key-" + first.replace(", ", "-").replace(" ", "-")
        made = (await doors.all(idempotency_key=key)[first]([same[0]]))[0]
        for name, door in doors.all(idempotency_key=key).items():
            assert await door([same[1]]) == [made], name
            with pytest.raises(Exception, match=f"{key}.* already made job {made} from another request") as told:
                await door([{**same[0], "b": [1.0]}])
            assert isinstance(told.value, KeyConflict) or getattr(told.value, "status", 409) == 409
        for other in ({"queue": "another"}, {"priority": 1}, {"tags": ["another"]}):
            for name in ("library", "http", "sql"):
                with pytest.raises(Exception, match="from another request"):
                    await doors.all(idempotency_key=key, **other)[name]([same[0]])
    assert (await jobs.audit())["jobs"] == 3


@pytest.mark.parametrize("length", [0, 256, 5_000])
async def test_a_key_of_no_sensible_length_is_refused(doors: Doors, length: int) -> None:
    for door in ("library", "http", "http, lines"):
        with pytest.raises((InvalidJob, Refused), match="idempotency_key: must be 1 to 255 printable ASCII"):
            await doors.all(idempotency_key="k" * length)[door]([1])
    longest = [await door([1]) for door in doors.all(idempotency_key="k" * 255).values()]
    assert len({job_id for [job_id] in longest}) == 1


DIFFERENT: list[tuple[Any, Any]] = [
    ({"id": 1}, {"id": 1, "x": 2}),
    ({}, {"f": 1}),
    ({"p": {"id": "a"}}, {"p": {"id": "b"}}),
    ([1, 2], [2, 1]),
    ([], {}),
    (None, {}),
    ({"a": None}, {}),
    ("1", 1),
    (1, 1.0),
    (True, 1),
    ("true", True),
    ("null", None),
    ("\u00e9", "e\u0301"),
    ("x" * 1_000, "x" * 1_001),
    ({"x": "y" * 500}, {"x": "y" * 500, "z": 1}),
]


@pytest.mark.parametrize("turned", [False, True])
async def test_arguments_that_only_look_alike_make_two_jobs_in_either_order(app: Fencepost, turned: bool) -> None:
    @app.job(unique=UniqueBy("value"))
    async def by_name(value: Any, case: int) -> None: ...

    @app.job(unique=UniqueBy())
    async def by_all(value: Any, case: int) -> None: ...

    @app.job(unique=UniqueBy(lambda arguments: [arguments["case"], arguments["value"]]))
    async def by_function(value: Any, case: int) -> None: ...

    for place, pair in enumerate(DIFFERENT):
        one, other = reversed(pair) if turned else pair
        for job in (by_name, by_all, by_function):
            if job is by_name:
                # The cases have values in common, and this one looks at nothing else.
                one, other = [place, one], [place, other]
            made = await job.enqueue(one, place)
            assert made.effect == "created", (job.name, pair)
            assert (await job.enqueue(other, place)).effect == "created", (job.name, pair)
            again = await job.enqueue(one, place)
            assert (again.id, again.effect) == (made.id, "skipped"), (job.name, pair)


async def test_arguments_that_are_equal_are_one_however_they_are_written(app: Fencepost) -> None:
    @app.job(unique=UniqueBy())
    async def work(value: Any, kind: str = "all") -> None: ...

    made = await work.enqueue({"b": 1, "a": [{"d": 1, "c": 2}]})
    orders = itertools.product(
        ({"a": [{"c": 2, "d": 1}], "b": 1}, {"b": 1, "a": [{"d": 1, "c": 2}]}), ({}, {"kind": "all"})
    )
    for value, kind in orders:
        assert (await work.enqueue(value, **kind)).id == made.id
