"""The tutorial of the library, done by a machine: its files saved, its commands run, in their order."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorial/library.md"


class Learner:
    """Somebody with an empty folder and two terminals."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outputs: dict[str, str] = {}
        self._served: subprocess.Popen[str] | None = None
        self._port = free_port()
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "DATABASE_URL"},
            "DATA_DIR": str(folder / "data"),
            "PORT": str(self._port),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        # What `pip install` would make there is what runs these tests.
        bin_folder = folder / ".venv/bin"
        bin_folder.mkdir(parents=True)
        for program in ("python", "fencepost"):
            # No link: Python would look for its packages beside it.
            (bin_folder / program).write_text(f'#!/bin/sh\nexec "{Path(sys.executable).parent / program}" "$@"\n')
            (bin_folder / program).chmod(0o755)

    def follow(self, language: str, block: str) -> None:
        """Do what one block of the page says."""
        if language == "python":
            self._save(block)
        elif "fencepost serve" in block:
            self.stop()
            self._serve(block)
        elif "pip install" not in block:
            self._run(block)

    def _save(self, block: str) -> None:
        named = re.match(r"# (\w+\.py)(, at its end)?\n", block)
        assert named, f"a block that says no file: {block[:60]}"
        with (self.folder / named[1]).open("a" if named[2] else "w", encoding="utf-8") as file:
            file.write("\n\n" + block if named[2] else block)

    def _run(self, command: str) -> None:
        ended = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
        self.outputs[command.split()[-1]] = ended.stdout

    def _serve(self, command: str) -> None:
        self._served = subprocess.Popen(
            command.split(), cwd=self.folder, env=self._environment, stdout=subprocess.DEVNULL, text=True
        )
        deadline = time.monotonic() + 60
        while True:
            assert self._served.poll() is None, "the service ended by itself"
            assert time.monotonic() < deadline, "the service did not get ready"
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/readyz", timeout=2):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.05)

    def stop(self) -> None:
        """Press Ctrl-C in the first terminal."""
        if self._served is not None:
            self._served.send_signal(signal.SIGINT)
            assert self._served.wait(30) == 0
            self._served = None


@pytest.fixture
def learner() -> Iterator[Learner]:
    # Not pytest's own folder: that is closed to all but root, and as root the server runs under another account.
    with tempfile.TemporaryDirectory(prefix="fencepost-tutorial-") as folder:
        Path(folder).chmod(0o711)
        one = Learner(Path(folder))
        try:
            yield one
        finally:
            one.stop()


@pytest.mark.slow
def test_the_tutorial_of_the_library_works_as_written(learner: Learner) -> None:
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M):
        learner.follow(language, block)
    said = learner.outputs
    assert said["buy.py"].splitlines()[1] == "receipt for order 4711 sent to ada@example.org"
    assert said["wrong.py"].startswith("order: must be"), said["wrong.py"]
    assert said["charge.py"].splitlines()[1] == "{'attempt': 3, 'charged': 1999}"
    assert said["later.py"].split() == ["pending", "True", "replayed", "cancelled"]
    assert said["order.py"].strip() == "receipt for order 1 sent to ada@example.org"
    assert "2 passed" in said["test_shop.py"]
