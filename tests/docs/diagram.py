"""
Draws the state diagram of docs/explanation/architecture.md from the code.

    python -m tests.docs.diagram     rewrites it there
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from fencepost.domain.job import TRANSITIONS, Status

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "architecture.md"
_BLOCK = re.compile(r"```mermaid\n.*?```(?=\n<!-- end -->)", re.S)


def diagram() -> str:
    """The state machine as a Mermaid diagram."""
    events: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (before, event), after in TRANSITIONS.items():
        events[before.value if before else "[*]", after.value].append(event.value)
    lines = [f"    {before} --> {after}: {' / '.join(names)}" for (before, after), names in events.items()]
    left = {before for before, _ in TRANSITIONS}
    lines += [f"    {status.value} --> [*]" for status in Status if status not in left]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def page_with_diagram() -> str:
    """The page as it should be."""
    return _BLOCK.sub(lambda _: diagram(), PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page_with_diagram(), encoding="utf-8")
