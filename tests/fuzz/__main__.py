"""
`make fuzz`: a campaign against a service of its own, on an embedded PostgreSQL of its own.

    python -m tests.fuzz --seed 1 --requests 200000 --report .fuzz/report.json
    python -m tests.fuzz --seed 1 --only 4711        # one request again, and its answer
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import uvloop

from fencepost.embedded import EmbeddedPostgres
from tests.fuzz.campaign import Campaign, Report
from tests.fuzz.mutations import request
from tests.fuzz.service import complaints, ready
from tests.fuzz.wire import Line


def main() -> int:
    """Run the command; 1 when something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[1])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=5_000)
    parser.add_argument("--only", type=int, help="send this one request, and show what comes back")
    parser.add_argument("--report", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    with _server() as url, ready(url) as service:
        running = service.service
        if options.only is not None:
            return uvloop.run(_once(options.seed, options.only, running.url, service.known))
        campaign = Campaign(
            seed=options.seed, url=running.url, pid=running.process.pid, database_url=url, known=service.known
        )
        report = uvloop.run(campaign.run(range(1, options.requests + 1), batch=options.batch))
        said = complaints(running)
    if options.report is not None:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    print(as_text(report))
    for line in said:
        print(f"logged: {line[:2000]}")
    return 1 if report.findings or said else 0


@contextmanager
def _server() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="fencepost-fuzz-") as folder:
        Path(folder).chmod(0o711)
        with EmbeddedPostgres(Path(folder) / "data", options={"fsync": "off"}) as server:
            yield server.dsn


async def _once(seed: int, number: int, url: str, known: object) -> int:
    sent = request(seed, number, known)  # type: ignore[arg-type]
    print(f"{sent.mutation}\n{sent.written()[:4000]!r}")
    host, _, port = url.removeprefix("http://").partition(":")
    line = await Line.to(host, int(port))
    await line.send(sent.written(), pauses=sent.pauses)
    answers = [await line.answer(head=sent.method == "HEAD")] if sent.framed else await line.answers()
    for answer in answers:
        print(answer.status, answer.headers, answer.body[:4000])
    await line.close()
    return 0


def as_text(report: Report) -> str:
    """The figures for people."""
    lines = [
        f"seed {report.seed}: {report.requests:,} requests in {report.seconds:.0f} s ({report.rate:,.0f}/s), "
        f"{report.answers:,} answers, {report.unanswered:,} without one, {report.checked_batches} batches checked",
        f"jobs acknowledged {report.jobs_acknowledged:,}, and of answers that nobody read "
        f"{report.jobs_of_unheard_answers:,}",
        f"process before {report.before}\n        half-way {report.half_way}\n        after {report.after}",
        f"by status: {_counts(report.by_status)}",
        "by route:",
        *(f"  {name:28} {_counts(counts)}" for name, counts in sorted(report.by_route.items())),
        "by mutation:",
        *(f"  {name:32} {_counts(counts)}" for name, counts in sorted(report.by_mutation.items())),
        f"findings: {len(report.findings)}",
    ]
    for finding in report.findings[:20]:
        lines.append(
            f"  {finding.number} [{finding.mutation}] {finding.fault}\n    {finding.sent}\n    {finding.answer}"
        )
    return "\n".join(lines)


def _counts(counts: dict[str, int]) -> str:
    return "  ".join(f"{name}: {count:,}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
