"""
A function's parameters, as the members of a payload.

The payload is a JSON object of the parameters by name, so that callers over HTTP and SQL write what callers in
Python mean. Three kinds of parameter are not part of it: the `Context`, what `resource()` stands for, and a
`Payload[T]`, which takes the whole payload, of any shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from fencepost.domain.context import Context
from fencepost.domain.wording import explain, shown
from fencepost.errors import InvalidJob, InvalidSettings
from fencepost.types import codec, functions
from fencepost.types.annotations import is_context, resolve
from fencepost.types.functions import Parameter
from fencepost.types.jobtype import Handler, Need, PayloadDecoder

T = TypeVar("T")


class _Whole:
    """Marks the parameter that takes the whole payload."""


_WHOLE = _Whole()

Payload = Annotated[T, _WHOLE]
"""`order: Payload[Order]`: this parameter is the whole payload, not a member of it."""


class Resource:
    """What `resource()` stands for until a worker runs the job."""

    __slots__ = ("name",)

    def __init__(self, name: str | None) -> None:
        self.name = name

    def __repr__(self) -> str:
        return "resource()" if self.name is None else f"resource({self.name!r})"


def resource(name: str | None = None) -> Any:
    """
    The default of a parameter that the worker fills, from what the app's lifespan opened.

        async def send(user_id: int, *, pool: Pool = resource()) -> None: ...

    It is found by *name*, if there is one; else by the parameter's name, and if there is none of that, by its type.
    """
    return Resource(name)


class Signature:
    """
    The parameters of one function: which are the payload's, and how arguments become one.

    Raises InvalidSettings for a function whose parameters can't be a payload, naming the parameter.
    """

    def __init__(self, function: Callable[..., Any], *, where: str) -> None:
        self._where = where
        self.context: str | None = None
        self.context_first = False
        """Whether it is passed by position, before everything else."""
        self.needs: list[Need] = []
        self.whole: str | None = None
        self.positional: list[str] = []
        """What may be passed by position, in order, without the context."""
        self._fields: list[Any] = []
        self._extra: Any = None
        self.defaults: dict[str, Any] = {}
        parameters = functions.parameters_of(function)
        hints = resolve(
            function,
            [parameter.name for parameter in parameters],
            lenient={parameter.name for parameter in parameters if isinstance(parameter.default, Resource)},
            where=where,
        )
        self.returns = hints.get("return", Any)
        for place, parameter in enumerate(parameters):
            self._take(place, parameter, hints.get(parameter.name, Any))
        self.names = [field[0] for field in self._fields]
        self._names = frozenset(self.names)
        self._required = frozenset(name for name in self.names if name not in self.defaults)
        self._not_payload = {name for name in (self.context, *(need.parameter for need in self.needs)) if name}
        self._check_whole()
        self.decoder = self._make_decoder()

    def _take(self, place: int, parameter: Parameter, kind: Any) -> None:
        name = parameter.name
        if parameter.kind == functions.VAR_POSITIONAL:
            raise self._refused(f"*{name}", "can't be given by name, which a payload's members are; take a list")
        if parameter.kind == functions.POSITIONAL_ONLY and not is_context(kind):
            raise self._refused(name, "can only be passed by position; a payload's members have names")
        if place == 0 and name in ("self", "cls") and not parameter.is_annotated:
            raise self._refused(name, "is a method's; declare a function, or a bound method")
        if parameter.kind == functions.VAR_KEYWORD:
            self._extra = self._checked(name, kind)
            return
        by_position = parameter.kind == functions.POSITIONAL_OR_KEYWORD
        if is_context(kind):
            if self.context is not None:
                raise self._refused(name, "is a second Context")
            if place and by_position:
                raise self._refused(name, "is the Context, which goes first, or after a *")
            self.context = name
            self.context_first = by_position or parameter.kind == functions.POSITIONAL_ONLY
            return
        if by_position:
            self.positional.append(name)
        if isinstance(parameter.default, Resource):
            wanted = parameter.default.name or (name if kind is Any else None)
            self.needs.append(Need(parameter=name, name=wanted, annotation=kind))
            return
        if _WHOLE in getattr(kind, "__metadata__", ()):
            if self.whole is not None:
                raise self._refused(name, "is a second Payload, and there is only one")
            self.whole = name
        kind = self._checked(name, kind)
        if parameter.default is functions.EMPTY:
            self._fields.append((name, kind))
        else:
            self.defaults[name] = parameter.default
            self._fields.append((name, kind, msgspec.field(default_factory=lambda: parameter.default)))

    def _checked(self, name: str, kind: Any) -> Any:
        """The type itself, if it can be read from JSON."""
        try:
            if kind not in _SIMPLE:
                for unknown in codec.unreadable(kind):
                    raise self._refused(
                        name,
                        f"is a {getattr(unknown, '__qualname__', unknown)}, which can't be read from JSON; use a "
                        "dataclass, a msgspec struct or a pydantic model, or resource() for what the worker has",
                    )
            codec.decoder(kind)
        except (TypeError, NotImplementedError) as error:
            raise self._refused(name, f"can't be read from JSON: {error}") from None
        return kind

    def _check_whole(self) -> None:
        if self.whole is not None and (len(self.names) > 1 or self._extra is not None):
            raise self._refused(self.whole, "takes the whole payload, so there can be no other parameter")

    def _make_decoder(self) -> PayloadDecoder:
        if self.whole is not None:
            return codec.decoder(self._fields[0][1])
        closed = self._extra is None
        struct = msgspec.defstruct("Payload", self._fields, kw_only=True, forbid_unknown_fields=closed)
        known = codec.decoder(struct)
        return known if closed else _OpenDecoder(known, self._names, self._not_payload, codec.decoder(self._extra))

    def _refused(self, name: str, why: str) -> InvalidSettings:
        return InvalidSettings(f"{self._where}: the parameter {name} {why}")

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name. Raises InvalidJob for one that is missing, unknown, given twice or too many."""
        if len(args) > len(self.positional):
            raise InvalidJob(f"takes {len(self.positional)} arguments by position, not {len(args)}", field="arguments")
        bound = dict(zip(self.positional, args, strict=False))
        for name, value in kwargs.items():
            if name in bound:
                raise InvalidJob("is given twice, by position and by name", field=name)
            if name not in self._names and (self._extra is None or name in self._not_payload):
                raise self._unknown(name)
            bound[name] = value
        if not self._required <= bound.keys():
            missing = next(name for name in self.names if name in self._required and name not in bound)
            raise InvalidJob("is missing, and there is no default for it", field=missing)
        if self.needs:
            for need in self.needs:
                if need.parameter in bound:
                    raise self._unknown(need.parameter)
        return bound

    def _unknown(self, name: str) -> InvalidJob:
        if name == self.context:
            return InvalidJob("is the context, which the worker gives", field=name)
        if name in self._not_payload:
            return InvalidJob("is a resource, which the worker gives", field=name)
        return explain(f"Object contains unknown field `{name}`", "", self.names)

    def arguments(self, payload: bytes) -> Any:
        """The arguments in *payload* as JSON has them, with the function's defaults. Raises InvalidJob."""
        try:
            given = msgspec.json.decode(payload)
        except msgspec.DecodeError as error:
            raise explain(str(error), "the payload", ()) from None
        if self.whole is not None or not isinstance(given, dict):
            return given
        return {name: msgspec.json.decode(codec.encode_result(value)) for name, value in self.defaults.items()} | given

    def payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """
        The payload of a call with these arguments: checked by reading it as a worker would.

        What isn't given is left out, for the function's own default as it is when the job runs.
        Raises InvalidJob naming the parameter.
        """
        bound = self.bind(args, kwargs)
        value = bound if self.whole is None else bound.get(self.whole, self.defaults.get(self.whole))
        try:
            raw = codec.encode(value, are_members=self.whole is None)
        except codec.NotEncodable as error:
            raise self._guilty(bound, error) from None
        try:
            self.decoder.decode(raw)
        except msgspec.ValidationError as error:
            raise explain(str(error), self.whole or "the payload", self.names) from None
        except (ValueError, RecursionError) as error:
            raise InvalidJob(str(error)) from None
        return raw

    def _guilty(self, bound: Mapping[str, Any], error: Exception) -> InvalidJob:
        """The same error, with the name of the argument that it is about."""
        for name, value in bound.items():
            try:
                codec.encode(value)
            except codec.NotEncodable as found:
                return InvalidJob(str(found), field=shown(name))
        return InvalidJob(str(error), field="payload")

    @property
    def is_closed(self) -> bool:
        """Whether its payload is an object of known members."""
        return self.whole is None and self._extra is None

    def handler(self, function: Callable[..., Any], *, is_async: bool) -> Handler:
        """What calls *function* for an attempt, with the payload that the decoder has read."""
        context_name, needs, whole = self.context, tuple(self.needs), self.whole
        first = self.context_first

        def call(context: Context, payload: Any) -> Any:
            arguments = {whole: payload} if whole is not None else _members(payload)
            for need in needs:
                arguments[need.parameter] = _resource(context, need)
            if first:
                return function(context, **arguments)
            if context_name is not None:
                arguments[context_name] = context
            return function(**arguments)

        if is_async:

            async def call_async(context: Context, payload: Any) -> Any:
                return await call(context, payload)

            return call_async
        return call


