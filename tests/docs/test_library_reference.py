"""The reference of the library is what its docstrings say now."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.docs import library_reference

PAGE = Path(__file__).parents[2] / "docs/reference/library.md"


@pytest.mark.slow
def test_the_library_reference_is_what_the_docstrings_say() -> None:
    made = library_reference.render()
    if os.environ.get("FENCEPOST_UPDATE_DOCS"):
        PAGE.write_text(made, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == made, "run it again with FENCEPOST_UPDATE_DOCS=1"


@pytest.mark.slow
def test_everything_public_is_described() -> None:
    sections = re.split(r"^#{3,4} ", library_reference.render(), flags=re.M)[1:]
    silent = [section.splitlines()[0] for section in sections if not re.search(r"^[A-Z*`].*[.:]$", section, re.M)]
    assert silent == []
