"""`fencepost doctor`."""

from __future__ import annotations

import asyncio
import shutil
import sys
import textwrap
import time
from contextlib import ExitStack

import click
import msgspec

from fencepost.cli.output import Advance, progress
from fencepost.domain.durations import parse_duration
from fencepost.embedded import default_data_dir
from fencepost.embedded.running import find_running
from fencepost.errors import FencepostError, InvalidSettings
from fencepost.settings import Settings, from_environment
from fencepost.store.doctor.examination import Examination, examine
from fencepost.store.doctor.findings import Finding, Limits, Severity, worst
from fencepost.store.doctor.server import unreachable

UNWELL = 1
"""The exit code when there are errors; with --strict, or warnings."""
_COLOURS = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.ERROR: "red"}


def doctor(*, as_json: bool, quick: bool, strict: bool, patience: str, schema: str | None) -> int:
    """Run the command; returns its exit code."""
    settings = from_environment(schema=schema)
    began = time.monotonic()
    limits = Limits(audit_seconds=_seconds(patience))
    try:
        found = asyncio.run(_examine(settings, quick=quick, limits=limits))
    except FencepostError as failure:
        if as_json:
            # A script may see only how what reads this ends.
            _write(Examination([unreachable(failure)]), began)
        raise
    state = worst(found.findings)
    if as_json:
        _write(found, began)
    else:
        _show(found)
    return UNWELL if state is Severity.ERROR or (strict and state is Severity.WARNING) else 0


def _seconds(patience: str) -> float:
    try:
        seconds = parse_duration(patience)
    except ValueError as error:
        raise InvalidSettings(f"--patience: {error}") from None
    if seconds <= 0:
        raise InvalidSettings(f"--patience: must be more than 0, not {patience}")
    return seconds


async def _examine(settings: Settings, *, quick: bool, limits: Limits) -> Examination:
    dsn = settings.database_url.reveal() if settings.database_url is not None else None
    if dsn is None:
        dsn, _ = find_running(settings.data_dir or default_data_dir())
    with ExitStack() as stack:
        bar: list[Advance] = []
        return await examine(
            dsn,
            settings,
            quick=quick,
            limits=limits,
            begin=lambda steps: bar.append(stack.enter_context(progress(steps, "doctor"))),
            advance=lambda remark, steps: bar[-1](remark, steps),  # noqa: PLW0108 - there is none yet
        )


def _write(found: Examination, began: float) -> None:
    report = {
        "status": worst(found.findings),
        "errors": found.count(Severity.ERROR),
        "warnings": found.count(Severity.WARNING),
        "seconds": round(time.monotonic() - began, 3),
        "findings": found.findings,
    }
    click.echo(msgspec.json.format(msgspec.json.encode(report)).decode())


def _show(found: Examination) -> None:
    """What is wrong first, each with what to do; then what is well, in a line each."""
    order = [Severity.ERROR, Severity.WARNING, Severity.OK]
    for finding in sorted(found.findings, key=lambda one: order.index(one.severity)):
        _show_one(finding)
    errors, warnings = found.count(Severity.ERROR), found.count(Severity.WARNING)
    if not errors and not warnings:
        click.echo("all is well")
        return
    click.echo(
        f"{_many(errors, 'error')}, {_many(warnings, 'warning')}; docs/how-to/doctor.md says more about each code"
    )


def _show_one(finding: Finding) -> None:
    label = click.style(
        f"{finding.severity.value.upper():8}", fg=_COLOURS[finding.severity], bold=finding.remedy is not None
    )
    if finding.remedy is None:
        click.echo(f"{label} {finding.code:14} {_wrapped(finding.what, indent=24).lstrip()}")
        return
    click.echo(f"{label} {finding.code}")
    click.echo(_wrapped(finding.what))
    click.echo(f"         do: {finding.remedy}")


def _wrapped(text: str, *, indent: int = 9) -> str:
    """A sentence as wide as the terminal; on one line where there is none, for `grep`. Remedies aren't cut."""
    margin = " " * indent
    if not sys.stdout.isatty():
        return margin + text
    width = max(40, shutil.get_terminal_size().columns)
    return textwrap.fill(
        text, width, initial_indent=margin, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False
    )


def _many(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
