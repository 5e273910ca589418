"""What a program that only enqueues has to load, and how long that takes."""

from __future__ import annotations

import inspect
import statistics
import subprocess
import sys
import time

from tests.cost import bytecodes

ENQUEUE_ONLY = """
import sys
from fencepost import Fencepost
from fencepost.transactions import Adapter

app = Fencepost()


@app.job(queue="mail")
async def greet(name: str, *, shout: bool = False) -> str:
    return name


@app.job
def other(number: int | None = None) -> None: ...


class Connection(Adapter):
    kind = "a connection"
    is_async = False

    def fetch_value_sync(self, sql: str, text: str) -> str:
        assert "enqueue_jobs" in sql and '"name":"Ada"' in text
        return '{"created_at": "2027-01-01T00:00:00Z", "differing": []}'


handle = greet.within(Connection(None)).enqueue_sync("Ada")
assert handle.effect == "created"
"""
HEAVY = (
    "asyncpg", "asyncio", "click", "uvicorn", "httptools", "structlog", "prometheus_client", "opentelemetry",
    "pydantic", "sqlalchemy", "django", "psycopg", "socket", "ssl", "subprocess", "multiprocessing",
    "importlib.resources", "fencepost.store.database", "fencepost.worker", "fencepost.embedded", "fencepost.api",
    "fencepost.cli",
)  # fmt: skip
MOST_MODULES = 150
"""More than what it loads now, which takes 61 ms on an idle machine; every ten cost some 4 ms."""
RUNS = 5


def test_enqueueing_in_a_callers_connection_loads_little() -> None:
    check = f"\nloaded = [name for name in {HEAVY!r} if name in sys.modules]\nassert not loaded, loaded\n"
    subprocess.run([sys.executable, "-c", ENQUEUE_ONLY + check], check=True, timeout=60)


def test_it_is_quick() -> None:
    """Held by how much it loads, which is the same on every machine; `pytest -s` shows what that takes on this one."""
    count = "\nprint(len(sys.modules) - before)"
    wall = []
    for _ in range(RUNS):
        began = time.perf_counter()
        code = f"import sys\nbefore = len(sys.modules)\n{ENQUEUE_ONLY}{count}"
        ended = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
        wall.append((time.perf_counter() - began) * 1000)
    print(f"enqueue-only start: {statistics.median(wall):.0f} ms, median; {ended.stdout.strip()} modules")
    assert int(ended.stdout) <= MOST_MODULES


def test_the_package_alone_loads_nothing() -> None:
    code = "import sys, fencepost; assert 'msgspec' not in sys.modules; fencepost.Fencepost"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_public_name_is_there() -> None:
    import fencepost

    assert sorted(dir(fencepost)) == sorted(fencepost.__all__)
    for name in fencepost.__all__:
        assert getattr(fencepost, name) is not None
    assert not hasattr(fencepost, "nothing")


def test_binding_a_call_costs_no_more_than_the_standard_librarys_binding() -> None:
    """180 instructions to 193; on a clock about 2.5 µs to 2.0."""
    from fencepost import Fencepost

    job = Fencepost("postgresql://nowhere/none").job(name="two")(_two)
    bind = inspect.signature(_two).bind
    job.call(0)  # What is made once, by the first.
    assert bytecodes(job.call, 1, flag=True) < 1.2 * bytecodes(bind, 1, flag=True)


def _two(number: int, *, flag: bool = False) -> None: ...
