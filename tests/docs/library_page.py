"""
Run the Python of a page: `python -m tests.docs.library_page docs/how-to/declare.md`.

Its blocks are run in their order in one namespace, as if typed at a prompt that knows `await`. Each `print(…)  # text`
must print that text. Exits with what failed.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import logging
import os
import re
import sys
import types
from pathlib import Path
from typing import Any

from tests.patience import limit

ROOT = Path(__file__).parents[2]
_EXPECTED = re.compile(r"^\s*print\(.*\)  # (.*)$", re.M)


def blocks(page: str) -> list[tuple[int, str]]:
    """The Python blocks of a page, each with the line it starts on."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        (text[: found.start(1)].count("\n"), found[1])
        for found in re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M)
    ]


def run(page: str, loop: asyncio.Runner) -> None:
    """
    Run the page, what awaits something in the *loop*, and the rest as a plain program would be.

    Raises what its code raises, and AssertionError for what it doesn't print.
    """
    # A module, since functions are looked up where they say they are.
    module = types.ModuleType("page")
    sys.modules["page"] = module
    printed: list[str] = []
    module.__dict__["print"] = lambda *values: printed.append(" ".join(map(str, values)))
    for line, block in blocks(page):
        printed.clear()
        # What is interrupted after so short a time has begun by then, also where this machine stands still.
        block = re.sub(r"\btimeout=(0\.\d+)", lambda found: f"timeout={limit(float(found[1]))}", block)
        code = compile("\n" * line + block, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        running: Any = eval(code, module.__dict__)
        if inspect.iscoroutine(running):
            loop.run(running)
        expected = _EXPECTED.findall(block)
        assert printed == expected, f"{page}:{line}: printed {printed}, not {expected}"


def configure_django() -> None:
    """Point Django's default connection at DATABASE_URL."""
    import django
    from django.conf import settings

    from tests import django_database

    database = {"ENGINE": "django.db.backends.postgresql", **django_database.of_url(os.environ["DATABASE_URL"])}
    settings.configure(DATABASES={"default": database})
    django.setup()
    # The pages' loop is the only thread there is.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"


if __name__ == "__main__":
    # A page whose jobs fail on purpose has nothing to say about it.
    logging.getLogger().addHandler(logging.NullHandler())
    if any("django" in block for _, block in blocks(sys.argv[1])):
        configure_django()
    with asyncio.Runner() as loop:
        run(sys.argv[1], loop)
