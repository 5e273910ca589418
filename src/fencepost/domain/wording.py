"""What msgspec says about a value that doesn't fit, put in JSON's terms and for people."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fencepost.domain.text import clean_text
from fencepost.errors import InvalidJob

_MESSAGE = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_TYPES = re.compile(r"Expected `(.*?)`, got `(.*?)`")
_RANGE = re.compile(r"Expected `\w+` (of length )?([<>]=) (\d+)")
_WORDS = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number with a decimal point",
    "bool": "true or false",
    "null": "null",
    "object": "an object",
    "array": "an array",
}


def explain(message: str, what: str, names: Iterable[str]) -> InvalidJob:
    """
    The error that *message*, of a failed decoding, is to a caller.

    It names the field, when it is one field's fault, or else begins with *what*; *names* are the fields there are.
    """
    found = _MESSAGE.fullmatch(message)
    said, field = (found[1], found[2]) if found else (message, None)
    if unknown := _UNKNOWN.fullmatch(said):
        import difflib

        name = shown(unknown[1])
        if field:
            # *names* are those of the whole, not of this part.
            return InvalidJob("is not a field here", field=f"{field}.{name}")
        known = list(names)
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}? There are" if close else "there are"
        return InvalidJob(f"is not a field here; {hint} {', '.join(known) or 'none'}", field=name)
    if missing := _MISSING.fullmatch(said):
        return InvalidJob(
            "is missing, and there is no default for it", field=f"{field}.{missing[1]}" if field else missing[1]
        )
    said = _say(said)
    return InvalidJob(said, field=field) if field else InvalidJob(f"{what} {said}")


def shown(name: str) -> str:
    """The name of a member, short and printable."""
    name = clean_text(name, 60)
    return name if name.isprintable() else name.encode("unicode_escape").decode("ascii")


def _say(message: str) -> str:
    """Put one of msgspec's sentences in JSON's terms."""
    if types := _TYPES.fullmatch(message):
        expected, got = (" or ".join(_WORDS.get(word, word) for word in kind.split(" | ")) for kind in types.groups())
        return f"must be {expected}, not {got}"
    if bound := _RANGE.fullmatch(message):
        how = "at most" if bound[2] == "<=" else "at least"
        return f"must be {how} {int(bound[3]):,}" + (" characters long" if bound[1] else "")
    return clean_text(message[:1].lower() + message[1:], 200)
