"""
Do the same work with fencepost and with the alternatives, side by side on one PostgreSQL.

    python benchmarks/peers/run.py
    python benchmarks/peers/run.py --quick
    python benchmarks/peers/run.py --peers fencepost,pgqueuer --measures drain,pinned --repeat 5

The table goes to standard output, progress to standard error. README.md has the protocol.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import reference
from agents import AgentFailed, Agents
from catalogue import Peer, chosen
from environments import Environments, Unavailable
from measures import MEASURES, QUICK, SMALL_SLOTS, Bench, Sizes
from picture import draw
from report import Report, markdown, medians, summarise
from server import Cluster, server

ROOT = Path(__file__).resolve().parents[2]


def say(message: str) -> None:
    """Progress, for whoever waits."""
    sys.stderr.write(f"{datetime.now():%H:%M:%S} {message}\n")
    sys.stderr.flush()


def read_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--peers", metavar="A,B", help="which (default: those on by default; `all`)")
    add("--measures", metavar="A,B", help=f"which of {', '.join(MEASURES)} (default: all)")
    add("--repeat", type=int, metavar="N", help="rounds; the table has medians (default: 3, with --quick 1)")
    add("--reference", metavar="PEER", default="pgqueuer", help="whom ratios refer to (default: pgqueuer)")
    add("--quick", action="store_true", help="tiny sizes: shows that all of it works, measures nothing")
    add("--limit-seconds", type=float, metavar="S", help="when a drain is cut short (default: 60)")
    add("--binaries", type=Path, metavar="DIR", help="PostgreSQL's programs for the embedded server")
    add("--cache", type=Path, metavar="DIR", default=ROOT / ".bench", help="environments and data (default: .bench)")
    add("--json", type=Path, metavar="FILE", help="every run, setting and figure")
    add("--markdown", type=Path, metavar="FILE", help="the table, also to a file")
    add("--svg", type=Path, metavar="FILE", help="the picture")
    arguments = parser.parse_args(words)
    arguments.peers_named = arguments.peers is not None
    try:
        arguments.peers = chosen(arguments.peers)
    except ValueError as error:
        parser.error(str(error))
    arguments.measures = list(MEASURES) if arguments.measures is None else arguments.measures.split(",")
    unknown = [name for name in arguments.measures if name not in MEASURES]
    if unknown:
        parser.error(f"no such measure: {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    if arguments.repeat is None:
        arguments.repeat = 1 if arguments.quick else 3
    return arguments


def new_report(arguments: argparse.Namespace) -> Report:
    """What is known before anything has run."""
    sizes = QUICK if arguments.quick else Sizes()
    if arguments.limit_seconds:
        sizes = dataclasses.replace(sizes, limit_seconds=arguments.limit_seconds)
    return {
        "began_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": arguments.quick,
        "machine": machine(),
        "server": {},
        "sizes": dataclasses.asdict(sizes),
        "repeat": arguments.repeat,
        "reference_peer": arguments.reference,
        "reference": {"medians": {}, "rounds": []},
        "peers": {},
        "left_out": {},
        "summary": {},
        "runs": [],
    }


def machine() -> dict[str, object]:
    """Where this ran."""
    try:
        text = Path("/proc/cpuinfo").read_text()
        processor = next(line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.machine()
    return {
        "cpus": os.cpu_count(),
        "processor": processor,
        "memory_gib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        "system": f"{platform.system()} {platform.release()}",
        "load_before": os.getloadavg(),
    }


async def prepare(peers: Sequence[Peer], cluster: Cluster, cache: Path, report: Report) -> dict[str, Agents]:
    """Make every peer's environment and template; those that can't be had are left out, with the reason."""
    environments = Environments(cache, say)
    ready: dict[str, Agents] = {}
    for peer in peers:
        say(f"preparing {peer.name}")
        try:
            agents = Agents(environments.command(peer), cache / "logs" / peer.name)
            described = await agents.ask("describe", 0)
            small = await agents.ask("describe", SMALL_SLOTS)
            await cluster.make_template(peer.name, agents.install)
        except Unavailable as error:
            say(f"{peer.name} is left out: {error}")
            report["left_out"][peer.name] = str(error)
            continue
        except AgentFailed as error:
            say(f"{peer.name} is left out: FAILED: {error}")
            report["runs"].append({"peer": peer.name, "measure": "install", "round": 0, "error": str(error)})
            continue
        ready[peer.name] = agents
        described.pop("event")
        report["peers"][peer.name] = {
            **described,
            "small_settings": small["settings"],
            "kept": peer.kept,
            "fenced": peer.fenced,
        }
    return ready


async def measure(arguments: argparse.Namespace, url: str, report: Report) -> None:
    """All rounds. Within a round every peer does a measure before the next measure begins."""
    cluster = Cluster(url)
    sizes = Sizes(**report["sizes"])
    report["server"] = await cluster.settings()
    ready = await prepare(arguments.peers, cluster, arguments.cache, report)
    await reference.prepare(cluster)
    try:
        for turn in range(arguments.repeat):
            figures = await reference.measure(cluster, arguments.binaries, sizes.reference_seconds)
            report["reference"]["rounds"].append(figures)
            for name in arguments.measures:
                for peer, agents in ready.items():
                    run = await measure_once(cluster, peer, agents, name, sizes, report["peers"][peer]["left"])
                    report["runs"].append({"peer": peer, "measure": name, "round": turn + 1, **run})
    finally:
        await cluster.remove([*ready, reference.NAME])


async def measure_once(
    cluster: Cluster, peer: str, agents: Agents, name: str, sizes: Sizes, left: str
) -> dict[str, object]:
    """One measure of one peer on a database of its own; a failure is a result too."""
    try:
        async with cluster.fresh(peer) as database:
            run = await MEASURES[name](Bench(agents, database, sizes, left))
    except Exception as error:  # noqa: BLE001 - one broken run must not cost the others their figures
        say(f"{name} {peer}: FAILED: {error}")
        return {"error": f"{type(error).__name__}: {error}"}
    told = ("per_second", "first_per_second", "last_per_second", "p50_ms", "p99_ms")
    say(f"{name} {peer}: " + ", ".join(f"{key} {run[key]:,.1f}" for key in told if key in run))
    return run


def finish(arguments: argparse.Namespace, report: Report) -> int:
    """Write what was asked for; 1 when a run failed, or a peer that was asked for isn't there."""
    if report["reference_peer"] not in report["peers"]:
        report["reference_peer"] = next(iter(report["peers"]), "nobody")
    report["reference"]["medians"] = medians(report["reference"]["rounds"])
    report["summary"] = summarise(report["runs"], list(report["peers"]), report["reference_peer"])
    table = markdown(report)
    sys.stdout.write(table)
    if arguments.markdown:
        arguments.markdown.write_text(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    if arguments.svg:
        arguments.svg.write_text(draw(report))
    failed = any("error" in run for run in report["runs"])
    missing = arguments.peers_named and report["left_out"]
    return 1 if failed or missing or not report["runs"] else 0


def main() -> int:
    """Run; an interrupted run still reports what it has."""
    arguments = read_arguments()
    arguments.cache = arguments.cache.absolute()
    report = new_report(arguments)
    if arguments.quick:
        say("--quick: the figures below say that everything works, and nothing else")
    try:
        shutil.rmtree(arguments.cache / "logs", ignore_errors=True)
        with server(arguments.cache / "server", arguments.binaries) as url:
            asyncio.run(measure(arguments, url, report))
    except KeyboardInterrupt:
        say("interrupted; this is what there is")
        finish(arguments, report)
        return 130
    return finish(arguments, report)


if __name__ == "__main__":
    sys.exit(main())
