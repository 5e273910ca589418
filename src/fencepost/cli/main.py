"""`fencepost`: the commands and their options. What they do is in the modules beside this one, loaded when needed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

import fencepost
from fencepost.cli.endings import Commands, leave
from fencepost.cli.jobs import jobs


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(fencepost.__version__, prog_name="fencepost")
def main() -> None:
    """A PostgreSQL job queue with fenced leases.

    \b
    Examples:
      fencepost serve                      API on :8080 and 4 workers, on an embedded PostgreSQL
      DATABASE_URL=postgresql://… fencepost serve --workers 16
      fencepost worker myapp.jobs:app --processes 4
      fencepost migrate --status           what the database's schema has and lacks
      fencepost doctor                     what is wrong here, and what to do about it
      fencepost grant app --to worker      what a role needs that owns nothing
      fencepost prune --dry-run            which old jobs would be removed
      fencepost jobs retry --type send_email --spread 10m
      fencepost load-test --jobs 5000 --fail-rate 0.2

    Settings come from the environment; docs/reference/configuration.md lists them.
    """


@main.command()
@click.argument("app", required=False, metavar="[MODULE:APP]")
@click.option("--workers", type=click.IntRange(0, 10_000), help="Jobs that run at once; 0 serves the API only.")
@click.option(
    "--processes", type=click.IntRange(0, 256), help="Run the workers in so many processes, with --workers each."
)
@click.option("--queues", metavar="NAME,NAME", help="Serve these queues alone.  [default: every queue]")
@click.option("--http-addr", metavar="HOST:PORT", help="Where the API listens; :PORT is every interface.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where the embedded PostgreSQL keeps its data.")
@click.option("--schema", help="The schema that holds the tables.  [default: fencepost]")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="[default: info]")
def serve(app: str | None, **flags: Any) -> None:
    """Run the HTTP API and a pool of workers.

    MODULE:APP names a Fencepost object of yours; its job types are run beside the ones that ship. Without
    DATABASE_URL a private PostgreSQL is started; its data survives restarts. Ctrl-C stops everything in
    order; a second Ctrl-C at once.

    With --processes this process serves the API, and restarts worker processes that die.

    \b
    Examples:
      fencepost serve
      fencepost serve --workers 16 --http-addr :9000
      fencepost serve --processes 4 --workers 50
      fencepost serve myapp.jobs:app
    """
    from fencepost.cli.serve import serve as run

    leave(run(app, flags))


@main.command()
@click.argument("app", required=False, metavar="[MODULE:APP]")
@click.option("--workers", type=click.IntRange(1, 10_000), help="Jobs that run at once, in each process.  [default: 4]")
@click.option("--processes", type=click.IntRange(0, 256), help="Run so many processes, and restart those that die.")
@click.option("--queues", metavar="NAME,NAME", help="Serve these queues alone.  [default: every queue]")
@click.option("--probe-addr", metavar="HOST:PORT", help="Answer probes and give metrics there.  [default: nowhere]")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where an embedded PostgreSQL to share has its data.")
@click.option("--schema", help="The schema that holds the tables.  [default: fencepost]")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="[default: info]")
def worker(app: str | None, **flags: Any) -> None:
    """Run workers alone, without the HTTP API.

    For machines that only work: any number of them share the database of DATABASE_URL. Without it the embedded
    PostgreSQL of a `fencepost serve` on this machine is used while that one runs. Ctrl-C stops everything in
    order; a second Ctrl-C at once.

    \b
    Examples:
      DATABASE_URL=postgresql://… fencepost worker myapp.jobs:app
      DATABASE_URL=postgresql://… fencepost worker myapp.jobs:app --processes 4 --workers 50
      DATABASE_URL=postgresql://… fencepost worker myapp.jobs:app --queues mail,reports
    """
    from fencepost.cli.worker import worker as run

    leave(run(app, flags))


@main.command()
@click.argument("app", required=False, metavar="[MODULE:APP]")
@click.option("--print", "print_only", is_flag=True, help="Write the SQL to stdout instead; needs no connection.")
@click.option("--status", is_flag=True, help="Show what is applied and what is missing; change nothing.")
@click.option("--schema", help="The schema that holds the tables.  [default: fencepost]")
def migrate(app: str | None, print_only: bool, status: bool, schema: str | None) -> None:
    """Bring the schema of DATABASE_URL up to date.

    `serve` does this by itself at start; use this command when migrations run under another role, or by
    another tool. With --status the exit code is 4 while steps are missing. Without it, 6 means that the
    database can't be reached, or that a lock keeps the present moment from having its partitions.

    With MODULE:APP its job types are made known too, and the queues of their jobs: run it before the new version
    of your program goes out, and workers of the old one leave the new types' jobs to those of the new.

    \b
    Examples:
      DATABASE_URL=postgresql://… fencepost migrate
      DATABASE_URL=postgresql://… fencepost migrate myapp.jobs:app
      fencepost migrate --print > fencepost.sql
      fencepost migrate --status
    """
    from fencepost.cli.migrate import migrate as run

    sys.exit(run(app, print_only=print_only, status=status, schema=schema))


@main.command()
@click.option("--dry-run", is_flag=True, help="Say what would go; change nothing.")
@click.option("--schema", help="The schema that holds the tables.  [default: fencepost]")
def prune(dry_run: bool, schema: str | None) -> None:
    """Remove jobs that have been kept long enough from DATABASE_URL, now.

    Workers do this by themselves, about once an hour; use this command after changing RETAIN_COMPLETED and its
    like, or to see what they will do. Safe beside running workers. With exit code 6 something has to wait for a
    lock, or for another process that is pruning.

    \b
    Examples:
      DATABASE_URL=postgresql://… fencepost prune --dry-run
      DATABASE_URL=postgresql://… RETAIN_COMPLETED=1d fencepost prune
    """
    from fencepost.cli.prune import prune as run

    sys.exit(run(dry_run=dry_run, schema=schema))


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON on stdout.")
@click.option("--quick", is_flag=True, help="Leave out the audit, which reads every job's keys.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@click.option("--patience", default="5m", show_default=True, metavar="5m", help="What the audit may take.")
@click.option("--schema", help="The schema that holds the tables.  [default: fencepost]")
def doctor(as_json: bool, quick: bool, strict: bool, patience: str, schema: str | None) -> None:
    """Say what is wrong with DATABASE_URL, and what to do about it.

    Looks at the server, the schema, this role's privileges, open transactions, queues that nobody serves, and
    whether every job is in exactly one place. Changes nothing, waits for nobody, and works for a role that may only
    read. Without DATABASE_URL it looks at the embedded PostgreSQL of a `fencepost serve` on this machine.

    Exit code 0 when there are no errors, 1 when there are, 6 when the database can't be reached.
    docs/how-to/doctor.md has every code.

    \b
    Examples:
      DATABASE_URL=postgresql://… fencepost doctor
      fencepost doctor --quick
      fencepost doctor --json | jq -r '.findings[] | select(.severity != "ok") | .code'
    """
    from fencepost.cli.doctor import doctor as run

    sys.exit(run(as_json=as_json, quick=quick, strict=strict, patience=patience, schema=schema))


@main.command()
@click.argument("role")
@click.option(
    "--to",
    "purposes",
    multiple=True,
    type=click.Choice(["producer", "worker", "reader"]),
    help="What the role is for; may be given more than once.",
)
@click.option("--revoke", is_flag=True, help="Take everything away from the role, in this schema.")
@click.option("--sql", "print_only", is_flag=True, help="Write the SQL to stdout instead; needs no connection.")
@click.option("--schema", help="The schema that holds the tables.  [default: fencepost]")
def grant(role: str, purposes: tuple[str, ...], revoke: bool, print_only: bool, schema: str | None) -> None:
    """Let the role ROLE do what it is for, and nothing else, in the schema of DATABASE_URL.

    Run it as the role that runs `fencepost migrate`, which owns the schema. ROLE must exist. It is set to exactly
    what is asked for: what else it had in this schema is taken away, in the same transaction. Repeat it after an
    upgrade that says so.

    \b
      producer   may enqueue: the library, and the SQL function enqueue. Reads and changes no job.
      worker     may run jobs: `fencepost worker`, and `fencepost serve` with its HTTP API.
      reader     may look: jobs and queues, `fencepost doctor`. Writes nothing.

    \b
    Examples:
      DATABASE_URL=postgresql://owner@… fencepost grant app_worker --to worker
      DATABASE_URL=postgresql://owner@… fencepost grant shop --to producer --to reader
      fencepost grant app_worker --to worker --sql | psql …
      DATABASE_URL=postgresql://owner@… fencepost grant old_app --revoke
    """
    from fencepost.cli.grants import grant as run

    sys.exit(run(role, purposes=purposes, revoke=revoke, print_only=print_only, schema=schema))


@main.command("load-test")
@click.option("--url", help="A running service.  [default: this machine, at the port of HTTP_ADDR or PORT, or 8080]")
@click.option("--jobs", type=click.IntRange(1, 10_000_000), default=1000, show_default=True, help="How many to submit.")
@click.option("--clients", type=click.IntRange(1, 1000), default=32, show_default=True, help="Concurrent clients.")
@click.option(
    "--fail-rate", type=click.FloatRange(0, 1), default=0.1, show_default=True, help="Share that always fails."
)
@click.option("--max-attempts", type=click.IntRange(1, 100), default=3, show_default=True, help="Of each job.")
@click.option("--duration", default="0s", show_default=True, metavar="5ms", help="How long each good job sleeps.")
@click.option("--wait", default="5m", show_default=True, metavar="5m", help="Longest wait for the jobs to end.")
@click.option("--patience", default="30s", show_default=True, metavar="30s", help="Longest wait for an answer.")
@click.option("--token-file", type=click.Path(path_type=Path), help="File with an API token; else API_TOKENS' first.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON on stdout.")
def load_test(**options: Any) -> None:
    """Submit jobs over HTTP, wait until they have ended, and check each one.

    Reports the rate and latency of submissions, retries, how many jobs ended as they should, and anything
    that was lost or ran twice under a live lease. Exit code 1 when something was.

    \b
    Examples:
      fencepost load-test --jobs 5000 --fail-rate 0.2
      fencepost load-test --url https://queue.example.org --token-file token --json | jq .submission
    """
    from fencepost.cli.load_test import load_test as run

    sys.exit(run(**options))


@main.command()
@click.argument("measures", nargs=-1, metavar="[MEASURE]...")
@click.option("--jobs", type=click.IntRange(50, 100_000_000), default=50_000, show_default=True, help="How many.")
@click.option("--slots", type=click.IntRange(1, 10_000), default=500, show_default=True, help="Slots of each worker.")
@click.option(
    "--processes", type=click.IntRange(1, 64), default=1, show_default=True, help="Worker processes of a drain."
)
@click.option(
    "--payload-bytes", type=click.IntRange(0, 1 << 20), default=0, show_default=True, help="Added to a payload."
)
@click.option("--seconds", type=click.FloatRange(1), default=20.0, show_default=True, help="Of mixed, idle, crowded.")
@click.option("--rate", type=click.FloatRange(1), default=3000.0, show_default=True, help="Jobs a second of mixed.")
@click.option(
    "--failures", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="Share of jobs of memory that fail."
)
@click.option("--log-lines", is_flag=True, help="With the log lines of each attempt, as JSON to nowhere.")
@click.option("--repeat", type=click.IntRange(1, 100), default=3, show_default=True, help="Runs; medians are reported.")
@click.option("--schema", help="Run in this schema of DATABASE_URL, instead of in a database of its own.")
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON on stdout.")
def bench(
    measures: tuple[str, ...], payload_bytes: int, repeat: int, schema: str | None, as_json: bool, **plan: Any
) -> None:
    """Measure how fast this is, here.

    Runs in a database that it makes and drops, on the server of DATABASE_URL or an embedded one, with everything
    on: durable commits, history, fencing. A --schema that holds anything is refused.

    \b
    Measures (all, unless some are named):
      insert-one          for reference: one-row inserts that commit
      enqueue-one         one call at a time
      enqueue-concurrent  from 32 callers
      enqueue-bulk        a thousand a call
      drain               no-op jobs to the last settlement
      drain-pinned        the same, with a snapshot held open elsewhere
      serial              one slot, one job after the other
      latency             from the enqueue to the handler's first line, 20 a second
      mixed               a steady rate in and out
      mixed-pinned        the same, with a snapshot held open elsewhere
      idle                a worker with nothing to do
      http                POST /jobs over 64 connections
      crowded             claims and lists beside millions of other jobs
      memory              what a worker holds after many jobs

    \b
    Examples:
      fencepost bench drain latency
      fencepost bench drain-pinned --jobs 300000 --repeat 1 --json
      fencepost bench mixed --seconds 600 --repeat 1
      fencepost bench memory --jobs 100000 --failures 0.05 --repeat 1
    """
    from fencepost.cli.bench.command import KINDS
    from fencepost.cli.bench.command import bench as run
    from fencepost.cli.bench.plan import Plan

    for name in measures:
        if name not in KINDS:
            raise click.BadParameter(f"{name!r} is no measure; there are {', '.join(KINDS)}", param_hint="MEASURE")
    payload = b'{"n": 1, "text": "%s"}' % (b"x" * payload_bytes) if payload_bytes else b'{"n": 1}'
    sys.exit(run(kinds=measures, plan=Plan(payload=payload, **plan), repeats=repeat, schema=schema, as_json=as_json))


main.add_command(jobs)
