"""Names that are resolved while the servers of others don't answer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fencepost.handlers.delivery import Courier
from fencepost.handlers.dialler import DeliveryFailed
from fencepost.handlers.guard import parse_target
from fencepost.handlers.lookups import OF_ONE_HOST, THREADS, Lookups
from tests.patience import limit
from tests.worker.support import wait_until

pytestmark = pytest.mark.anyio

SECONDS = 0.2
"""For lookups that are to take too long."""


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


class Servers:
    """A resolver whose servers don't answer for hosts with `stuck` in their names, until they are freed."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._freed = threading.Event()

    def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        if "stuck" in host:
            assert self._freed.wait(limit(60))
        if "unknown" in host:
            raise OSError("no such host")
        return ["1.1.1.1"]

    def free(self) -> None:
        """Answer at last; returns when no lookup is left."""
        self._freed.set()
        for thread in threading.enumerate():
            if thread.name == "fencepost-lookup":
                thread.join(limit(5))
                assert not thread.is_alive()


@pytest.fixture
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.free()


async def stick(lookups: Lookups, servers: Servers, count: int) -> None:
    """Have so many hosts looked up, and give them up."""
    asking = [asyncio.create_task(lookups.resolve(f"stuck-{number}.test", 80)) for number in range(count)]

    await wait_until(lambda: len(servers.asked) == count, 10)
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)


async def test_many_stuck_hosts_hold_up_no_other(servers: Servers) -> None:
    lookups = Lookups(servers, seconds=limit(10))
    await stick(lookups, servers, THREADS - 1)
    assert await lookups.resolve("well.test", 80) == ["1.1.1.1"]
    with pytest.raises(OSError, match="no such host"):
        await lookups.resolve("unknown.test", 80)


async def test_a_stuck_host_takes_a_few_threads_however_often_it_is_asked_for(servers: Servers) -> None:
    lookups = Lookups(servers, seconds=SECONDS)
    for _ in range(OF_ONE_HOST + 2):
        ended = await asyncio.gather(*(lookups.resolve("stuck.test", 80) for _ in range(20)), return_exceptions=True)
        assert all(isinstance(error, TimeoutError) for error in ended), ended
    assert servers.asked == ["stuck.test"] * OF_ONE_HOST


async def test_those_who_ask_for_the_same_host_share_the_lookup(servers: Servers) -> None:
    lookups = Lookups(servers, seconds=limit(10))
    asking = [asyncio.create_task(lookups.resolve("stuck.test", port)) for port in (80, 443, 8080)]
    await asyncio.sleep(0)
    # Who stops waiting doesn't end it for the others.
    asking.pop().cancel()
    await asyncio.to_thread(servers.free)
    assert await asyncio.gather(*asking) == [["1.1.1.1"]] * 2
    assert servers.asked == ["stuck.test"]
    # An answer isn't kept.
    await lookups.resolve("stuck.test", 80)
    assert servers.asked == ["stuck.test"] * 2


async def test_without_a_free_thread_it_is_the_resolver_that_is_overloaded(servers: Servers) -> None:
    lookups = Lookups(servers, seconds=limit(10))
    await stick(lookups, servers, THREADS)
    lookups._seconds = SECONDS
    courier = Courier(allow_private=False, resolver=lookups.resolve)
    with pytest.raises(
        DeliveryFailed, match=r"^'well\.test' wasn't looked up \(16 .* overloaded\) within 0\.2 seconds$"
    ):
        await courier.post(parse_target("http://well.test/", any_port=False), b"{}", headers=[])
    await asyncio.to_thread(servers.free)
    # Nobody waited for it any more.
    assert "well.test" not in servers.asked


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_program_ends_beside_a_lookup_that_hangs(loop: str) -> None:
    script = (
        f"import {loop}, threading\n"
        "from fencepost.handlers.lookups import Lookups\n"
        "lookups = Lookups(lambda host, port: threading.Event().wait(), seconds=0.1)\n"
        "async def main():\n"
        "    try:\n"
        "        await lookups.resolve('stuck.test', 80)\n"
        "    except TimeoutError as error:\n"
        "        print(error)\n"
        f"{loop}.run(main())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=limit(15), check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "wasn't resolved within 0.1 seconds\n", "")
