"""What type checkers say of programs: nothing of a right one, and the line of each mistake in a wrong one."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = "tests/library/typed_program.py"

WRONG = """
from fencepost import Context, Fencepost, Handle, Payload

app = Fencepost("postgresql://nowhere/none")


@app.job
async def greet(name: str, *, shout: bool = False) -> str:
    return name


@app.job(queue="mail")
def mail(context: Context, user_id: int, order: float = 1.0) -> None: ...


async def program() -> None:
    await greet.enqueue("Ada", shout=True)
    await greet.enqueue(7)  # wrong
    await greet.enqueue()  # wrong
    await greet.enqueue("Ada", True)  # wrong
    await greet.enqueue("Ada", loud=True)  # wrong
    greet.enqueue_sync(None)  # wrong
    greet.call(b"Ada")  # wrong
    mail.enqueue_sync("7")  # wrong
    mail.enqueue_sync(7, "1")  # wrong
    greet.options(delay="1m")  # wrong
    greet.options(prio=1)  # wrong
    number: int = await (await greet.enqueue("Ada")).result()  # wrong
    handle: Handle[int] = mail.enqueue_sync(7)  # wrong
    await greet.enqueue_many([mail.call(1)])  # wrong
    mail(7)  # wrong
    app.job(nam="x")  # wrong
    greet.nothing  # wrong
"""


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("typing") / "wrong.py"
    path.write_text(textwrap.dedent(WRONG))
    return path


def checked(*command: str) -> tuple[int, str]:
    ended = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    return ended.returncode, ended.stdout + ended.stderr


def lines_of(output: str) -> set[int]:
    """The lines with errors."""
    return {int(number) for number in re.findall(r"wrong\.py:(\d+)(?::\d+)?: error", output)}


def wanted(path: Path) -> set[int]:
    return {number for number, line in enumerate(path.read_text().splitlines(), 1) if line.endswith("# wrong")}


def test_the_typed_program_can_be_imported() -> None:
    program = importlib.import_module("tests.library.typed_program")
    assert sorted(program.app.types) == ["bill", "book", "greet", "remember", "render", "send_welcome"]


@pytest.mark.slow
def test_mypy_finds_each_mistake_and_no_other(wrong: Path) -> None:
    code, output = checked("mypy", "--strict", "--no-incremental", "--cache-dir", str(wrong.parent), str(wrong))
    assert code == 1
    assert lines_of(output) == wanted(wrong), output


def test_ty_agrees_with_the_typed_program() -> None:
    code, output = checked("ty", "check", "--error-on-warning", PROGRAM)
    assert code == 0, output


def test_ty_finds_each_mistake_and_no_other(wrong: Path) -> None:
    code, output = checked("ty", "check", "--output-format", "concise", str(wrong))
    assert code == 1
    assert lines_of(output) == wanted(wrong), output
