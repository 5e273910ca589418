"""Which arguments make two jobs the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

import msgspec

from fencepost.domain.fields import check_hold, check_unique, read_seconds
from fencepost.domain.job import Unique, UniqueMode, UniqueUntil
from fencepost.errors import InvalidJob, InvalidSettings

KeyOf = Callable[[Mapping[str, Any]], Any]
_PLAIN_BYTES = 200
"""A key that is longer is kept as its SHA-256."""

_encoder = msgspec.json.Encoder(order="deterministic")


class Parameters(Protocol):
    """What is asked of a job's signature."""

    @property
    def names(self) -> Sequence[str]:
        """The members of its payload."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether there can be no others."""
        ...


class UniqueBy:
    """
    No second job of one type with the same arguments, as long as the first stands in the way.

        UniqueBy("user_id")                            the same user_id
        UniqueBy()                                     the same arguments, all of them
        UniqueBy(lambda arguments: arguments["to"][0]) whatever a function makes of them

    Values are compared as JSON writes them: 1, 1.0, "1" and true are four. The function gets the arguments as JSON
    has them, by name, and may return any value that JSON can hold; a text is the key as it stands.
    *until*, *period* (seconds or a timedelta, with `until="period"`) and *mode* are those of `Unique`.
    """

    __slots__ = ("mode", "names", "of", "period_seconds", "until")

    def __init__(
        self,
        *names: str | KeyOf,
        until: UniqueUntil | str = UniqueUntil.FINISHED,
        period: float | timedelta | None = None,
        mode: UniqueMode | str = UniqueMode.SKIP,
    ) -> None:
        for name in names:
            if not callable(name) and not isinstance(name, str):
                raise InvalidSettings(f"UniqueBy takes names of parameters, or one function, not {name!r}")
        functions = [name for name in names if callable(name)]
        if functions and len(names) > 1:
            raise InvalidSettings("UniqueBy takes names of parameters, or one function, not both")
        self.of: KeyOf | None = functions[0] if functions else None
        self.names: tuple[str, ...] = tuple(name for name in names if isinstance(name, str))
        try:
            seconds = None if period is None else read_seconds(period, "unique", "period ")
            self.until, self.period_seconds, self.mode = check_hold(until, seconds, mode)
        except InvalidJob as error:
            raise InvalidSettings(error.message) from None

    def check_names(self, parameters: Parameters) -> None:
        """Raise InvalidJob for a name that no parameter has: all jobs would be the same by it."""
        for name in self.names:
            if parameters.is_closed and name not in parameters.names:
                known = ", ".join(parameters.names) or "none"
                raise InvalidJob(f"is by {name!r}, which is none of its parameters: {known}", field="unique")

    def unique(self, arguments: Mapping[str, Any]) -> Unique:
        """The rule for a job with these arguments, which are as JSON has them. Raises InvalidJob."""
        if self.of is not None:
            try:
                value = self.of(arguments)
            except Exception as error:
                message = f"can't be made of these arguments: {type(error).__name__}: {error}"
                raise InvalidJob(message[:300], field="unique") from error
        elif not self.names:
            value = arguments
        elif isinstance(arguments, Mapping):
            value = [arguments.get(name) for name in self.names]
        else:
            raise InvalidJob(f"is by {', '.join(self.names)}, so the payload must be an object", field="unique")
        return Unique(key=_key(value), until=self.until, period_seconds=self.period_seconds, mode=self.mode)


def unique_rule(unique: Unique) -> Unique:
    """*unique* as it is stored, for one whose members may be plain strings, or wrong. Raises InvalidJob."""
    seconds = unique.period_seconds
    if seconds is not None:
        seconds = read_seconds(seconds, "unique", "period ")
    return check_unique(unique.key, unique.until, seconds, unique.mode)


def _key(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else _encoder.encode(value).decode()
    except (TypeError, ValueError, RecursionError) as error:
        why = "it is nested too deep, or contains itself" if isinstance(error, RecursionError) else error
        raise InvalidJob(f"can't be made of {type(value).__name__}: {why}", field="unique") from None
    storable = text.isprintable() and len(text.encode(errors="replace")) <= _PLAIN_BYTES and text
    if storable:
        return text
    import hashlib

    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
