"""Stand-ins for Triton's aggregates: values with named fields, some of them constants, and methods that are kernels.

Triton calls the decorator `gluon.aggregate`, and before 3.7 `triton.language.core._aggregate`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import triton.language as tl
from triton.runtime.jit import JITFunction

from .memory import View
from .mistakes import Mistake
from .tiles import Int, Tile

if TYPE_CHECKING:
    from .program import Names


class Aggregate:
    """Base class of the stand-ins of all aggregates."""

    _kinds: dict[str, Any]
    "annotations of the fields, by name"
    _made = False

    def fields(self) -> Iterator[tuple[str, Any]]:
        """Names and values, in order."""
        return ((name, getattr(self, name)) for name in self._kinds)

    def views(self) -> list[tuple[str, View]]:
        """The regions of shared memory in it, each with its place below the aggregate's name: ``.ring[1]``."""
        if "_views" not in vars(self):
            found = [one for name, value in self.fields() for one in _views(value, f".{name}")]
            vars(self)["_views"] = found
        return vars(self)["_views"]

    def __setattr__(self, name: str, value: Any) -> None:
        value = value.value if isinstance(value, tl.constexpr) else value
        place = f"{type(self).__name__}.{name}"
        if self._made:
            raise Mistake(f"{place}: fields of an aggregate are set when it is made")
        if name not in self._kinds:
            raise Mistake(f"{place}: no such field")
        kind = self._kinds[name]
        value = value.value if isinstance(value, tl.constexpr) else value
        if kind is tl.constexpr and isinstance(value, (Int, Tile)):
            raise Mistake(f"{place} is a constexpr, and was given a value of the run")
        if kind is tl.tensor and (value is None or type(value) is int):
            raise Mistake(f"{place} is a value of the run, and was given the constant {value}")
        super().__setattr__(name, value)


def _views(value: Any, place: str) -> list[tuple[str, View]]:
    if isinstance(value, View):
        return [(place, value)]
    if isinstance(value, Aggregate):
        return [(place + below, view) for below, view in value.views()]
    if isinstance(value, tuple):
        return [
            one for below, part in zip(places(value), value, strict=True) for one in _views(part, f"{place}{below}")
        ]
    return []


def places(value: tuple[Any, ...]) -> list[str]:
    """Where the parts of a tuple are: ``.name`` of a named one, else ``[0]``."""
    return [f".{field}" for field in getattr(value, "_fields", ())] or [f"[{index}]" for index in range(len(value))]


def aggregate_of(theirs: Any, names: Names) -> type:
    """The stand-in of a class that Triton made an aggregate.

    Args:
        theirs: the decorator's result.
        names: of the program, for the methods.
    """
    fields = inspect.get_annotations(theirs)
    init, *_ = theirs.hash_attrs
    # Triton's own constructor wraps its arguments as compiler values.
    fill = _filled(theirs) if init.__qualname__.startswith("_aggregate.") else getattr(init, "fn", init)

    def make(self: Aggregate, *values: Any, **named: Any) -> None:
        try:
            fill(self, *values, **named)
        except TypeError as wrong:
            raise Mistake(f"{theirs.__name__}: {wrong}") from None
        vars(self)["_made"] = True

    methods = {
        name: _method(names.of(member)) for name, member in vars(theirs).items() if isinstance(member, JITFunction)
    }
    return type(theirs.__name__, (Aggregate,), {"_kinds": fields, "__init__": make, **methods})


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that Python binds to an instance, which it does not do for callable objects."""
    return lambda *values, **named: function(*values, **named)


def _filled(theirs: Any) -> Callable[..., None]:
    """What Triton's own constructor does, without the wrapping."""
    defaults = {
        name: value.value if isinstance(value, tl.constexpr) else value
        for name, value in theirs.__aggregate_defaults__.items()
    }
    signature = inspect.Signature(
        [
            inspect.Parameter(
                name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=defaults.get(name, inspect.Parameter.empty)
            )
            for name in theirs.__aggregate_fields__
        ]
    )

    def fill(self: Aggregate, *values: Any, **named: Any) -> None:
        given = signature.bind(*values, **named)
        given.apply_defaults()
        for name, value in given.arguments.items():
            setattr(self, name, value)

    return fill
