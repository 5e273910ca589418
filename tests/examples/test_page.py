"""The page about frameworks shows what is in the examples, to the letter."""

from __future__ import annotations

import re

from .support import EXAMPLES

PAGE = EXAMPLES.parent / "docs/how-to/frameworks.md"
LINK = re.compile(r"\(\.\./\.\./examples/([\w/.]+)\)")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)


def test_every_block_is_an_excerpt_of_the_file_that_was_named_last() -> None:
    page = PAGE.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(page))
    assert len(blocks) > 9
    for block in blocks:
        named = LINK.findall(page[: block.start()])[-1]
        file = EXAMPLES / named if "." in named else EXAMPLES / named / "site_settings.py"
        assert "\n" + block[1] in "\n" + file.read_text(encoding="utf-8"), f"not in {file.name}:\n{block[1]}"


def test_every_example_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    named = set(LINK.findall(page))
    for file in [*EXAMPLES.glob("*.py"), EXAMPLES / "django_site"]:
        assert file.relative_to(EXAMPLES).as_posix() in {name.rstrip("/") for name in named}, file
