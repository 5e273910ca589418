"""
The table as a picture: one SVG of horizontal bars, written by hand.

It has no background of its own and asks the reader's colour scheme, so it can stand on
a light page and on a dark one. Each group has a scale of its own; the longest bar fills it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from report import METRICS, Metric, Report, number, ratio

WIDTH = 860
LABEL_RIGHT = 170
BAR_LEFT = 182
BAR_LONGEST = 470
ROW = 22
GROUP_HEAD = 40
TOP = 64

STYLE = """
text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #4b5563; }
.title { font-size: 17px; font-weight: 600; fill: #111827; }
.head { font-weight: 600; fill: #111827; }
.own { font-weight: 600; fill: #111827; }
.quiet { fill: #6b7280; }
.bar { fill: #9ca3af; }
.mine { fill: #2f7d6d; }
@media (prefers-color-scheme: dark) {
  text { fill: #b6bcc6; }
  .title, .head, .own { fill: #f3f4f6; }
  .quiet { fill: #9aa1ac; }
  .bar { fill: #6b7280; }
  .mine { fill: #45a894; }
}
"""


def draw(report: Report, *, highlight: str = "fencepost") -> str:
    """The SVG's text."""
    groups = [metric for metric in METRICS if metric.in_picture and metric.key in report["summary"]]
    body: list[str] = []
    top = TOP
    for metric in groups:
        row = report["summary"][metric.key]
        body.extend(_group(metric, row, list(report["peers"]), top, highlight))
        top += GROUP_HEAD + ROW * len([peer for peer in report["peers"] if peer in row])
    height = top + 16
    title = "Job queues on one PostgreSQL, side by side" + (" (a quick run, not figures)" if report["quick"] else "")
    below = (
        f"medians of {report['repeat']}, PostgreSQL {report['server'].get('server_version', '')}, "
        f"{report['machine']['cpus']} CPUs; × is the ratio to {report['reference_peer']}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'width="{WIDTH}" height="{height}" aria-label="{escape(title)}">',
            f"<style>{STYLE}</style>",
            _text(16, 26, title, "title"),
            _text(16, 46, below, "quiet"),
            *body,
            "</svg>",
            "",
        ]
    )


def _group(metric: Metric, row: Mapping[str, Any], peers: list[str], top: int, highlight: str) -> Iterator[str]:
    """One metric: its heading and a bar for each peer that has a figure."""
    less = " · shorter is better" if metric.less_is_better else ""
    yield _text(16, top + 26, f"{metric.title}, {metric.unit}{less}", "head")
    longest = max(cell["median"] for cell in row.values()) or 1.0
    shown = [peer for peer in peers if peer in row]
    for place, peer in enumerate(shown):
        cell = row[peer]
        y = top + GROUP_HEAD + ROW * place
        length = max(1.0, BAR_LONGEST * cell["median"] / longest)
        own = peer == highlight
        unit = metric.unit if metric.unit in ("jobs/s", "ms") else ""
        yield _text(LABEL_RIGHT, y + 11, peer, "own" if own else "", anchor="end")
        shape = f'x="{BAR_LEFT}" y="{y}" width="{length:.1f}" height="14" rx="2"'
        yield f'<rect class="{"mine" if own else "bar"}" {shape}/>'
        label = f"{number(cell['median'])} {unit}".strip() + (" (cut short)" if cell["cut_short"] else "")
        yield _text(BAR_LEFT + length + 8, y + 11, f"{label}   {ratio(cell['ratio'])}".rstrip(), "own" if own else "")


def _text(x: float, y: float, words: str, style: str, *, anchor: str = "start") -> str:
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" xml:space="preserve"{where}>{escape(words)}</text>'
