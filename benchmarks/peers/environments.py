"""
An environment for each peer: a venv for each Python one, one node_modules for those on Node.

Everything is made below the cache folder and kept there. A stamp beside each
environment holds what was asked for; when that changes, the environment is made anew.
Nothing on the machine outside that folder is touched.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from catalogue import NODE_OLDEST, NODE_PACKAGES, NODE_VERSION, Peer

HERE = Path(__file__).resolve().parent
INSTALL_SECONDS = 600


class Unavailable(Exception):
    """This peer can't run on this machine; the message says why."""


class Environments:
    """Makes and finds the environments in one cache folder."""

    def __init__(self, cache: Path, say: Callable[[str], None]) -> None:
        self._cache = cache
        self._say = say
        cache.mkdir(parents=True, exist_ok=True)
        (cache / ".gitignore").write_text("*\n")

    def command(self, peer: Peer) -> list[str]:
        """What starts the peer's agent, its environment made if need be. Raises Unavailable."""
        if peer.language == "node":
            return [self._node(), str(self._cache / "node" / f"{peer.name}.mjs")]
        python = sys.executable if peer.language == "own" else self._venv(peer)
        return [python, str(HERE / "python" / "agent.py"), peer.name]

    def _venv(self, peer: Peer) -> str:
        base = _find_python(peer.python)
        folder = self._cache / "venvs" / peer.name
        wanted = json.dumps([base, peer.requirements])
        if not _is_stamped(folder, wanted):
            self._say(f"installing {', '.join(peer.requirements)}")
            shutil.rmtree(folder, ignore_errors=True)
            _run([base, "-m", "venv", "--without-pip", str(folder)])
            quiet = ["--quiet", "--disable-pip-version-check"]
            _run([*_pip(), *quiet, "--python", str(folder / "bin" / "python"), "install", *peer.requirements])
            _stamp(folder, wanted)
        return str(folder / "bin" / "python")

    def _node(self) -> str:
        """Install what the Node peers need, and a newer Node where the machine's is too old for them."""
        npm = shutil.which("npm")
        if npm is None:
            raise Unavailable("npm is not on PATH")
        own = shutil.which("node")
        packages = dict(NODE_PACKAGES)
        binary = _node_package() if own is None or _node_version(own) < NODE_OLDEST else None
        if binary is not None:
            packages[binary] = NODE_VERSION
        folder = self._cache / "node"
        wanted = json.dumps({"private": True, "type": "module", "dependencies": packages}, indent=2)
        if not _is_stamped(folder, wanted):
            self._say(f"installing {', '.join(f'{name}@{version}' for name, version in packages.items())}")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (folder / "package.json").write_text(wanted)
            _run([npm, "install", "--no-audit", "--no-fund", "--loglevel=error"], folder=folder)
            _stamp(folder, wanted)
        for source in (HERE / "node").glob("*.mjs"):  # beside node_modules, where imports are looked up
            shutil.copy(source, folder)
        if binary is not None:
            return str(folder / "node_modules" / binary / "bin" / "node")
        assert own is not None
        return own


def _find_python(oldest: tuple[int, int]) -> str:
    """An interpreter that is new enough: ours, or BENCH_PYTHON, or one that is installed."""
    if sys.version_info[:2] >= oldest:
        return sys.executable
    for candidate in _pythons():
        try:
            answer = subprocess.run(
                [candidate, "-c", "import sys; print(*sys.version_info[:2])"],
                capture_output=True, text=True, timeout=10, check=True,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            continue
        major, minor = map(int, answer.stdout.split())
        if (major, minor) >= oldest:
            return candidate
    raise Unavailable(f"it needs Python {oldest[0]}.{oldest[1]}, which was not found; name one in BENCH_PYTHON")


def _pythons() -> Iterator[str]:
    if "BENCH_PYTHON" in os.environ:
        yield os.environ["BENCH_PYTHON"]
    for minor in range(12, 16):
        found = shutil.which(f"python3.{minor}")
        if found:
            yield found
    for path in sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3")):
        yield str(path)


def _pip() -> list[str]:
    """A pip that can install into other environments: ours, or that of the Python ours was made from."""
    for python in (sys.executable, getattr(sys, "_base_executable", sys.executable)):
        if subprocess.run([python, "-m", "pip", "--version"], check=False, capture_output=True).returncode == 0:
            return [python, "-m", "pip"]
    raise Unavailable("pip was not found, neither in this environment nor in its base")


def _node_package() -> str:
    """The npm package that is Node itself, for this machine."""
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine())
    if platform.system() != "Linux" or machine is None:
        raise Unavailable(f"it needs Node {'.'.join(map(str, NODE_OLDEST))} or newer on PATH")
    return f"node-linux-{machine}"


def _node_version(node: str) -> tuple[int, ...]:
    printed = subprocess.run([node, "--version"], check=False, capture_output=True, text=True).stdout
    return tuple(map(int, re.findall(r"\d+", printed)[:2]))


def _run(command: Sequence[str], *, folder: Path | None = None) -> None:
    try:
        result = subprocess.run(
            command, check=False, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{' '.join(command[:4])} …: {error}") from error
    if result.returncode:
        raise Unavailable(f"{' '.join(command[:4])} …:\n{(result.stdout + result.stderr)[-1500:]}")


def _is_stamped(folder: Path, wanted: str) -> bool:
    stamp = folder / "stamp"
    return stamp.is_file() and stamp.read_text() == wanted


def _stamp(folder: Path, wanted: str) -> None:
    (folder / "stamp").write_text(wanted)
