"""Job types that run in child processes: at the top of a module, where a child finds them."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import msgspec

from fencepost.domain.backoff import Constant
from fencepost.domain.context import Context
from fencepost.domain.policy import Policy
from fencepost.errors import Cancel, Permanent, Retry, Snooze
from fencepost.types.jobtype import JobType, Kind

TYPES: dict[str, JobType] = {}


class Odd(Exception):
    """Final for the types here."""


def in_process(payload: Any = Any, **options: Any) -> Callable[[Callable[[Context, Any], Any]], JobType]:
    def decorate(function: Callable[[Context, Any], Any]) -> JobType:
        job_type = JobType(
            name=function.__name__,
            handler=function,
            decoder=msgspec.json.Decoder(payload),
            kind=Kind.PROCESS,
            path=f"{__name__}:{function.__name__}",
            **{"policy": Policy(Constant(0.01), permanent_on=(Odd,)), **options},
        )
        TYPES[function.__name__] = job_type
        return job_type

    return decorate


@in_process(int)
def square(context: Context, payload: int) -> int:
    return payload * payload


@in_process()
def tell(context: Context, payload: Any) -> Any:
    """What a child knows of its attempt, and what it is itself."""
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "session": os.getsid(0),
        "id": str(context.id),
        "type": context.type,
        "queue": context.queue,
        "attempt": context.attempt,
        "max_attempts": context.max_attempts,
        "token": context.token,
        "tags": context.tags,
        "metadata": context.metadata,
        "trace_context": context.trace_context,
        "remaining": context.remaining_seconds,
        "timeout": context.timeout_seconds,
        "cancelled": context.cancelled,
        "thread": threading.current_thread() is threading.main_thread(),
    }


@in_process()
def stuck_in_c(context: Context, payload: Any) -> int:
    print("stuck now", flush=True)
    return sum(range(10**12))


@in_process()
def fail(context: Context, payload: Any) -> None:
    raise {
        "permanent": Permanent("never"),
        "retry": Retry("later", after=7.0),
        "snooze": Snooze(9),
        "cancel": Cancel("not wanted"),
        "odd": Odd("odd"),
        "other": ValueError("wrong"),
        "exit": SystemExit(3),
    }[payload]


@in_process()
def die(context: Context, payload: Any) -> None:
    print("last words", file=sys.stderr, flush=True)
    if payload == "exit":
        os._exit(3)
    if payload == "segfault":
        ctypes.string_at(0)
    os.kill(os.getpid(), getattr(signal, payload))
    time.sleep(30)


@in_process()
def chatter(context: Context, payload: Any) -> None:
    print("a line of stdout")
    print("half of a line ", end="")
    print("and the other half")
    print("a line of stderr", file=sys.stderr)
    context.logger.warning("a record of %s", "its logger", extra={"more": [1, 2]})
    logging.getLogger("of.another").error("another record", extra={"thing": object})
    logging.getLogger("of.another").info("not of interest")
    warnings.warn("a warning", UserWarning, stacklevel=1)


@in_process()
def flood(context: Context, payload: int) -> None:
    for number in range(payload):
        print(f"line {number}")
    sys.stdout.write("x" * 1_000_000)


@in_process()
def polls(context: Context, payload: Any) -> str:
    while not context.cancelled:
        time.sleep(0.01)
    return "noticed"


@in_process()
def sleeps(context: Context, payload: float) -> str:
    time.sleep(payload)
    return "slept"


@in_process()
def extends(context: Context, payload: Any) -> float:
    context.progress(0.25, "started")
    context.extend(30)
    context.progress(0.75)
    time.sleep(payload)
    return context.remaining_seconds


@in_process()
def returns_what_cannot_be_stored(context: Context, payload: Any) -> object:
    return object()


@in_process()
def leaves_a_grandchild(context: Context, payload: Any) -> int:
    """It has what a child has: the socket, the streams."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False)
    print(process.pid, flush=True)
    if payload == "die":
        os._exit(4)
    return process.pid


@in_process()
def starts_one_and_waits(context: Context, payload: Any) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(process.pid, flush=True)
    process.wait()


@in_process()
async def is_async(context: Context, payload: Any) -> str:
    return "awaited"


