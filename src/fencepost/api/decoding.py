"""
From the bytes of a body to requests for jobs, and from what is wrong with them to words.

msgspec does the reading; its messages name types in Python's terms and, for broken
text, sometimes the wrong reason, so they are put differently here.
"""

from __future__ import annotations

import difflib
import json
import re
from typing import TypeVar

import msgspec

from fencepost.domain.job import Limits
from fencepost.domain.text import check_json, clean_text
from fencepost.errors import InvalidJob

_T = TypeVar("_T", bound=msgspec.Struct)

_BOM = b"\xef\xbb\xbf"
_TOO_DEEP = f"is nested more than {Limits.PAYLOAD_DEPTH} levels deep"
_LINE = msgspec.json.Decoder(msgspec.Raw)
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_PAIRS = json.JSONDecoder(object_pairs_hook=list)

_MESSAGE = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_TYPES = re.compile(r"Expected `(.*?)`, got `(.*?)`")
_RANGE = re.compile(r"Expected `\w+` (of length )?([<>]=) (\d+)")

_WORDS = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number with a fraction",
    "bool": "true or false",
    "null": "null",
    "object": "an object",
    "array": "an array",
}


class BodyDecoder:
    """Reads one JSON object as a struct, strictly."""

    def __init__(self, kind: type[_T]) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self._fields = msgspec.structs.fields(kind)
        self._names = [field.encode_name for field in self._fields]
        self._quoted = [f'"{name}"'.encode() for name in self._names]
