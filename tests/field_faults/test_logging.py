"""An application whose logging fails loses lines of its log, and neither jobs, loops nor requests."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

import fencepost
from fencepost.domain.context import Context
from fencepost.domain.job import Status
from fencepost.errors import Permanent
from fencepost.logger import Logger, get_logger
from tests.worker.support import Bench, fields_of, records

pytestmark = pytest.mark.anyio

Breaking = Callable[[], AbstractContextManager[None]]


@contextmanager
def _factory(make: Callable[..., logging.LogRecord]) -> Iterator[None]:
    made = logging.getLogRecordFactory()
    logging.setLogRecordFactory(make)
    try:
        yield
    finally:
        logging.setLogRecordFactory(made)


def a_factory_with_our_fields() -> AbstractContextManager[None]:
    """As a web framework's extension sets one up: the request's id in every record."""
    made = logging.getLogRecordFactory()

    def make(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = made(*args, **kwargs)
        record.request_id = record.job_id = record.reason = "of the application"
        return record

    return _factory(make)


def a_factory_that_raises() -> AbstractContextManager[None]:
    def make(*args: Any, **kwargs: Any) -> logging.LogRecord:
        raise LookupError("outside of a request")

    return _factory(make)


@contextmanager
def a_filter_that_raises() -> Iterator[None]:
    """One at a handler of the root logger, where it gets everybody's records."""

    def refuse(record: logging.LogRecord) -> bool:
        raise LookupError("outside of a request")

    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(refuse)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


BREAKING = [a_factory_with_our_fields, a_factory_that_raises, a_filter_that_raises]


@pytest.mark.parametrize("breaking", BREAKING)
async def test_jobs_run_and_every_slot_comes_back(
    bench: Bench, caplog: pytest.LogCaptureFixture, breaking: Breaking
) -> None:
    caplog.set_level(logging.INFO, "fencepost")

    @bench.job("works")
    async def works(context: Context, payload: Any) -> str:
        return "done"

    @bench.job("fails")
    async def fails(context: Context, payload: Any) -> None:
        raise Permanent("as told")

    with breaking():
        await bench.start(workers=1)
        for _ in range(3):
            done, failed = await bench.finished(await bench.enqueue("works"), await bench.enqueue("fails"))
            assert (done.status, done.attempts) == (Status.COMPLETED, 1)
            assert (failed.status, failed.attempts) == (Status.FAILED, 1)


@pytest.mark.parametrize("breaking", BREAKING)
async def test_requests_are_answered(
    api: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture, breaking: Breaking
) -> None:
    caplog.set_level(logging.DEBUG, "fencepost")
    with breaking():
        stored = await api.post("/jobs", json={"type": "echo"})
        assert stored.status_code == 201
        assert (await api.get(f"/jobs/{stored.json()['id']}")).status_code == 200
        assert (await api.get("/jobs/none")).status_code == 400
        assert (await api.get("/healthz")).status_code == 200


def test_a_field_of_ours_takes_the_place_of_the_applications(caplog: pytest.LogCaptureFixture) -> None:
    with a_factory_with_our_fields():
        get_logger("fencepost.worker").warning("a line", extra={"job_id": "ours", "name": "refused", "more": 1})
    (record,) = records(caplog, "a line")
    assert fields_of(record) == {
        "job_id": "ours",
        "more": 1,
        "request_id": "of the application",
        "reason": "of the application",
    }
    assert (record.name, record.filename, record.funcName) == (
        "fencepost.worker",
        Path(__file__).name,
        test_a_field_of_ours_takes_the_place_of_the_applications.__name__,
    )


def test_what_the_application_has_set_up_stays() -> None:
    class Own(logging.Logger):
        pass

    early = logging.getLogger("fencepost.set_up_early")
    early.setLevel(logging.ERROR)
    assert get_logger("fencepost.set_up_early") is early
    assert (type(early), early.level) == (Logger, logging.ERROR)
    own = Own("fencepost.own")
    logging.Logger.manager.loggerDict["fencepost.own"] = own
    try:
        assert type(get_logger("fencepost.own")) is Own
    finally:
        del logging.Logger.manager.loggerDict["fencepost.own"]


def test_every_logger_of_ours_is_one_that_does_not_raise() -> None:
    folder = Path(fencepost.__file__).parent
    plain = re.compile(r"^\w+ = logging\.getLogger\(", re.MULTILINE)
    assert [path for path in folder.rglob("*.py") if plain.search(path.read_text(encoding="utf-8"))] == []
