"""Jobs that run in child processes: what they see, how they end, and that they end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fencepost.app import Fencepost
from fencepost.domain.backoff import Constant
from fencepost.domain.context import Context
from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending, Outcome
from fencepost.domain.policy import Policy
from fencepost.types.jobtype import JobType
from fencepost.worker.attempt import Attempt, Host
from fencepost.worker.children import messages, output, pool, process
from fencepost.worker.children import records as child_records
from fencepost.worker.children.finding import find
from fencepost.worker.executor import Executor
from fencepost.worker.journal import Journal
from tests.patience import TIMER_SECONDS, limit

from .process_jobs import TYPES
from .support import Bench, Tally, fields_of, make_lease, records, wait_until, within

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Their transports differ in what they do with sockets and pipes."""
    return "asyncio", {"use_uvloop": request.param}


class Runner:
    """An executor of process jobs whose outcomes are kept."""

    def __init__(self) -> None:
        self.settled: list[tuple[Attempt, Outcome | None]] = []
        self.progress: list[tuple[float, str | None]] = []
        self.executor = Executor(
            TYPES,
            slots=8,
            timeout_seconds=20.0,
            policy=Policy(Constant(0.5)),
            host=Host(
                max_result_bytes=1000,
                progress=lambda attempt, fraction, message: self.progress.append((fraction, message)),
            ),
            settle=lambda attempt, outcome: self.settled.append((attempt, outcome)),
            events=Tally(),
            journal=Journal(share=0),
        )
        self.children = self.executor._children

    def begin(self, type: str, payload: Any = None, **lease: Any) -> Attempt:
        attempt = Attempt(make_lease(type=type, payload=msgspec.json.encode(payload).decode(), **lease))
        self.executor.start(attempt)
        return attempt

    async def end_of(self, attempt: Attempt, seconds: float = 10.0) -> Outcome:
        await wait_until(lambda: attempt not in self.executor.running, seconds, "an attempt to end")
        (result,) = [result for settled, result in self.settled if settled is attempt]
        assert result is not None
        return result

    async def run(self, type: str, payload: Any = None, **lease: Any) -> Outcome:
        return await self.end_of(self.begin(type, payload, **lease))

    async def value(self, type: str, payload: Any = None, **lease: Any) -> Any:
        result = await self.run(type, payload, **lease)
        assert result.ending is Ending.SUCCEEDED, result
        return None if result.result is None else msgspec.json.decode(result.result)


@pytest.fixture
async def runner() -> AsyncIterator[Runner]:
    before = _children_of(os.getpid())
    runner = Runner()
    yield runner
    await runner.executor.close()
    assert runner.children.count == 0
    assert _children_of(os.getpid()) <= before


