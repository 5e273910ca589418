"""The doctor's page has every code that the doctor knows, with its severity; each is seen in a test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from fencepost.store.doctor import audit, examination
from tests.docs.test_pages import ROOT, read

SOURCES = sorted(Path(examination.__file__).parent.glob("*.py"))
PAGE = "docs/how-to/doctor.md"


def codes() -> dict[str, set[str]]:
    """Every code in the source, and with which severities."""
    found: dict[str, set[str]] = {f"audit.{row[0]}": {row[1].__name__} for row in audit._PROBLEMS}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                code, how = node.args[0], node.func.id
                if (
                    isinstance(code, ast.Constant)
                    and isinstance(code.value, str)
                    and how in ("error", "warning", "make")
                ):
                    severities = {"error", "warning"} if how == "make" else {how}
                    found.setdefault(code.value, set()).update(severities)
    return found


def test_every_code_is_on_the_page_with_its_severity() -> None:
    rows = re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \| ([^|]+) \|", read(PAGE), re.M)
    assert len(rows) == len({code for code, _ in rows})
    assert {code: set(re.findall("error|warning", how)) for code, how in rows} == codes()


def test_every_code_is_seen_in_a_test() -> None:
    tests = (ROOT / "tests/store/doctor/test_doctor.py").read_text(encoding="utf-8")
    assert [code for code in codes() if f'"{code}"' not in tests] == []
    assert len(codes()) > 45


def test_every_check_has_a_name_that_codes_begin_with() -> None:
    names = {check.name for check in examination.CHECKS}
    assert {code.split(".")[0] for code in codes()} == names | {"audit", "doctor"}
