"""From a function and what is said about it to a job type. Whatever can't work is refused where it is declared."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from types import FunctionType
from typing import Any

import msgspec

from fencepost.domain.backoff import Backoff, Constant, Exponential, Linear
from fencepost.domain.fields import (
    check_expiry,
    check_max_attempts,
    check_priority,
    check_queue,
    check_timeout,
    read_seconds,
    shown,
)
from fencepost.domain.job import Unique
from fencepost.domain.policy import Policy
from fencepost.errors import InvalidJob, InvalidSettings
from fencepost.types import codec
from fencepost.types.functions import is_async, is_generator, unwrapped
from fencepost.types.jobtype import Handler, JobType, Kind, check_type_name, never_unique
from fencepost.types.signature import Signature
from fencepost.types.unique import UniqueBy, unique_rule

Seconds = float | timedelta
Exceptions = tuple[type[BaseException], ...] | type[BaseException]


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """What `Fencepost.job` may be told; its docstring says what each means."""

    name: str | None = None
    queue: str = "default"
    priority: int = 0
    max_attempts: int | None = None
    timeout: Seconds | None = None
    expires: Seconds | None = None
    backoff: Backoff | None = None
    retry_on: Exceptions | None = None
    permanent_on: Exceptions = ()
    unique: Unique | UniqueBy | None = None
    process: bool = False


def declared(function: Any, wanted: Declaration, *, backoff: Callable[[], Backoff]) -> tuple[JobType, Signature]:
    """
    The job type of *function*; *backoff* tells the settings' own rule.

    Raises InvalidSettings, naming the function and what is wrong.
    """
    where = place_of(function)
    _check_function(function, where)
    name = wanted.name or _name_of(function, where)
    try:
        check_type_name(name)
        signature = Signature(function, where=where)
        _check_options(wanted, signature, where)
        kind = Kind.ASYNC if is_async(function) else Kind.THREAD
        path = None
        if wanted.process:
            path = _importable(function, signature, where, kind)
            kind = Kind.PROCESS
        job_type = JobType(
            name=name,
            handler=signature.handler(function, is_async=kind is Kind.ASYNC),
            decoder=signature.decoder,
            kind=kind,
            policy=_policy(wanted, where, backoff),
            timeout_seconds=_seconds(wanted.timeout, "timeout", check_timeout),
            queue=wanted.queue,
            priority=wanted.priority,
            max_attempts=wanted.max_attempts,
            expires_seconds=_seconds(wanted.expires, "expires", check_expiry),
            unique_of=_unique_of(wanted.unique, signature),
            path=path,
            encode=codec.encode_result,
            needs=tuple(signature.needs),
        )
    except InvalidJob as error:
        raise InvalidSettings(f"{where}: {error}") from None
    return job_type, signature


def low_level(name: str, handler: Handler, payload: Any) -> JobType:
    """The job type of a function of the context and the payload. Raises InvalidSettings."""
    check_type_name(name)
    _check_function(handler, f"the handler of {name!r}")
    return JobType(
        name=name,
        handler=handler,
        decoder=codec.decoder(payload),
        kind=Kind.ASYNC if is_async(handler) else Kind.THREAD,
        encode=codec.encode_result,
    )


def place_of(function: Any) -> str:
    """Where a function is written, for messages."""
    found = unwrapped(function)
    code = getattr(found, "__code__", None)
    name = getattr(found, "__qualname__", None) or type(found).__qualname__
    where = f"{getattr(found, '__module__', '?')}.{name}"
    return where if code is None else f"{where} ({code.co_filename.rpartition('/')[2]}:{code.co_firstlineno})"


def _check_function(function: Any, where: str) -> None:
    if isinstance(function, str):
        raise InvalidSettings(f'a job type is named with name=: @app.job(name="{function}")')
    if isinstance(function, staticmethod | classmethod):
        raise InvalidSettings("@app.job goes below @staticmethod or @classmethod, or on a function outside of a class")
    if isinstance(function, type) or not callable(function):
        raise InvalidSettings(f"{where} is not a function")
    if is_generator(function):
        raise InvalidSettings(f"{where} is a generator, which would never run; use return, not yield")


def _name_of(function: Any, where: str) -> str:
    name = getattr(function, "__name__", None)
    if name is None or name == "<lambda>":
        raise InvalidSettings(f"{where} has no name of its own; give it one with name=")
    return str(name)


def _importable(function: Any, signature: Signature, where: str, kind: Kind) -> str:
    """The path by which a child process finds *function*. Raises InvalidSettings."""
    if kind is Kind.ASYNC:
        raise InvalidSettings(f"{where} is async; process=True is for plain functions that compute")
    if signature.needs:
        raise InvalidSettings(
            f"{where} takes the resource {signature.needs[0].parameter}; resources are opened in the worker, and "
            "can't be handed to the child process of process=True"
        )
    qualname = getattr(function, "__qualname__", "<none>")
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if not isinstance(function, FunctionType) or "<" in qualname or module is None:
        raise InvalidSettings(
            f"{where} can't be imported by a child process, which process=True needs; make it a function of a module"
        )
    if module.__name__ == "__main__":
        spec = getattr(module, "__spec__", None)
        if spec is not None:
            return f"{spec.name}:{qualname}"
        if getattr(module, "__file__", None) is None:
            raise InvalidSettings(f"{where} was typed in, so a child process can't import it; put it into a module")
    return f"{module.__name__}:{qualname}"


def _policy(wanted: Declaration, where: str, backoff: Callable[[], Backoff]) -> Policy | None:
    retry_on = None if wanted.retry_on is None else _exceptions(wanted.retry_on, "retry_on", where)
    permanent_on = _exceptions(wanted.permanent_on, "permanent_on", where)
    if wanted.backoff is None and retry_on is None and not permanent_on:
        return None
    if wanted.backoff is None:
        return Policy(backoff(), retry_on, permanent_on)
    if not isinstance(wanted.backoff, Exponential | Linear | Constant) and not callable(wanted.backoff):
        raise InvalidSettings(
            f"{where}: backoff must be Exponential(…), Linear(…), Constant(…) or a function of the attempt, "
            f"not {wanted.backoff!r}"
        )
    return Policy(wanted.backoff, retry_on, permanent_on)


def _exceptions(given: Any, option: str, where: str) -> tuple[type[BaseException], ...]:
    found = (given,) if isinstance(given, type) else tuple(given)
    for kind in found:
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise InvalidSettings(f"{where}: {option} must be exception classes, not {kind!r}")
    return found


def _check_options(wanted: Declaration, signature: Signature, where: str) -> None:
    check_queue(wanted.queue)
    check_priority(wanted.priority)
    if wanted.max_attempts is not None:
        check_max_attempts(wanted.max_attempts)
    if not isinstance(wanted.unique, Unique | UniqueBy | None):
        raise InvalidJob(f"must be a Unique or a UniqueBy, not {shown(wanted.unique)}", field="unique")
    if isinstance(wanted.unique, UniqueBy):
        wanted.unique.check_names(signature)


def _unique_of(rule: Unique | UniqueBy | None, signature: Signature) -> Callable[[bytes], Unique | None]:
    if rule is None:
        return never_unique
    if isinstance(rule, UniqueBy):
        by = rule
        return lambda payload: by.unique(signature.arguments(payload))
    always = unique_rule(rule)
    return lambda payload: always


def _seconds(value: Seconds | None, option: str, check: Callable[[float], float]) -> float | None:
    return None if value is None else check(read_seconds(value, option))