@in_process()
def speaks_nonsense(context: Context, payload: Any) -> None:
    for fd in range(3, 64):
        try:
            os.write(fd, b"\xff" * 64)
        except OSError:
            continue
    time.sleep(30)


@in_process()
def completes(context: Context, payload: Any) -> str:
    import psycopg

    with psycopg.connect(payload["dsn"]) as connection:
        connection.execute("insert into effects values (%s, %s)", (context.id, context.attempt))
        context.complete_in_sync(connection, "kept")
        if payload["rollback"]:
            connection.rollback()
    return "returned"


@in_process()
def forks(context: Context, payload: Any) -> int | str:
    """The forked side leaves the handler a little later, in one of the ways there are."""
    pid = os.fork()
    if pid:
        return pid
    time.sleep(0.2)
    context.progress(0.99, "forked")
    logging.getLogger("of.another").error("logged in a fork")
    print("printed in a fork", flush=True)
    if payload == "exit":
        sys.exit(3)
    if payload == "raise":
        raise ValueError("raised in a fork")
    return "from the fork"


@in_process()
async def forks_in_a_loop(context: Context, payload: Any) -> str:
    pid = os.fork()
    if not pid:
        return "from the fork"
    await asyncio.to_thread(os.waitpid, pid, 0)
    # Needs the loop's own wake-up, which a loop that ends elsewhere would have taken away.
    return await asyncio.get_running_loop().run_in_executor(None, lambda: "from the thread")


@in_process()
def forked_exit_code(context: Context, payload: Any) -> int:
    pid = os.fork()
    if not pid:
        sys.exit(payload)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@in_process()
def leaves_a_thread(context: Context, payload: float) -> None:
    def late() -> None:
        time.sleep(payload)
        context.progress(0.9, "late")
        context.extend(1000)

    threading.Thread(target=late).start()


@in_process()
def answers_for_another(context: Context, payload: Any) -> None:
    from fencepost.worker.children import messages

    control: Any = context.control
    control._link.say(messages.Returned(control.order.number + payload, b'"not its own"'))
    time.sleep(1)


@in_process()
def gets_signals(context: Context, payload: Any) -> list[int]:
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
    ended = []
    for number in (signal.SIGTERM, signal.SIGINT):
        program = subprocess.Popen(["sleep", "20"])
        pid = os.fork()
        if not pid:
            time.sleep(20)
        os.kill(pid, number)
        program.send_signal(number)
        ended += [program.wait(5), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]
    return ended


@in_process()
def spoils_its_streams(context: Context, payload: str) -> str:
    if payload == "close":
        sys.stdout.close()
        sys.stderr.close()
    elif payload == "remove":
        sys.stdout = sys.stderr = None
    else:
        print("a line of stdout")
        print("a line of stderr", file=sys.stderr)
    return payload


@in_process()
def logs_oddly(context: Context, payload: str) -> None:
    log = logging.getLogger("of.another")
    if payload == "fields":
        log.error("odd", extra={"odd": {(None,): 3}, "half": "\ud800", "worker": "child"})
    elif payload == "huge":
        log.error("h" * (40 << 20), extra={"body": "b" * (40 << 20), "list": list(range(100_000))})
    else:
        log.error("half \ud800 and %d", "no number")
        log.error("half \ud800")


@in_process()
def forks_loggers(context: Context, payload: int) -> list[int]:
    import multiprocessing

    def write() -> None:
        for _ in range(payload):
            logging.getLogger("of.another").error("y" * 40_000)

    processes: list[Any] = [multiprocessing.get_context("fork").Process(target=write) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


@in_process()
def odd_progress(context: Context, payload: Any) -> None:
    context.progress(0.5, "half \ud800")


@in_process()
def traced(context: Context, payload: Any) -> str | None:
    """The span that is current in a child, if tracing is set up there, as an app's module would."""
    from opentelemetry import trace
    from opentelemetry.trace.propagation import tracecontext

    carrier: dict[str, str] = {}
    tracecontext.TraceContextTextMapPropagator().inject(carrier)
    assert trace.get_current_span() is not None
    return carrier.get("traceparent")


def plain(context: Context, payload: Any) -> str:
    return f"plain {payload}"


class App:
    types = TYPES


app = App()
