"""The page on reliability names every fault once, and no test that isn't there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")

FAULTS = """
    B01 B02 B04 B05 B07 B08 B10 B11 B13 B14 B16 B17 B19 B20 B22 B23 B25 B26 B28 B29 B31 B32 B34 B35 B37 B38 B40 B41 B43
    B44 B46 B47 B49 B50 B52 B53 B55 B56 B58 B59 B61 B62 B64 B65 B67 B68 B70 B71 B73 B74 B76 B77 B79 B80 B82 B83 B85 B86
""".split()  # noqa: SIM905 - this way it can be read

LATER = "Comes with the feature"
"""What stands in the third column where there is nothing to be tested yet."""


def faults() -> list[list[str]]:
    """The cells of each row of the table of faults."""
    table = PAGE.split("\n## Faults that users of other queues met\n")[1]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in re.findall(r"^\| B\d\d .*\|$", table, re.M)]


def promises() -> list[list[str]]:
    """The cells of each row of the table of promises, without its head."""
    table = PAGE.split("\n## What it promises\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in re.findall(r"^\|.*\|$", table, re.M)][2:]


def named(text: str) -> list[str]:
    return re.findall(r"`(tests/[\w/.]+(?:::\w+)?)`", text)


def test_every_fault_is_there_once_and_in_order() -> None:
    assert [row[0] for row in faults()] == FAULTS


@pytest.mark.parametrize("row", faults(), ids=lambda row: row[0])
def test_a_fault_has_its_answer_and_its_tests(row: list[str]) -> None:
    assert len(row) == 4, "| id | what went wrong elsewhere | here | tests |"
    _, what, here, tests = row
    assert "to come" not in (what, here, tests)
    assert what
    assert here
    assert named(tests) or here.startswith(LATER), "a fault without a test"


def test_every_promise_has_its_tests() -> None:
    assert len(promises()) >= 10
    for promise, tests in promises():
        assert promise
        assert named(tests), promise


@pytest.mark.parametrize("name", sorted(set(named(PAGE))))
def test_a_test_that_is_named_is_there(name: str) -> None:
    file, _, function = name.partition("::")
    assert function, "name the function too"
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert function in found