def _resource(context: Context, need: Need) -> Any:
    if need.name is not None:
        return context.resource(need.name)
    try:
        return context.resource(need.parameter)
    except InvalidSettings:
        return context.resource(None, need.annotation)


class _OpenDecoder:
    """Reads the payload of a function with **kwargs: what it names, and whatever else there is."""

    def __init__(self, known: PayloadDecoder, names: frozenset[str], refused: set[Any], extra: PayloadDecoder) -> None:
        self._known = known
        self._names = names
        self._refused = refused
        self._extra = extra
        self._all = msgspec.json.Decoder(dict[str, msgspec.Raw])

    def decode(self, text: str | bytes, /) -> dict[str, Any]:
        """Read an object. Raises msgspec.ValidationError."""
        known = self._known.decode(text)
        arguments = msgspec.structs.asdict(known)
        for name, raw in self._all.decode(text).items():
            if name in self._refused:
                raise msgspec.ValidationError(f"Object contains unknown field `{name}`")
            if name not in self._names:
                try:
                    arguments[name] = self._extra.decode(bytes(raw))
                except msgspec.ValidationError as error:
                    raise msgspec.ValidationError(f"{str(error).split(' - at ')[0]} - at `$.{name}`") from None
        return arguments


def _members(payload: Any) -> dict[str, Any]:
    return dict(payload) if isinstance(payload, dict) else msgspec.structs.asdict(payload)


_SIMPLE: list[Any] = [Any, str, int, float, bool, bytes]
