"""`fencepost bench` measures what a pooler costs: it goes through the one that the service would go through."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from tests import pgbouncer

TINY = ["--jobs", "60", "--slots", "8", "--seconds", "1", "--rate", "100", "--repeat", "1", "--json"]


@pytest.mark.slow
@pytest.mark.direct
@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_the_measures_go_through_it(server_url: str, mode: str) -> None:
    kinds = ["enqueue-one", "drain-pinned", "latency", "http"] + ["crowded"] * (mode == "transaction")
    # In session mode each of our connections takes one: those of the producer, the worker and the API.
    with pgbouncer.running(server_url, mode, pool_size=60) as bouncer:
        ended = subprocess.run(
            [sys.executable, "-m", "fencepost", "bench", *kinds, *TINY],
            env={
                **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
                "DATABASE_URL": bouncer.url(server_url),
                "DATABASE_POOLER": mode,
                "DATABASE_LISTEN_URL": server_url,
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        assert set(msgspec.json.decode(ended.stdout)["medians"]) == set(kinds)
        assert "fencepost_bench" in bouncer.log()
