"""Which arguments make two jobs the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from fencepost.domain.job import Limits, Unique, UniqueMode, UniqueUntil
from fencepost.errors import InvalidJob, InvalidSettings

KeyOf = Callable[[Mapping[str, Any]], Any]
_PLAIN_BYTES = 200
"""A key that is longer is kept as its SHA-256."""

_encoder = msgspec.json.Encoder(order="deterministic")


class UniqueBy:
    """
    No second job of one type with the same arguments, as long as the first stands in the way.

        UniqueBy("user_id")                            the same user_id
        UniqueBy()                                     the same arguments, all of them
        UniqueBy(lambda arguments: arguments["to"][0]) whatever a function makes of them

    The function gets the arguments as JSON has them, by name, and may return any value that JSON can hold.
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
        functions = [name for name in names if callable(name)]
        if functions and len(names) > 1:
            raise InvalidSettings("UniqueBy takes names of parameters, or one function, not both")
        self.of: KeyOf | None = functions[0] if functions else None
        self.names: tuple[str, ...] = tuple(name for name in names if isinstance(name, str))
        self.until = _member(UniqueUntil, "until", until)
        self.mode = _member(UniqueMode, "mode", mode)
        self.period_seconds = period.total_seconds() if isinstance(period, timedelta) else period
        check_period(self.until, self.period_seconds)

    def unique(self, arguments: Mapping[str, Any]) -> Unique:
        """The rule for a job with these arguments, which are as JSON has them. Raises InvalidJob."""
        if self.of is not None:
            value = self.of(arguments)
        elif self.names:
            value = [arguments.get(name) for name in self.names]
        else:
            value = arguments
        return Unique(key=_key(value), until=self.until, period_seconds=self.period_seconds, mode=self.mode)


def check_period(until: UniqueUntil, seconds: float | None) -> None:
    """Raise InvalidSettings unless there is a period exactly where one is needed."""
    if (until is UniqueUntil.PERIOD) != (seconds is not None):
        raise InvalidSettings('period goes with until="period", and only with it')
    if seconds is not None and not 0 < seconds <= Limits.DELAY_SECONDS:
        raise InvalidSettings(f"period must be more than 0 seconds and at most ten years, not {seconds!r}")


def _key(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else _encoder.encode(value).decode()
    except (TypeError, ValueError) as error:
        raise InvalidJob(f"can't be made of {type(value).__name__}: {error}", field="unique") from None
    storable = text.isprintable() and len(text.encode(errors="replace")) <= _PLAIN_BYTES and text
    if storable:
        return text
    import hashlib

    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _member(kind: Any, name: str, value: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise InvalidSettings(f"{name} must be one of {', '.join(kind)}, not {value!r}") from None
