"""
One child, as its worker sees it.

It is killed with everything it has started: it leads a session of its own, so a Ctrl-C in
the terminal doesn't reach it either. Until it is reaped its process id can't be anybody
else's, so nothing is signalled after that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

import msgspec

from fencepost.domain.outcome import Ending, Judgement, Verdict
from fencepost.errors import WrongStatus
from fencepost.logger import get_logger
from fencepost.worker.attempt import Attempt
from fencepost.worker.children import messages, records
from fencepost.worker.children.forks import IGNORED
from fencepost.worker.children.output import Output

log = get_logger("fencepost.worker")

POLITE_SECONDS = 2.0
"""How long a handler that was cancelled, or is in the way of a shutdown, gets to notice before it is killed."""
LOOK_SECONDS = 0.5
"""How often a child is looked at that has died, while something it started keeps its socket open."""
LAST_WORDS_SECONDS = 0.2
"""How long the end of what it printed is waited for."""
_BOOT = "import sys; sys.path[:] = {path!r}; from fencepost.worker.children.program import main; main({fd}, {parent})"


class ChildFailure(Exception):
    """A handler in a child raised, or its child died; `judgement` says what becomes of the attempt."""

    def __init__(self, judgement: Judgement) -> None:
        super().__init__(f"{judgement.error_type}: {judgement.error}")
        self.judgement = judgement


class Child(asyncio.Protocol):
    """A child process and the worker's end of its socket. Lives in one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._frames = messages.Frames()
        self._transport: asyncio.Transport | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._outputs = Output("stdout"), Output("stderr")
        self._attempt: Attempt | None = None
        self._number = 0
        """Of the run that runs now, or ran last."""
        self._answer: asyncio.Future[messages.Returned | messages.Raised] | None = None
        self._killing: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self.gone = asyncio.Event()
        """Set when it can't be talked to any more."""
        self.killed = False

    async def start(self) -> None:
        """Start the process. Raises OSError. End it with `end`, also after an error."""
        ours, theirs = socket.socketpair()
        try:
            boot = _BOOT.format(path=sys.path, fd=theirs.fileno(), parent=os.getpid())
            # In this thread: the kernel kills it when the thread that started it ends, and the loop's lasts.
            with _signals_wait():
                self._process = subprocess.Popen(  # noqa: ASYNC220 - a millisecond or two, and rare
                    [sys.executable, "-c", boot],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            theirs.close()
            ours.setblocking(False)
            await self._loop.create_unix_connection(lambda: self, sock=ours)
            for output, pipe in zip(self._outputs, (self._process.stdout, self._process.stderr), strict=True):
                await self._loop.connect_read_pipe(lambda output=output: output, pipe)  # type: ignore[misc]
        finally:
            theirs.close()
            if self._transport is None:
                ours.close()

    async def run(self, attempt: Attempt, order: messages.Run) -> msgspec.Raw | None:
        """
        Run a job and return its result as JSON.

        Raises ChildFailure, and CancelledError when the attempt was interrupted and didn't
        return for all that. Whatever ends it early kills the child.
        """
        fields = {"job_id": str(attempt.lease.id), "job_type": attempt.lease.type, "attempt": attempt.lease.attempt}
        for output in self._outputs:
            output.belongs_to(fields)
        self._attempt, self._answer = attempt, self._loop.create_future()
        self._number += 1
        self._look()
        try:
            self._send(msgspec.structs.replace(order, number=self._number))
            answer = await self._answer_of(self._answer)
        finally:
            if not self._answer.done() or self._answer.cancelled():
                self.kill()
            self._attempt = self._answer = None
            self._stop_timers()
        if isinstance(answer, messages.Raised):
            if attempt.interruption is not None:
                # What is around the handler is told as it would be of an async one.
                raise asyncio.CancelledError
            raise ChildFailure(answer.judgement)
        if answer.unstored is not None:
            log.warning("result not stored; the job counts as completed", extra={**fields, "reason": answer.unstored})
        return None if answer.result is None else msgspec.Raw(answer.result)

    async def _answer_of(
        self, answer: asyncio.Future[messages.Returned | messages.Raised]
    ) -> messages.Returned | messages.Raised:
        gone = self._loop.create_task(self.gone.wait(), name="fencepost-child-gone")
        try:
            awaited: list[asyncio.Future[Any]] = [answer, gone]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        if answer.done():
            return answer.result()
        judgement = await self._died()
        answer.set_result(messages.Raised(self._number, judgement))
        return answer.result()

    def interrupt(self, ending: Ending) -> None:
        """End the running job: at once when its time is up or its lease is lost, else after a moment to notice."""
        if ending in (Ending.TIMED_OUT, Ending.LOST):
            self.kill()
        elif self._killing is None:
            self._send(messages.Interrupt())
            self._killing = self._loop.call_later(POLITE_SECONDS, self.kill)

    def kill(self) -> None:
        """Kill it, and whatever it has started. It is still to be reaped, by `end`."""
        self.killed = True
        if self._process is not None and self._process.returncode is None:
            # Gone already, and not reaped; or on macOS, where a zombie's group can't be signalled.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def end(self) -> int | None:
        """Kill it, reap it, close everything; returns its exit status, None for one that won't even die."""
        self.kill()
        self._stop_timers()
        status = None if self._process is None else await self._reap(self._process)
        if self._transport is not None:
            self._transport.abort()
        for output in self._outputs:
            output.close()
        for pipe in () if self._process is None else (self._process.stdout, self._process.stderr):
            # Those that are read are closed by whoever reads them; these are of a start that failed half way.
            if pipe is not None and not all(output.transport for output in self._outputs):
                pipe.close()
        return status

    async def _reap(self, process: subprocess.Popen[bytes]) -> int | None:
        for _ in range(200):
            if process.poll() is not None:
                return process.returncode
            await asyncio.sleep(0.005)
        # It is in the kernel's hands; the interpreter looks at it again later.
        log.error("a child process can't be killed", extra={"pid": process.pid})
        return None

    async def _died(self) -> Judgement:
        """Say what it died of, now that it has closed its socket, or something else is amiss."""
        process = self._process
        assert process is not None
        # Before it is killed with what it started: an exit of its own has a status to tell of.
        for _ in range(20):
            if _has_exited(process.pid):
                break
            await asyncio.sleep(0.005)
        status = await self.end_keeping_output()
        words = self._outputs[1].tail
        message = f"the process that ran this job {_cause(status)}"
        return Judgement(
            verdict=Verdict.RETRY,
            error_type="ProcessDied",
            error=f"{message}; the last it wrote to stderr: {words}" if words else message,
        )

    async def end_keeping_output(self) -> int | None:
        """As `end`, but first reads what it has printed."""
        self.kill()
        stderr = self._outputs[1]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stderr.closed.wait(), LAST_WORDS_SECONDS)
        return await self.end()

    def _send(self, order: messages.Order) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(messages.frame(order))

    def _look(self) -> None:
        if self._process is not None and _has_exited(self._process.pid):
            self.gone.set()
        else:
            self._looking = self._loop.call_later(LOOK_SECONDS, self._look)

    def _stop_timers(self) -> None:
        for timer in (self._killing, self._looking):
            if timer is not None:
                timer.cancel()
        self._killing = self._looking = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It can be talked to."""
        # Not checked: uvloop's is one without saying so.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """It has ended, or closed what it should have left alone."""
        self.gone.set()

    def data_received(self, data: bytes) -> None:
        """It says something."""
        try:
            for body in self._frames.feed(data):
                self._heard(messages.read_report(body))
        except Exception:
            log.exception("a child process says what makes no sense; it is killed")
            self.kill()

    def _heard(self, report: messages.Report) -> None:
        if isinstance(report, messages.Logged):
            fields = records.read_fields(report.fields)
            records.write(logging.getLogger(report.logger), report.level, report.message, fields)
            return
        attempt, is_answer = self._attempt, isinstance(report, messages.Returned | messages.Raised)
        if report.run != self._number:
            # A thread that an earlier job has left behind may say how far it is; only one speaks for a job.
            if is_answer:
                raise ValueError(f"an answer of run {report.run} in run {self._number}")
        elif attempt is None:
            # The last words of an attempt that has ended.
            return
        elif isinstance(report, messages.Returned | messages.Raised):
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(report)
        elif isinstance(report, messages.Progressed):
            attempt.progress(report.fraction, report.message)
        elif isinstance(report, messages.Extended):
            # Interrupted in this moment: the child will hear of it.
            with contextlib.suppress(WrongStatus):
                attempt.extend(report.seconds)
        else:
            attempt.completing = True
            attempt.completed_in = report.done


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """What is started in here takes no SIGTERM or SIGINT until it says so: it is not ready to bear them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _has_exited(pid: int) -> bool:
    """Whether a child has exited, without reaping it; False also where that can't be told."""
    if not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _cause(status: int | None) -> str:
    if status is None:
        return "does not answer any more"
    if status >= 0:
        return f"exited with code {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
