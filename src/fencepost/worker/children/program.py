"""
The program of a child: runs the jobs that its worker sends, one at a time, in its main thread.

It never outlives the worker, however that ends and whatever the handler is stuck in: on Linux
the kernel kills it, elsewhere a thread notices that the socket is closed.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Coroutine
from typing import Any

import msgspec

from fencepost.domain.context import Context
from fencepost.domain.outcome import Ending, Judgement, Verdict, judge
from fencepost.domain.policy import Policy
from fencepost.domain.text import clean_text, storable_json
from fencepost.telemetry import tracing
from fencepost.types.codec import encode_result
from fencepost.worker.attempt import Attempt, Host
from fencepost.worker.children import forks, messages
from fencepost.worker.children.finding import find
from fencepost.worker.children.records import Forward
from fencepost.worker.children.streams import Streams

_PR_SET_PDEATHSIG = 1
PROGRESS_CHARACTERS = 10_000
"""A longer message isn't sent; how much of it is kept is the worker's matter."""


def main(fd: int, parent: int) -> None:
    """Run jobs until the worker is gone."""
    _die_with(parent)
    forks.leave_signals_to_the_worker()
    streams = Streams()
    link = _Link(socket.socket(fileno=fd))
    os.register_at_fork(after_in_child=link.mute)
    logging.getLogger().addHandler(Forward(link.say, is_muted=lambda: link.is_muted))
    threading.Thread(target=link.listen, name="fencepost-orders", daemon=True).start()
    while True:
        attempt = link.attempts.get()
        answer = _run(attempt)
        streams.flush()
        link.say(answer)
        if link.is_muted:
            # Forked off where nobody looked, by what encodes results, say.
            os._exit(1)
        # Not held while it waits for the next.
        del attempt, answer


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its worker dies; see to it that that hasn't happened yet."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


class _Link:
    """The child's end of the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self.attempts: queue.SimpleQueue[_Attempt] = queue.SimpleQueue()
        """For the main thread; one at a time."""
        self.is_muted = False
        """Set in a process that was forked off: there it speaks for nobody."""

    def mute(self) -> None:
        """Say nothing from now on, and leave the socket to the process that was forked."""
        self.is_muted = True
        # Only this process's own number of it.
        self._connection.close()

    def say(self, report: messages.Report) -> None:
        """Tell the worker. Callable from any thread."""
        if self.is_muted:
            return
        data = messages.frame(report)
        try:
            with self._sending:
                self._connection.sendall(data)
        except OSError:
            os._exit(0)

    def listen(self) -> None:
        """Take orders until the worker is gone, and then end at once, whatever runs."""
        frames, current = messages.Frames(), None
        while data := self._receive():
            for body in frames.feed(data):
                order = messages.read_order(body)
                if isinstance(order, messages.Run):
                    # From here on it can be interrupted, also while its function is being imported.
                    current = _Attempt(order, self)
                    self.attempts.put(current)
                elif current is not None:
                    current.interruption = Ending.CANCELLED
        os._exit(0)

    def _receive(self) -> bytes:
        try:
            return self._connection.recv(1 << 16)
        except OSError:
            return b""


class _Attempt(Attempt):
    """An attempt as its child has it: what its handler asks for is passed on to the worker."""

    __slots__ = ("_link", "order")

    def __init__(self, order: messages.Run, link: _Link) -> None:
        super().__init__(order.lease)
        self.order = order
        self._link = link
        self.timeout_seconds = order.timeout_seconds
        self.deadline = self.started_at + order.remaining_seconds
        self.host = Host(
            schema=order.schema,
            max_result_bytes=order.max_result_bytes,
            progress=lambda attempt, fraction, message: link.say(
                messages.Progressed(order.number, fraction, message and clean_text(message, PROGRESS_CHARACTERS))
            ),
        )

    def extend(self, seconds: float) -> None:
        super().extend(seconds)
        self._link.say(messages.Extended(self.order.number, seconds))

    async def complete_in(self, connection: Any, result: object) -> None:
        self._link.say(messages.Completing(self.order.number, done=False))
        await super().complete_in(connection, result)
        self._link.say(messages.Completing(self.order.number, done=True))

    def complete_in_sync(self, connection: Any, result: object) -> None:
        self._link.say(messages.Completing(self.order.number, done=False))
        super().complete_in_sync(connection, result)
        self._link.say(messages.Completing(self.order.number, done=True))


def _run(attempt: _Attempt) -> messages.Returned | messages.Raised:
    order = attempt.order
    for name, level in order.log_levels.items():
        logging.getLogger(name or None).setLevel(level)
    policy, encode = Policy(), encode_result
    try:
        job_type = find(order.path, order.lease.type, order.main)
        policy, encode = job_type.policy or policy, job_type.encode or encode
        try:
            payload = job_type.decoder.decode(order.lease.payload)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            return _refused(order, f"the payload does not fit {order.lease.type!r}: {error}")
        try:
            with tracing.continuing(order.span), forks.end_here():
                value = job_type.handler(_context(order, attempt), payload)
                if inspect.iscoroutine(value):
                    value = asyncio.run(_awaited(value))
        finally:
            attempt.end()
    except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to this job
        return messages.Raised(order.number, judge(error, policy))
    if value is None:
        return messages.Returned(order.number, None)
    try:
        return messages.Returned(order.number, storable_json(value, encode=encode, limit=order.max_result_bytes))
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, the work is done
        return messages.Returned(order.number, None, unstored=judge(error, policy).error)


async def _awaited(value: Coroutine[Any, Any, Any]) -> Any:
    # In here, because a forked process that ends the loop would take what it listens to from this one.
    with forks.end_here():
        return await value


def _refused(order: messages.Run, message: str) -> messages.Raised:
    return messages.Raised(
        order.number, Judgement(verdict=Verdict.FINAL, error_type="InvalidPayload", error=message[:4000])
    )


def _context(order: messages.Run, attempt: Attempt) -> Context:
    lease = order.lease
    return Context(
        id=lease.id,
        type=lease.type,
        queue=lease.queue,
        attempt=lease.attempt,
        max_attempts=lease.max_attempts,
        token=lease.token,
        timeout_seconds=order.timeout_seconds,
        tags=lease.tags,
        metadata_json=lease.metadata,
        trace_context=lease.trace_context,
        control=attempt,
    )