def _children_of(pid: int) -> set[int]:
    found: set[int] = set()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        # A thread of an earlier test may end just now.
        with contextlib.suppress(OSError):
            found.update(map(int, file.read_text().split()))
    return found


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def test_it_runs_in_a_process_of_its_own_and_knows_its_attempt(runner: Runner) -> None:
    seen = await runner.value(
        "tell",
        queue="numbers",
        attempt=2,
        max_attempts=7,
        token=5,
        timeout_seconds=12.5,
        tags=("a", "b"),
        metadata='{"of": 1}',
        trace_context="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    attempt = runner.settled[0][0]
    assert seen.pop("pid") != os.getpid()
    assert seen.pop("session") != os.getsid(0)
    assert 12.5 - limit(2.5) < seen.pop("remaining") <= 12.5
    assert seen == {
        "parent": os.getpid(),
        "id": str(attempt.lease.id),
        "type": "tell",
        "queue": "numbers",
        "attempt": 2,
        "max_attempts": 7,
        "token": 5,
        "tags": ["a", "b"],
        "metadata": {"of": 1},
        "trace_context": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "timeout": 12.5,
        "cancelled": False,
        "thread": True,
    }


async def test_a_child_is_kept_for_the_next_job_and_each_running_job_has_its_own(runner: Runner) -> None:
    first = (await runner.value("tell"))["pid"]
    assert [(await runner.value("tell"))["pid"] for _ in range(3)] == [first] * 3
    attempts = [runner.begin("sleeps", 0.3) for _ in range(4)]
    began = time.monotonic()
    for attempt in attempts:
        await runner.end_of(attempt)
    assert time.monotonic() - began < limit(3)
    assert runner.children.count == 4


async def test_children_that_are_not_needed_are_ended(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.2)
    pids = [(await runner.value("tell"))["pid"]]
    for attempt in [runner.begin("sleeps", 0.1) for _ in range(3)]:
        await runner.end_of(attempt)
    await wait_until(lambda: runner.children.count == 0, 3)
    await wait_until(lambda: not _is_alive(pids[0]), 3)
    assert (await runner.value("square", 3)) == 9, "a new one is started when it is needed"


@pytest.mark.parametrize(
    ("what", "ending", "status", "error_type", "delay"),
    [
        ("permanent", Ending.PERMANENT, Status.FAILED, "Permanent", 0.0),
        ("retry", Ending.FAILED, Status.PENDING, "Retry", 7.0),
        ("snooze", Ending.SNOOZED, Status.PENDING, None, 9.0),
        ("cancel", Ending.CANCELLED, Status.CANCELLED, "Cancel", 0.0),
        ("odd", Ending.PERMANENT, Status.FAILED, "Odd", 0.0),
        ("other", Ending.FAILED, Status.PENDING, "ValueError", 0.01),
        ("exit", Ending.FAILED, Status.PENDING, "SystemExit", 0.01),
    ],
)
async def test_what_it_raises_is_judged_by_its_own_policy(
    runner: Runner, what: str, ending: Ending, status: Status, error_type: str | None, delay: float
) -> None:
    result = await runner.run("fail", what)
    assert (result.ending, result.status, result.error_type) == (ending, status, error_type)
    # A wait that was asked for is spread by up to a tenth.
    assert delay <= result.delay_seconds <= delay * 1.1
    if error_type is not None:
        assert "in fail" in (result.traceback or ""), "the child's own trace"
        assert "process.py" not in (result.traceback or "")
    assert runner.children.count == 1, "an error is no reason to end the child"


async def test_a_payload_that_does_not_fit_and_a_result_that_cannot_be_stored(
    runner: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    refused = await runner.run("square", "seven")
    assert (refused.ending, refused.error_type) == (Ending.PERMANENT, "InvalidPayload")
    assert refused.error == "the payload does not fit 'square': Expected `int`, got `str`"
    assert await runner.value("returns_what_cannot_be_stored") is None
    (record,) = records(caplog, "result not stored; the job counts as completed")
    assert "not JSON" in fields_of(record)["reason"] or "object" in fields_of(record)["reason"]
    assert await runner.value("is_async") == "awaited"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("exit", "exited with code 3"),
        ("segfault", "was killed by SIGSEGV"),
        ("SIGKILL", "was killed by SIGKILL"),
        ("SIGABRT", "was killed by SIGABRT"),
    ],
)
async def test_a_child_that_dies_is_one_failed_attempt(runner: Runner, how: str, message: str) -> None:
    beside = runner.begin("sleeps", 0.5)
    result = await runner.run("die", how)
    assert (result.ending, result.status, result.error_type) == (Ending.FAILED, Status.PENDING, "ProcessDied")
    assert result.error == f"the process that ran this job {message}; the last it wrote to stderr: last words"
    assert (await runner.end_of(beside)).ending is Ending.SUCCEEDED
    assert await runner.value("square", 4) == 16


