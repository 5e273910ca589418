"""`fencepost jobs`: its commands and their options. What they do is in `many_jobs.py`, loaded when needed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

_STATUSES = ["pending", "processing", "completed", "failed", "dead_letter", "cancelled"]
_MOMENT = "MOMENT"


def _conditions(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which jobs are meant."""
    options = [
        click.argument("ids", nargs=-1, metavar="[ID]..."),
        click.option("--status", type=click.Choice(_STATUSES), help="Jobs in this status."),
        click.option("--type", metavar="TYPE", help="Jobs of this type."),
        click.option("--queue", metavar="QUEUE", help="Jobs of this queue."),
        click.option("--tag", metavar="TAG", help="Jobs that have this tag."),
        click.option("--since", metavar=_MOMENT, help="Made at this moment or later: RFC 3339, or 2h for 2 hours ago."),
        click.option("--until", metavar=_MOMENT, help="Made before this moment."),
        click.option("--schema", help="The schema that holds the tables.  [default: fencepost]"),
        click.option("--json", "as_json", is_flag=True, help="JSON on stdout."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


_EVERYTHING = click.option("--all", "everything", is_flag=True, help="Without any condition: all of them.")
_YES = click.option("--yes", is_flag=True, help="Don't ask.")


@click.group()
def jobs() -> None:
    """Look at jobs, and retry, cancel or delete many at once.

    In DATABASE_URL, or else in the embedded PostgreSQL of a `fencepost serve` on this machine. Conditions are joined:
    jobs that meet all of them are meant. docs/how-to/many-jobs.md tells more.

    \b
    Examples:
      fencepost jobs list --status dead_letter --since 2h
      fencepost jobs retry --type send_email --since 2h --spread 10m
      fencepost jobs cancel --tag import-4711
      fencepost jobs delete --status completed --until 30d --yes
    """


@jobs.command("list")
@_conditions
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Most jobs to show.")
def list_jobs(**options: Any) -> None:
    """Show jobs, newest first.

    With --json a job a line, with its payload.

    \b
    Examples:
      fencepost jobs list --status dead_letter --type send_email
      fencepost jobs list --tag import-4711 --json | jq .last_error
    """
    from fencepost.cli.many_jobs import show

    sys.exit(show(**options))


@jobs.command()
@_conditions
@_EVERYTHING
@click.option("--spread", default="0", show_default=True, metavar="10m", help="Spread their due times over so long.")
def retry(**options: Any) -> None:
    """Put dead_letter jobs back, with all their attempts.

    --spread keeps a service that has just recovered from being met by all of them together.

    \b
    Examples:
      fencepost jobs retry --type send_email --spread 10m
      fencepost jobs retry 0195c2a8-7d2e-7c31-9b0e-7d3b6a1f2c4d
    """
    from fencepost.cli.many_jobs import change

    sys.exit(change("retry", yes=True, **options))


@jobs.command()
@_conditions
@_EVERYTHING
@_YES
def cancel(**options: Any) -> None:
    """Cancel jobs that wait, and ask those that run to stop.

    Says how many there are and asks first, unless --yes is given.

    \b
    Examples:
      fencepost jobs cancel --tag import-4711
      fencepost jobs cancel --queue mail --status pending --yes
    """
    from fencepost.cli.many_jobs import change

    sys.exit(change("cancel", **options))


@jobs.command()
@_conditions
@_EVERYTHING
@_YES
def delete(**options: Any) -> None:
    """Remove ended jobs for good, with their attempts and keys.

    Says how many there are and asks first, unless --yes is given. Live jobs stay: cancel them first.

    \b
    Examples:
      fencepost jobs delete --status completed --until 30d
      fencepost jobs delete --type import --yes --json
    """
    from fencepost.cli.many_jobs import change

    sys.exit(change("delete", **options))
