"""docs/how-to/poolers.md does what it says."""

from __future__ import annotations

import configparser
import re
import signal
from pathlib import Path

import pytest

from fencepost.client import watching
from tests import pgbouncer
from tests.service.support import Service

PAGE = (Path(__file__).parents[2] / "docs/how-to/poolers.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """The page's only block in that language."""
    [found] = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)
    return str(found)


@pytest.mark.slow
@pytest.mark.direct
def test_the_example_serves(database_url: str) -> None:
    """With the page's pooler and variables, at a test's own addresses and without its passwords."""
    parsed = configparser.ConfigParser()
    parsed.read_string(block("ini"))
    wanted = dict(parsed["pgbouncer"])
    options = {name: wanted[name] for name in wanted if name not in ("listen_addr", "listen_port", "pool_mode")}
    for name in ("auth_type", "auth_file", "default_pool_size"):
        options.pop(name)
    assert not options, "everything else of the example is used here"
    names = dict(re.findall(r"^export (\w+)=(\S+)", block("bash"), re.M))
    with pgbouncer.running(database_url, wanted["pool_mode"], pool_size=int(wanted["default_pool_size"])) as bouncer:
        variables = {
            **names,
            "DATABASE_URL": bouncer.url(database_url),
            "DATABASE_LISTEN_URL": database_url,
        }
        with Service(**variables) as service:
            record = service.post({"type": "sleep", "payload": {"duration": "1ms"}})
            assert service.wait_for(record["id"], "completed")["status"] == "completed"
            service.signal(signal.SIGTERM)
            assert service.wait() == 0


def test_the_pause_is_the_one_that_is_told() -> None:
    assert watching.LONGEST_POLL_SECONDS == 0.5
    assert "half a second" in PAGE