async def test_death_is_retried_whatever_the_policy_says(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    strict = msgspec.structs.replace(TYPES["die"], policy=Policy(retry_on=(ConnectionError,)))
    monkeypatch.setitem(TYPES, "die", strict)
    assert (await runner.run("die", "SIGKILL")).status is Status.PENDING
    assert (await runner.run("die", "SIGKILL", attempt=3)).status is Status.DEAD_LETTER


async def test_a_function_stuck_in_c_is_stopped_at_its_timeout(runner: Runner) -> None:
    await runner.value("square", 1)
    began = time.monotonic()
    attempt = runner.begin("stuck_in_c", timeout_seconds=0.5)
    result = await runner.end_of(attempt)
    assert 0.5 - TIMER_SECONDS <= time.monotonic() - began < limit(1.5)
    assert (result.ending, result.error_type) == (Ending.TIMED_OUT, "Timeout")
    assert runner.executor.free == 8
    assert runner.children.count == 0
    assert await runner.value("square", 5) == 25


@pytest.mark.parametrize("ending", [Ending.CANCELLED, Ending.RELEASED])
async def test_a_handler_that_looks_notices_that_it_is_not_wanted(runner: Runner, ending: Ending) -> None:
    # So that there is a child: its start would count toward the time that it has to notice.
    await runner.value("square", 1)
    attempt = runner.begin("polls")
    await wait_until(lambda: attempt.remote is not None, 3)
    runner.executor.interrupt(attempt, ending)
    result = await runner.end_of(attempt)
    assert result.result == b'"noticed"', "work that was done is done"
    assert runner.children.count == 1
    await asyncio.sleep(0)
    assert await runner.value("square", 2) == 4, "the child isn't killed later"


@pytest.mark.parametrize("ending", [Ending.CANCELLED, Ending.RELEASED, Ending.LOST])
async def test_one_that_does_not_look_is_killed(
    runner: Runner, ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "POLITE_SECONDS", 0.2)
    attempt = runner.begin("stuck_in_c")
    await wait_until(lambda: attempt.remote is not None, 3)
    runner.executor.interrupt(attempt, ending)
    await wait_until(lambda: not runner.executor.running, 3)
    assert [result and result.ending for _, result in runner.settled] == [None if ending is Ending.LOST else ending]
    assert runner.children.count == 0


@pytest.mark.slow
async def test_it_can_say_how_far_it_is_and_ask_for_more_time(runner: Runner) -> None:
    # So that there is a child: its start counts, too.
    await runner.value("square", 1)
    remaining = await runner.value("extends", 1.7, timeout_seconds=1.5)
    assert 29.8 - limit(0.4) < remaining < 29.8 + 0.4
    assert runner.progress == [(0.25, "started"), (0.75, None)]
    assert runner.settled[1][0].timeout_seconds == 31.5


CHATTER = ("half of a line and the other half", "a line of stderr", "another record")


async def test_what_it_prints_and_logs_is_in_the_workers_log(runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fencepost")
    result = await runner.run("chatter")
    assert result.ending is Ending.SUCCEEDED
    # Two pipes and a link, each of which may be read last.
    await wait_until(lambda: all(records(caplog, last) for last in CHATTER), 2)
    attempt = runner.settled[0][0]
    who = {"job_id": str(attempt.lease.id), "job_type": "chatter", "attempt": 1}
    assert [fields_of(record) for record in records(caplog, "a line of stdout")] == [{**who, "stream": "stdout"}]
    assert records(caplog, "half of a line and the other half")
    (record,) = records(caplog, "a line of stderr")
    assert (record.name, record.levelno, fields_of(record)) == (
        "fencepost.job",
        logging.INFO,
        {**who, "stream": "stderr"},
    )
    (record,) = records(caplog, "a record of its logger")
    assert (record.name, record.levelno, fields_of(record)) == (
        "fencepost.job",
        logging.WARNING,
        {**who, "more": [1, 2]},
    )
    (record,) = records(caplog, "another record")
    assert fields_of(record) == {"thing": "<class 'object'>"}
    assert not records(caplog, "not of interest")


async def test_a_flood_of_lines_is_cut(runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fencepost.job")
    await runner.run("flood", 3000)
    await runner.run("chatter")
    await wait_until(lambda: records(caplog, "a line of stdout"), 2)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("line ")]
    assert len(lines) == output.LINES
    assert records(caplog, "(it prints more than 1,000 lines; the rest is left out)")
    assert max(len(record.getMessage()) for record in caplog.records) <= output.LINE_CHARACTERS


@pytest.mark.slow
async def test_what_a_child_has_started_goes_with_it(runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    """Also when that keeps the child's socket open, so that nobody hears of its death."""
    caplog.set_level(logging.INFO, "fencepost.job")

    def told() -> list[int]:
        return [int(record.getMessage()) for record in caplog.records if record.getMessage().isdigit()]

    # So that there is a child: its start counts, too.
    await runner.value("square", 1)
    for name, payload, allowed in (("starts_one_and_waits", None, 1.5), ("leaves_a_grandchild", "die", None)):
        caplog.clear()
        result = await runner.run(name, payload, timeout_seconds=allowed)
        assert result.ending is (Ending.TIMED_OUT if allowed else Ending.FAILED)
        await wait_until(told, 2, "the grandchild's number to be read")
        [grandchild] = told()
        await wait_until(lambda: not _is_alive(grandchild), 2)  # noqa: B023
    assert "exited with code 4" in (result.error or "")


async def test_a_child_that_dies_while_it_has_nothing_to_do_is_not_used_again(runner: Runner) -> None:
    pid = (await runner.value("tell"))["pid"]
    (child,) = runner.children._idle
    os.kill(pid, signal.SIGKILL)
    await wait_until(lambda: not _is_alive(pid), 2)
    await within(2, child.gone.wait())
    assert (await runner.value("tell"))["pid"] != pid


async def test_one_that_says_what_makes_no_sense_is_killed(runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    assert (await runner.run("speaks_nonsense")).error_type == "ProcessDied"
    assert records(caplog, "a child process says what makes no sense; it is killed")


async def test_a_function_that_is_not_there_is_a_failed_attempt(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, error_type in (
        ("tests.worker.process_jobs:nothing", "InvalidSettings"),
        ("tests.worker.no_such_module:it", "ModuleNotFoundError"),
        ("tests.worker.process_jobs:os", "InvalidSettings"),
    ):
        monkeypatch.setitem(TYPES, "square", msgspec.structs.replace(TYPES["square"], path=path))
        result = await runner.run("square", 1)
        assert (result.ending, result.error_type) == (Ending.FAILED, error_type)


async def test_a_start_that_fails_half_way_leaves_nothing(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()

    class Refusing:
        def __getattr__(self, name: str) -> Any:
            if name == "connect_read_pipe":
                raise OSError("no more files")
            return getattr(loop, name)

    made = process.Child.__init__

    def make(self: process.Child) -> None:
        made(self)
        self._loop = Refusing()  # type: ignore[assignment]

    monkeypatch.setattr(process.Child, "__init__", make)
    open_files = []
    # More than once: a loop may make something of its own at the first.
    for _ in range(3):
        result = await runner.run("square", 1)
        assert (result.status, result.error) == (Status.PENDING, "no more files")
        await wait_until(lambda: not runner.children._ending, 2)
        await asyncio.sleep(0.02)
        open_files.append(len(os.listdir("/proc/self/fd")))
    assert len(set(open_files)) == 1


@pytest.mark.parametrize("how", ["return", "exit", "raise"])
async def test_a_forked_process_answers_for_no_job(runner: Runner, how: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fencepost.job")
    forked = await runner.value("forks", how)
    assert isinstance(forked, int)
    assert await runner.value("sleeps", 0.6) == "slept", "the job that runs when the fork leaves the handler"
    assert await runner.value("square", 3) == 9
    await wait_until(lambda: not _is_alive(forked), 2, "it to end where the handler did")
    assert runner.children.count == 1
    assert runner.progress == []
    said = ["logged in a fork", "printed in a fork"]
    if how == "raise":
        said.append("ValueError: raised in a fork")
    await wait_until(lambda: all(records(caplog, one) for one in said), 2)
    (record,) = records(caplog, "logged in a fork")
    assert (record.name, fields_of(record)["stream"]) == ("fencepost.job", "stderr")
    assert bool(records(caplog, "ValueError: raised in a fork")) is (how == "raise")


async def test_a_fork_ends_as_a_program_would(runner: Runner) -> None:
    assert [await runner.value("forked_exit_code", code) for code in (None, 0, 7, "a reason")] == [0, 0, 7, 1]
    assert await runner.value("forks_in_a_loop") == "from the thread"
    assert runner.children.count == 1


@pytest.mark.slow
async def test_what_a_thread_says_late_is_not_taken_for_the_next_job(runner: Runner) -> None:
    await runner.value("leaves_a_thread", 0.2)
    assert await runner.value("sleeps", 0.5) == "slept"
    assert runner.progress == []
    assert runner.settled[1][0].timeout_seconds == 20


@pytest.mark.parametrize("off", [-1, 1])
async def test_an_answer_for_another_run_kills_the_child(
    runner: Runner, off: int, caplog: pytest.LogCaptureFixture
) -> None:
    result = await runner.run("answers_for_another", off)
    assert (result.ending, result.error_type) == (Ending.FAILED, "ProcessDied")
    assert records(caplog, "a child process says what makes no sense; it is killed")
    assert await runner.value("square", 3) == 9


async def test_signals_to_the_whole_service_cost_no_attempt_and_reach_what_a_job_starts(runner: Runner) -> None:
    assert await runner.value("gets_signals") == [-15, -15, -2, -2]
    (pid,) = {(await runner.value("tell"))["pid"]}
    beside = runner.begin("sleeps", 0.3)
    await wait_until(lambda: beside.remote is not None, 3)
    os.kill(pid, signal.SIGTERM)
    assert (await runner.end_of(beside)).ending is Ending.SUCCEEDED


async def test_not_even_while_a_child_starts(runner: Runner) -> None:
    attempt = runner.begin("square", 5)
    await wait_until(lambda: attempt.remote is not None, 3)
    assert isinstance(attempt.remote, process.Child)
    assert attempt.remote._process is not None
    os.kill(attempt.remote._process.pid, signal.SIGTERM)
    os.kill(attempt.remote._process.pid, signal.SIGINT)
    assert (await runner.end_of(attempt)).result == b"25"
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.parametrize("how", ["close", "remove"])
async def test_a_job_that_spoils_its_streams_is_done_and_the_next_one_can_print(
    runner: Runner, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fencepost.job")
    for _ in range(2):
        assert await runner.value("spoils_its_streams", how) == how
        caplog.clear()
        assert await runner.value("spoils_its_streams", "print") == "print"
        for stream in ("stdout", "stderr"):
            await wait_until(lambda: records(caplog, f"a line of {stream}"), 2)  # noqa: B023
    assert runner.children.count == 1


async def test_fields_that_a_record_factory_makes_do_not_end_a_job(
    runner: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    made = logging.getLogRecordFactory()

    def make(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = made(*args, **kwargs)
        record.worker, record.stream = "worker", "none"
        return record

    caplog.set_level(logging.INFO, "fencepost.job")
    logging.setLogRecordFactory(make)
    try:
        await runner.value("logs_oddly", "fields")
        await runner.value("spoils_its_streams", "print")
        await wait_until(lambda: records(caplog, "a line of stdout"), 2)
    finally:
        logging.setLogRecordFactory(made)
    (record,) = records(caplog, "odd")
    assert fields_of(record) == {"odd": {"(None,)": 3}, "half": "\ufffd", "worker": "child", "stream": "none"}
    (record,) = records(caplog, "a line of stdout")
    assert fields_of(record)["stream"] == "stdout"


async def test_a_filter_that_raises_does_not_end_a_job(runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise RuntimeError("a filter's own fault")

    loggers = [logging.getLogger("of.another"), logging.getLogger("fencepost.job")]
    for logger in loggers:
        logger.addFilter(refuse)
    try:
        assert (await runner.run("chatter")).ending is Ending.SUCCEEDED
    finally:
        for logger in loggers:
            logger.removeFilter(refuse)
    assert records(caplog, "what a child process has logged can't be logged here")
    assert await runner.value("square", 2) == 4
    assert runner.children.count == 1


async def test_records_are_cut_and_mended(runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    assert (await runner.run("logs_oddly", "huge")).ending is Ending.SUCCEEDED
    (record,) = [record for record in caplog.records if record.name == "of.another"]
    assert len(record.getMessage()) == child_records.MESSAGE_CHARACTERS
    fields = fields_of(record)
    assert {name: len(value) for name, value in fields.items()} == dict.fromkeys(
        ("body", "list"), child_records.FIELD_CHARACTERS
    )
    assert fields["list"].startswith("[0,1,2")
    assert (await runner.run("logs_oddly", "text")).ending is Ending.SUCCEEDED
    assert records(caplog, "half \ufffd")
    await runner.value("odd_progress")
    assert runner.progress == [(0.5, "half \ufffd")]


async def test_forked_processes_may_all_log_at_once(runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fencepost.job")
    assert await runner.value("forks_loggers", 50) == [0, 0, 0, 0]
    assert records(caplog, "y" * output.LINE_CHARACTERS)
    assert runner.children.count == 1


async def test_functions_are_found_by_their_path() -> None:
    found = find("tests.worker.process_jobs:square", "square", None)
    assert isinstance(found, JobType)
    assert find("tests.worker.process_jobs:app", "tell", None).name == "tell"
    plain = find("tests.worker.process_jobs:plain", "anything", None)
    assert plain.handler(None, plain.decoder.decode("[1]")) == "plain [1]"  # type: ignore[arg-type]


def test_frames_are_put_together_again() -> None:
    sent: list[messages.Report] = [
        messages.Progressed(1, 0.5, None),
        messages.Returned(1, b"1" * 70_000),
        messages.Extended(2, 3.0),
    ]
    wire = b"".join(messages.frame(message) for message in sent)
    for size in (1, 7, 4096, len(wire)):
        frames = messages.Frames()
        got = [
            messages.read_report(body)
            for start in range(0, len(wire), size)
            for body in frames.feed(wire[start : start + size])
        ]
        assert got == sent


@pytest.mark.slow
async def test_nothing_adds_up_over_200_jobs(runner: Runner) -> None:
    """Among them some whose child is killed."""

    async def some(count: int) -> None:
        attempts = [runner.begin("square", number) for number in range(count)]
        attempts += [runner.begin("die", "SIGKILL"), runner.begin("stuck_in_c", timeout_seconds=0.1)]
        for attempt in attempts:
            await runner.end_of(attempt, 20)

    def taken() -> tuple[int, int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(asyncio.all_tasks())

    async def ended() -> None:
        await wait_until(lambda: not runner.children._ending, 5, "the children to be reaped")
        await asyncio.sleep(0.1)

    for _ in range(6):
        await some(1)
    await ended()
    before = taken()
    for _ in range(30):
        for number in range(3):
            await runner.value("square", number)
    for _ in range(14):
        await some(6)
    await ended()
    children = runner.children.count
    assert children <= 8
    descriptors, threads, tasks = taken()
    # Three for each child that there is now.
    assert descriptors <= before[0] + 3 * children
    assert (threads, tasks) == before[1:]


@pytest.mark.slow
async def test_a_job_that_kills_its_child_each_time_is_dead_lettered_and_no_other_notices(bench: Bench) -> None:
    app = Fencepost()
    app.types.update(TYPES)
    ran: list[int] = []

    async def healthy(context: Context, payload: int) -> int:
        await asyncio.sleep(0.02)
        ran.append(payload)
        return payload

    app.register("healthy", healthy)
    await bench.start(app=app, workers=6)
    dying = await bench.enqueue("die", "SIGKILL", max_attempts=3)
    well = await bench.enqueue_many("healthy", list(range(50)))
    squares = await bench.enqueue_many("square", list(range(10)))
    job = await bench.ended(dying, seconds=20)
    assert (job.status, job.attempts) == (Status.DEAD_LETTER, 3)
    assert [(past.outcome, past.error_type) for past in await bench.history(dying)] == [("failed", "ProcessDied")] * 3
    assert {job.status for job in await bench.finished_quickly([*well, *squares])} == {Status.COMPLETED}
    assert sorted(ran) == list(range(50))


async def test_cancelling_and_shutting_down_reach_a_child(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "POLITE_SECONDS", 0.2)
    app = Fencepost()
    app.types.update(TYPES)
    worker = await bench.start(app=app)
    cancelled, released = await bench.enqueue_many("stuck_in_c", [None, None])
    await wait_until(lambda: len([one for one in worker._executor.running if one.remote is not None]) == 2, 5)
    await wait_until(lambda: worker._listener.is_connected, 3)
    await bench.jobs.cancel(cancelled)
    assert (await bench.ended(cancelled)).status is Status.CANCELLED
    began = time.monotonic()
    assert await worker.drain(0.1) == 0
    assert time.monotonic() - began < limit(4)
    job = await bench.get(released)
    assert (job.status, job.attempts) == (Status.PENDING, 0)


@pytest.fixture
def orphans(tmp_path: Path, database_url: str) -> Iterator[subprocess.Popen[str]]:
    """A worker process of its own, whose child is stuck in C."""
    script = tmp_path / "worker.py"
    script.write_text(
        "import asyncio, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from fencepost.settings import Settings\n"
        "from fencepost.telemetry.events import Events\n"
        "from fencepost.worker.worker import Worker\n"
        "from tests.worker.process_jobs import TYPES\n"
        "async def main():\n"
        "    worker = Worker(sys.argv[1], TYPES, Settings(workers=2), Events())\n"
        "    await worker.start()\n"
        "    while True:\n"
        "        for one in worker._executor.running:\n"
        "            if one.remote is not None:\n"
        "                print(one.remote._process.pid, flush=True)\n"
        "                return await asyncio.sleep(600)\n"
        "        await asyncio.sleep(0.01)\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen([sys.executable, str(script), database_url], stdout=subprocess.PIPE, text=True)
    yield process
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.communicate()


@pytest.mark.slow
async def test_children_do_not_outlive_a_worker_that_is_killed(bench: Bench, orphans: subprocess.Popen[str]) -> None:
    """Not even one that is in C code, where no thread of its own can notice."""
    await bench.enqueue("stuck_in_c")
    assert orphans.stdout is not None
    child = int(orphans.stdout.readline())
    # Past its start, into the loop that never ends.
    await wait_until(lambda: int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11]) > 40, 15)
    assert _is_alive(child)
    orphans.kill()
    await wait_until(lambda: not _is_alive(child), 2, "the child to end with its worker")


def test_a_function_of_the_main_script_is_found(tmp_path: Path, database_url: str) -> None:
    """Without running the script's own main part again."""
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio, os, sys\n"
        "from dataclasses import dataclass\n"
        "from fencepost import Fencepost\n"
        "print('the script runs', __name__, flush=True)\n"
        "app = Fencepost(sys.argv[1] if len(sys.argv) > 1 else None)\n"
        "@dataclass\n"
        "class Point:\n"
        "    x: int\n"
        "@app.job(process=True)\n"
        "def double(point: Point) -> list:\n"
        "    return [point.x * 2, os.getpid()]\n"
        "async def main():\n"
        "    handle = await double.enqueue(Point(4))\n"
        "    async with app.worker(workers=1):\n"
        "        number, pid = await handle.result(timeout=20)\n"
        "    print('result', number, pid != os.getpid(), flush=True)\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), database_url], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["the script runs __main__", "result 8 True"], done
