"""
`fencepost load-test`: is this service fast, and does it keep its promises?

Three phases: submit the jobs from concurrent clients, wait until they have ended, then
read every one of them back and judge it. A job is judged by its own record alone: it
must be there, must have ended as its type does, and every lease token ever given out
for it must be accounted for by one attempt, none of which overlaps another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import click
import msgspec

from fencepost.cli.load_client import Client
from fencepost.cli.load_report import Plan, Record, Report, Submission, as_text, judge, percentiles
from fencepost.cli.output import progress
from fencepost.cli.worker_thread import new_event_loop
from fencepost.domain.durations import parse_duration
from fencepost.errors import FencepostError, InvalidSettings
from fencepost.settings import from_environment

T = TypeVar("T")


def load_test(
    *,
    url: str | None,
    jobs: int,
    clients: int,
    fail_rate: float,
    max_attempts: int,
    duration: str,
    wait: str,
    patience: str,
    token_file: Path | None,
    as_json: bool,
) -> int:
    """Run the command; returns its exit code."""
    try:
        parse_duration(duration)
        wait_seconds, patience_seconds = parse_duration(wait), parse_duration(patience)
    except ValueError as error:
        raise InvalidSettings(str(error)) from None
    if url is None:
        url = f"http://127.0.0.1:{from_environment().http_port}"
    if not url.startswith(("http://", "https://")):
        raise InvalidSettings(f"--url must begin with http:// or https://, not {url[:60]!r}")
    token = _token(token_file)
    plan = Plan(jobs=jobs, fail_rate=fail_rate, max_attempts=max_attempts, duration=duration)
    client = Client(url, token, clients, patience_seconds=patience_seconds)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        report = runner.run(_run(client, plan, clients, wait_seconds, url))
    click.echo(msgspec.json.format(msgspec.json.encode(report)).decode() if as_json else as_text(report))
    return 0 if report.is_clean else 1


async def _run(client: Client, plan: Plan, clients: int, wait_seconds: float, url: str) -> Report:
    run_id = uuid4().hex[:12]
    queue = "load-test"
    try:
        started_at = time.monotonic()
        ids, latencies = await _submit(client, plan, clients, queue, run_id)
        submitted_at = time.monotonic()
        await _wait_until_ended(client, queue, started_at + wait_seconds)
        ended_at = time.monotonic()
        records = await _read_back(client, ids, clients)
    finally:
        await client.close()
    seconds = submitted_at - started_at
    submission = Submission(
        jobs=len(ids),
        seconds=round(seconds, 3),
        jobs_per_second=round(len(ids) / seconds, 1),
        latency_ms=percentiles(latencies),
        repeated_requests=client.repeated,
    )
    return judge(plan, url, clients, submission, ended_at - started_at, ids, records)


async def _submit(client: Client, plan: Plan, clients: int, queue: str, run_id: str) -> tuple[list[str], list[float]]:
    ids: list[str] = []
    latencies: list[float] = []

    async def submit(number: int) -> None:
        asked_at = time.monotonic()
        answer = await client.call("POST", "/jobs", plan.body(number, queue), key=f"load-test-{run_id}-{number}")
        latencies.append((time.monotonic() - asked_at) * 1000)
        ids.append(str(msgspec.json.decode(answer or b"{}")["id"]))

    await _each(range(plan.jobs), submit, clients, "submitting")
    return ids, latencies


async def _wait_until_ended(client: Client, queue: str, deadline: float) -> None:
    """Until the queue is empty, or time is up: what hasn't ended by then counts as lost."""
    with progress(None, "waiting") as advance:
        while time.monotonic() < deadline:
            state = msgspec.json.decode(await client.call("GET", f"/queues/{queue}") or b"{}")
            left = state.get("depth", 0) + state.get("in_flight", 0)
            if not left:
                return
            advance(f"{left:,} left")
            await asyncio.sleep(0.25)


async def _read_back(client: Client, ids: list[str], clients: int) -> dict[str, Record | None]:
    records: dict[str, Record | None] = {}
    decoder = msgspec.json.Decoder(Record)

    async def read(job_id: str) -> None:
        answer = await client.call("GET", f"/jobs/{job_id}")
        records[job_id] = None if answer is None else decoder.decode(answer)

    await _each(ids, read, clients, "checking")
    return records


async def _each(items: Sequence[T], work: Callable[[T], Awaitable[None]], clients: int, label: str) -> None:
    """Work through *items*, *clients* at a time, with a progress bar."""
    waiting = iter(items)
    with progress(len(items), label) as advance:

        async def one_client() -> None:
            for item in waiting:
                await work(item)
                advance("")

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(clients, len(items))):
                    group.create_task(one_client())
        except BaseExceptionGroup as failures:
            expected = failures.subgroup(FencepostError)
            raise (expected or failures).exceptions[0] from None


def _token(path: Path | None) -> str | None:
    if path is not None:
        try:
            return path.read_text(encoding="utf-8").split()[0]
        except (OSError, UnicodeDecodeError, IndexError) as error:
            raise InvalidSettings(f"--token-file: no token can be read from {path}: {error}") from None
    tokens = from_environment().api_tokens
    return tokens[0].reveal() if tokens else None
