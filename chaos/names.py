"""Some of a list of names, as the command line takes them: `NAME,NAME`."""

from __future__ import annotations

from collections.abc import Iterable

import click


class Names(click.ParamType[tuple[str, ...]]):
    """
    Names with commas between them, each one of *known*; as a tuple, in the order given.

    Any other is refused, with those that there are.
    """

    name = "names"

    def __init__(self, known: Iterable[str]) -> None:
        self._known = tuple(known)

    def convert(
        self, value: str | tuple[str, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(name.strip() for name in value.split(","))
        for name in names:
            if name not in self._known:
                self.fail(f"{name!r} is none of {', '.join(self._known)}", param, ctx)
        return names
