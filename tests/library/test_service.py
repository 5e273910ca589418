"""An app under `fencepost serve` and `fencepost worker`: all it brings is used, and all it enqueues is there."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from fencepost.cli.application import application, settings_with
from fencepost.errors import InvalidSettings
from fencepost.settings import Secret, Settings
from tests.service.support import Service

MODULE = """
import os
from dataclasses import dataclass

from fencepost import Context, Fencepost, resource

SAID = open(os.environ["SAID"], "a", buffering=1)


class Pool:
    size = 7


async def lifespan(given):
    assert given is app
    print("opened", file=SAID)
    yield {"pool": Pool()}
    print("closed", file=SAID)


app = Fencepost(lifespan=lifespan)


@app.around_attempt
async def around(context: Context):
    print("before", context.type, file=SAID)
    yield
    print("after", context.type, file=SAID)


@app.around_enqueue
def stamp(drafts):
    for draft in drafts:
        draft.tags.append("stamped")
    yield


@app.on_event
def hear(event):
    print("event", type(event).__name__, file=SAID)


@app.job
async def first(number: int, *, pool: Pool = resource()) -> str:
    handle = await second.enqueue(number + pool.size)
    return str(handle.id)


@app.job
def second(context: Context, number: int) -> list:
    return [number, list(context.tags)]


@app.job
def third(number: int) -> str:
    return str(second.enqueue_sync(number).id)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "brought.py").write_text(MODULE)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("--processes", "1"), ("--schema", "other")])
def test_serve_runs_all_that_an_app_brings(arguments: tuple[str, ...], folder: Path, database_url: str) -> None:
    environment = {"DATABASE_URL": database_url, "PYTHONPATH": str(folder), "SAID": str(folder / "said")}
    with Service("brought:app", *arguments, **environment) as service:
        for kind, expected in (("first", 8), ("third", 1)):
            one = service.wait_for(service.post({"type": kind, "payload": {"number": 1}})["id"], "completed")
            two = service.wait_for(one["result"], "completed")
            assert two["result"] == [expected, ["stamped"]]
        assert service.post({"type": "sleep", "payload": {"duration": "1ms"}})["id"]
        service.signal(signal.SIGTERM)
        assert service.wait() == 0
    said = (folder / "said").read_text().splitlines()
    assert said[0] == "opened"
    assert "closed" in said
    assert said.count("before second") == said.count("after second") == 2
    assert {"event JobEnqueued", "event AttemptStarted", "event AttemptEnded"} <= set(said)


def test_the_apps_own_database_and_schema_are_the_commands_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    (folder / "placed.py").write_text(
        "from fencepost import Fencepost\napp = Fencepost(lambda: 'postgresql://mine/db', schema='mine')\n"
    )
    (folder / "clash.py").write_text(
        "from fencepost import Fencepost\napp = Fencepost()\n@app.job(name='sleep')\ndef other(): ...\n"
    )
    settings = Settings(database_url=Secret("postgresql://other/db"), max_attempts=9)
    app = application("placed:app", settings)
    found = settings_with(app, settings)
    assert (found.database_url, found.schema) == (Secret("postgresql://mine/db"), "mine")
    assert app.database_url() == "postgresql://mine/db"
    # What it wasn't told, it takes from the command.
    assert (app.settings.max_attempts, app.settings.schema) == (9, "mine")
    assert settings_with(application(None, settings), settings) == settings
    with pytest.raises(InvalidSettings, match=r"'sleep' is declared twice, by fencepost\.handlers"):
        application("clash:app", settings)
