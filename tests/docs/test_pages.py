"""What the pages say is true of the code: settings, routes, metrics, codes, links, the diagram."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fencepost import errors, settings
from fencepost.domain.durations import parse_duration
from tests.docs import diagram

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_diagram_is_that_of_the_transitions() -> None:
    assert diagram.page_with_diagram() == diagram.PAGE.read_text(encoding="utf-8")


def test_every_setting_is_documented_with_its_default() -> None:
    page = read("docs/reference/configuration.md")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.M))
    defaults = settings.Settings()
    for field, names, _ in settings._VARIABLES:
        assert names[0] in rows, f"{names[0]} is not in the configuration page"
        for alias in names[1:]:
            assert f"`{alias}`" in page, f"{alias} is not in the configuration page"
        said, default = rows[names[0]].strip().strip("`"), getattr(defaults, field)
        if field.endswith("_seconds") and default is not None:
            assert parse_duration(said) == default, names[0]
        elif isinstance(default, bool):
            assert said == str(default).lower(), names[0]
        elif isinstance(default, int) and field != "http_port":
            assert int(said) == default, names[0]
    undocumented = set(rows) - {name for _, names, _ in settings._VARIABLES for name in names}
    assert undocumented == {"API_TOKENS", "API_TOKENS_FILE"}


def test_every_route_is_documented() -> None:
    from tests.docs.support import routes

    page = read("docs/reference/http.md")
    for method, path in routes():
        assert f"`{method} {path}`" in page, f"{method} {path} is not in the HTTP page"


def test_every_error_code_is_documented() -> None:
    page = read("docs/reference/http.md")
    answered = [
        error
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.FencepostError) and error.http_status != 500
    ]
    # Raised to programs that use the library; no route does what they are about.
    internal = {errors.LeaseLost, errors.SchemaMismatch, errors.JobFailed, errors.ResultTimeout}
    for error in answered:
        assert error in internal or f"`{error.code}`" in page, f"{error.code} is not in the HTTP page"


def test_every_metric_is_documented() -> None:
    from prometheus_client import generate_latest

    from fencepost.telemetry.metrics import Metrics

    page = read("docs/reference/observability.md")
    text = generate_latest(Metrics().registry).decode()
    names = set(re.findall(r"^# TYPE (\w+) ", text, re.M))
    ours = {name for name in names if not name.startswith(("process_", "python_")) and not name.endswith("_created")}
    assert ours
    for name in ours:
        assert f"`{name}`" in page, f"{name} is not in the observability page"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}, target


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["serve"],
        ["worker"],
        ["migrate"],
        ["prune"],
        ["doctor"],
        ["grant"],
        ["jobs"],
        ["jobs", "list"],
        ["jobs", "retry"],
        ["jobs", "cancel"],
        ["jobs", "delete"],
        ["load-test"],
        ["bench"],
    ],
    ids=lambda words: " ".join(words),
)
def test_help_has_examples_and_names_only_what_exists(command: list[str]) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "fencepost", *command, "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    ).stdout
    assert "Examples:" in shown
    for path in re.findall(r"docs/[\w/-]+\.md", shown):
        assert (ROOT / path).exists()


def test_every_measure_and_option_of_the_benchmarks_is_documented() -> None:
    from fencepost.cli.bench.command import KINDS
    from fencepost.cli.main import bench

    page = read("docs/reference/benchmarks.md")
    for kind in KINDS:
        assert f"| `{kind}` |" in page, f"{kind} is not in the benchmarks page"
        assert f"\n      {kind} " in (bench.help or ""), f"{kind} is not in --help"
    options = {option for parameter in bench.params for option in parameter.opts if option.startswith("--")}
    assert set(re.findall(r"^\| `(--[\w-]+)` \|", page, re.M)) == options


def test_decisions_are_all_in_the_index() -> None:
    index = read("docs/decisions/README.md")
    for page in sorted((ROOT / "docs/decisions").glob("0*.md")):
        assert f"({page.name})" in index
        title = page.read_text(encoding="utf-8").splitlines()[0]
        assert title.startswith(f"# {page.name[:4]} ")
        assert title[7:] in index


def test_lock_file_knows_what_the_project_asks_for() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    locked = next(one for one in tomllib.loads(read("uv.lock"))["package"] if one["name"] == "fencepost")
    asked = {_name_and_version(one) for one in project["dependencies"]}
    asked |= {_name_and_version(one) for extra in project["optional-dependencies"].values() for one in extra}
    known = {(one["name"], one.get("specifier", "")) for one in locked["metadata"]["requires-dist"]}
    assert asked == known, "run `uv lock`"


def _name_and_version(requirement: str) -> tuple[str, str]:
    name, version = re.match(r"([\w.-]+)(?:\[[\w,]+\])?([^;]*)", requirement).groups()  # type: ignore[union-attr]
    return name, version.strip()
