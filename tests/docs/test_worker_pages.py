"""The pages about what runs jobs and what is around them: their blocks are saved, imported and run."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fencepost.errors import JobFailed
from fencepost.telemetry.events import AttemptEnded, AttemptStarted, JobEnqueued

pytestmark = pytest.mark.anyio

PAGES = Path(__file__).parents[2] / "docs/how-to"


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[Path]:
    """The blocks of the pages, in the files that they name, in a folder that can be imported from."""
    for page in ("cpu-bound.md", "resources-and-middleware.md"):
        for block in re.findall(r"^```python\n(.*?)^```", (PAGES / page).read_text(), re.DOTALL | re.MULTILINE):
            named = re.match(r"# (\w+\.py)(, at its end)?\n", block)
            assert named, f"a block that says no file: {block[:60]}"
            with (tmp_path / named[1]).open("a" if named[2] else "w", encoding="utf-8") as file:
                file.write("\n\n" + block if named[2] else block)
    names = [path.stem for path in tmp_path.glob("*.py")]
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))
    for name in names:
        sys.modules.pop(name, None)


def _import(name: str) -> ModuleType:
    importlib.invalidate_caches()
    return importlib.import_module(name)


async def test_cpu_bound_jobs(saved: Path, database_url: str) -> None:
    reports, enqueue = _import("reports"), _import("enqueue")
    reports.app.use(dsn=database_url)
    printed = io.StringIO()
    async with reports.app:
        with contextlib.redirect_stdout(printed):
            await enqueue.main()
    said = re.search(r"^```text\n(.*?)^```", (PAGES / "cpu-bound.md").read_text(), re.DOTALL | re.MULTILINE)
    assert said is not None
    assert printed.getvalue() == said[1]


async def test_resources_and_middleware(saved: Path, database_url: str) -> None:
    mailing = _import("mailing")
    mailing.app.use(dsn=database_url)
    async with mailing.app, mailing.app.worker():
        welcome = await mailing.welcome.enqueue("bob@example.org")
        assert await welcome.result(timeout=10) == "from ada@example.org"
        letter = await mailing.newsletter.options(metadata={"tenant": "acme"}).enqueue(
            ["a@example.org", "b@example.org"]
        )
        assert await letter.result(timeout=10) == 2
        whose = await mailing.whose.options(metadata={"tenant": "acme"}).enqueue()
        assert await whose.result(timeout=10) == "acme"
        broken = await mailing.broken.enqueue()
        with pytest.raises(JobFailed):
            await broken.result(timeout=10)
    assert mailing.smtp.sent == ["bob@example.org", "a@example.org", "b@example.org"]
    assert not mailing.smtp.is_open
    assert mailing.timings == [("welcome", "fine"), ("newsletter", "fine"), ("whose", "fine"), ("broken", "ValueError")]
    about = [event for event in mailing.heard if event.job_id == broken.id]
    # This program runs the job too, which may be over before its enqueue has had the answer.
    enqueued = JobEnqueued(broken.id, "broken", "default")
    assert about.count(enqueued) == 1
    about.remove(enqueued)
    assert [type(event) for event in about] == [AttemptStarted, AttemptEnded]
    assert about[-1].error == "no"
