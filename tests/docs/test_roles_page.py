"""The page about roles: its matrix is the list of grants, and its statements run."""

from __future__ import annotations

import os
import re

from fencepost.store.grants import GRANTS, Purpose
from tests.docs.test_pages import ROOT

PAGE = ROOT / "docs/how-to/roles.md"
ORDER = (Purpose.WORKER, Purpose.PRODUCER, Purpose.READER)


def matrix() -> str:
    """A row for each object that is granted."""
    objects = sorted({(grant.kind, grant.name) for grants in GRANTS.values() for grant in grants}, key=_place)
    rows = []
    for kind, name in objects:
        label = "the schema" if kind == "schema" else f"`{name.split('(')[0]}`" + ("()" if kind == "function" else "")
        held = [_words(purpose, kind, name) for purpose in ORDER]
        rows.append(f"| {label} | {' | '.join(held)} |")
    return "\n".join(rows)


def _place(item: tuple[str, str]) -> tuple[int, str]:
    return ["schema", "table", "function"].index(item[0]), item[1]


def _words(purpose: Purpose, kind: str, name: str) -> str:
    return ", ".join(
        word for grant in GRANTS[purpose] if (grant.kind, grant.name) == (kind, name) for word in grant.privileges
    )


def test_the_matrix_is_what_is_granted() -> None:
    page = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(r"(\|---\|---\|---\|---\|\n)(.*?)(\n<!-- generated from fencepost\.store\.grants)", re.S)
    if os.environ.get("FENCEPOST_UPDATE_DOCS"):
        page = pattern.sub(lambda match: match[1] + matrix() + match[3], page)
        PAGE.write_text(page, encoding="utf-8")
    [found] = pattern.findall(page)
    assert found[1] == matrix()
