"""`python -m chaos`: run a campaign, say what it found, and end with 0 if every check holds."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

import click

from chaos.broken import BREAKS
from chaos.campaign import Campaign
from chaos.ground import WorldGround
from chaos.names import Names
from chaos.options import Options, fault_seconds
from chaos.plan import KINDS, PRESETS, read_schedule
from chaos.report import as_text, write_report
from fencepost.cli.output import Advance, progress


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--seed", type=int, default=7, show_default=True, help="What the faults and the jobs are drawn from.")
@click.option("--minutes", type=click.FloatRange(0.5, 240), default=2.0, show_default=True, help="How long, in all.")
@click.option("--rate", type=click.FloatRange(1, 2000), default=50.0, show_default=True, help="Jobs a second.")
@click.option("--jobs", type=click.IntRange(1), help="About so many jobs in all, rather than a rate.")
@click.option("--preset", type=click.Choice(list(PRESETS)), default="mixed", show_default=True, help="Which faults.")
@click.option("--faults", type=Names(KINDS), metavar="KIND,KIND", help="These kinds alone.")
@click.option("--schedule", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="One that was saved.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Where to write the report as JSON.")
@click.option("--broken", type=click.Choice(list(BREAKS)), help="Run a build that is broken on purpose.")
@click.option("--keep", is_flag=True, help="Keep the folder with the ledger, the logs and the schedule.")
def main(
    seed: int,
    minutes: float,
    rate: float,
    jobs: int | None,
    preset: str,
    faults: tuple[str, ...] | None,
    schedule: Path | None,
    report: Path | None,
    broken: str | None,
    keep: bool,
) -> None:
    """Run fencepost through a fault campaign, and hold what it did against a ledger."""
    options = Options(
        seed=seed,
        minutes=minutes,
        rate=rate if jobs is None else jobs / fault_seconds(minutes),
        preset=preset,
        faults=faults,
        broken=broken,
        schedule=read_schedule(schedule) if schedule else None,
    )
    folder = Path(tempfile.mkdtemp(prefix="fencepost-chaos-"))
    # As root the server runs under another account.
    folder.chmod(0o711)
    ok = False
    try:
        ok = _run(options, folder, report)
    finally:
        if ok and not keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            click.echo(f"The ledger, the logs and the schedule are in {folder}.", err=True)
    sys.exit(0 if ok else 1)


def _run(options: Options, folder: Path, report: Path | None) -> bool:
    began = time.monotonic()
    total = round(options.minutes * 60)
    with progress(total, "chaos") as advance:
        campaign = Campaign(options, folder, WorldGround(folder, seed=options.seed), _Tell(advance, began, total))
        found = asyncio.run(campaign.run())
    for path in filter(None, (report, folder / "report.json")):
        write_report(found, path)
    click.echo(as_text(found))
    return found.ok


class _Tell:
    """Turns how it stands into progress: a step is a second."""

    def __init__(self, advance: Advance, began: float, total: int) -> None:
        self._advance = advance
        self._began = began
        self._total = total
        self._done = 0

    def __call__(self, remark: str) -> None:
        done = min(self._total, int(time.monotonic() - self._began))
        steps, self._done = done - self._done, done
        self._advance(remark, steps)


if __name__ == "__main__":
    main()
