"""Everything at once, for some seconds: the world itself neither fails nor loses what was acknowledged."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.world import World
from tests.chaos.world_support import Writers, open_folder

SECONDS = 3.0


def happenings(world: World) -> list[Callable[[], object]]:
    return [
        world.failover,
        world.kill_postmaster,
        world.crash,
        world.restart,
        world.terminate_backends,
        world.cancel_backends,
        world.kill_pooler,
        lambda: world.stop_standby(0.5),
        lambda: world.stop_backends(0.5, count=2),
        lambda: world.stop_process("checkpointer", 0.5),
        lambda: world.read_only(0.3),
        lambda: world.too_many_connections(0.3),
        lambda: world.cut(None, 0.3),
        lambda: world.drop_answers(["direct"], 0.3),
        lambda: world.delay(None, 0.3, by_seconds=0.05),
        lambda: world.jump_server(3600),
    ]


@pytest.mark.slow
def test_whatever_overlaps_loses_nothing_and_heals() -> None:
    binaries = Path(os.environ["TEST_BINARIES"]) if "TEST_BINARIES" in os.environ else None
    failures: list[Exception] = []
    with open_folder() as folder, World(folder / "world", binaries=binaries, fsync=False, seed=5) as world:
        choices = random.Random(5)
        over = time.monotonic() + SECONDS

        def storm() -> None:
            while time.monotonic() < over:
                try:
                    choices.choice(happenings(world))()
                except Exception as error:
                    failures.append(error)

        with world.cluster.admin() as admin:
            admin.execute("create table written (writer int, number int)")
            admin.execute("grant all on written to app")
        direct = Writers(world.entrance("direct"), count=3)
        pooled = Writers(world.entrance("pooled", pooled=world.pooled), count=3, first=3)
        with direct, pooled:
            threads = [threading.Thread(target=storm) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)
                assert not thread.is_alive()
            world.heal()
            assert world.cluster.protected
            assert direct.go_on()
            assert pooled.go_on()
        assert failures == []
        with world.cluster.admin() as admin:
            kept = {(writer, number) for writer, number in admin.execute("select * from written").fetchall()}
        assert (direct.acknowledged | pooled.acknowledged) - kept == set()
