"""Integers that depend on the number of rows of tensors, recomputed when a cached call has another number of rows.

    rows = rows_in(q)                       a `RowCount`: an integer, and the expression that it was computed by
    empty((rows * heads,), q)               allocated for the number of rows of the call that repeats this
    programs = min(132, rows // 128)        comparisons are recorded: if one has another result, a new plan is made

A `RowCount` is computed from others by sums, products and quotients.  Its source is a Python expression over `r`, the
extents of a call's arguments by number and axis.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

from torch import Tensor

Rows = Mapping[tuple[int, int], int]
"Extents of the arguments, by number and axis."


class Extent(NamedTuple):
    """Length of a tensor along an axis, or its stride there."""

    of: Tensor
    axis: int
    is_stride: bool


Source = tuple["str | Extent", ...]
"An expression in pieces."


class _Guards(threading.local):
    noted: list[tuple[Source, bool]] | None = None


_guards = _Guards()


@contextmanager
def noting_guards() -> Iterator[list[tuple[Source, bool]]]:
    """Record the results of comparisons of counts in this thread."""
    before, _guards.noted = _guards.noted, []
    try:
        yield _guards.noted
    finally:
        _guards.noted = before


class RowCount:
    """An integer that depends on the lengths of tensors."""

    __slots__ = ("source", "value")
    __hash__ = None  # type: ignore[assignment]  # makes it unhashable

    def __init__(self, value: int, *source: str | Extent) -> None:
        """An integer, and the pieces of its expression."""
        self.value, self.source = value, source

    def __index__(self) -> int:
        return self.value

    __int__ = __index__

    def __repr__(self) -> str:
        return f"RowCount({self.value})"

    def __str__(self) -> str:
        return str(self.value)

    def _with(self, other: object, operator: str, *, turned: bool = False) -> Any:
        if not isinstance(other, int | RowCount):
            return NotImplemented
        of_other = other.source if isinstance(other, RowCount) else (repr(int(other)),)
        left, right = (of_other, self.source) if turned else (self.source, of_other)
        before, behind = (int(other), self.value) if turned else (self.value, int(other))
        return RowCount(_OPERATORS[operator](before, behind), "(", *left, operator, *right, ")")

    def _is(self, other: object, operator: str) -> bool:
        found = self._with(other, operator)
        if found is NotImplemented:
            return found
        outcome = bool(found.value)
        if _guards.noted is not None:
            _guards.noted.append((found.source, outcome))
        return outcome

    def __add__(self, other: object) -> RowCount:
        return self._with(other, "+")

    def __sub__(self, other: object) -> RowCount:
        return self._with(other, "-")

    def __mul__(self, other: object) -> RowCount:
        return self._with(other, "*")

    def __floordiv__(self, other: object) -> RowCount:
        return self._with(other, "//")

    def __radd__(self, other: object) -> RowCount:
        return self._with(other, "+", turned=True)

    def __rmul__(self, other: object) -> RowCount:
        return self._with(other, "*", turned=True)

    def __rsub__(self, other: object) -> RowCount:
        return self._with(other, "-", turned=True)

    def __neg__(self) -> RowCount:
        return self * -1

    def __bool__(self) -> bool:
        return self._is(0, "!=")

    def __eq__(self, other: object) -> bool:
        return self._is(other, "==")

    def __ne__(self, other: object) -> bool:
        return self._is(other, "!=")

    def __lt__(self, other: object) -> bool:
        return self._is(other, "<")

    def __le__(self, other: object) -> bool:
        return self._is(other, "<=")

    def __gt__(self, other: object) -> bool:
        return self._is(other, ">")

    def __ge__(self, other: object) -> bool:
        return self._is(other, ">=")

    def parts(self, size: int) -> RowCount:
        """Number of parts of a size; the last one may be smaller."""
        return (self + (size - 1)) // size


_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": int.__add__,
    "-": int.__sub__,
    "*": int.__mul__,
    "//": int.__floordiv__,
    "==": int.__eq__,
    "!=": int.__ne__,
    "<": int.__lt__,
    "<=": int.__le__,
    ">": int.__gt__,
    ">=": int.__ge__,
}


def rows_in(x: Tensor, axis: int = 0) -> RowCount:
    """Length of an argument, or of a tensor made by `empty`, along an axis."""
    return RowCount(x.shape[axis], Extent(x, axis, is_stride=False))


def stride_in(x: Tensor, axis: int) -> RowCount:
    """Stride of such a tensor, which must be contiguous, along an axis."""
    return RowCount(x.stride(axis), Extent(x, axis, is_stride=True))


def strides_in(x: Tensor, axis: int) -> tuple[int | RowCount, ...]:
    """Strides of an argument, or of what was made by `empty`; those of `spans` follow its number of rows.

    So do those before the rows of a contiguous tensor, whatever PyTorch says is the stride of an extent of 1.

    Args:
        x: whose rows lie along the axis.
        axis: of the rows.
    """
    rows, strides = x.shape[axis], x.stride()
    if not rows:
        return strides
    if x.is_contiguous():
        count = rows_in(x, axis)
        return *[count * (math.prod(x.shape[at + 1 :]) // rows) for at in range(axis)], *strides[axis:]
    found = spans(x.shape, strides, axis)
    return tuple(rows_in(x, axis) * (one // rows) if one in found else one for one in strides)


def spans(shape: Sequence[int], strides: Sequence[int], axis: int) -> tuple[int, int]:
    """Strides that go with the rows along an axis: over all rows of a head, and over those of all heads."""
    rows = shape[axis] * strides[axis]
    return rows, rows * math.prod(shape[axis + 1 : -1])


def now(value: Any) -> Any:
    """A value with its counts replaced by their integers, also within tuples."""
    if type(value) is RowCount:
        return value.value
    if isinstance(value, tuple):
        for one in value:
            if isinstance(one, COUNTED):
                return _like(value, map(now, value))
    return value


COUNTED = (RowCount, tuple)
"What `now` may replace; of anything else it need not be asked."


def _like(value: tuple[Any, ...], parts: Any) -> Any:
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


class CountExpression(NamedTuple):
    """A count's expression, without its tensors."""

    source: str
    at: Callable[[Rows], int]
    "computes the integer from the extents of the arguments"


@lru_cache(4096)  # compiling an expression takes longer than everything else here
def following(source: str) -> CountExpression:
    """Compile an expression."""
    return CountExpression(source, eval(f"lambda r: {source}", {"__builtins__": {"max": max}}))


_CHECKED: dict[Hashable, dict[str, Any]] = {}
"Descriptors without their tensors, by what Triton checks of them alone."


def descriptor_of(kind: Any, x: Tensor, shape: list[int], strides: list[int], block: list[int], *layout: Any) -> Any:
    """The descriptor ``kind(x, shape, strides, block, *layout)``, of which Triton checks dtype, tile and layout once.

    Its checks are twelve calls of Python for each of up to eight descriptors of a call.  Those of the tensor are made here,
    and one that does not pass is given to Triton, which says what is wrong.

    Args:
        kind: Triton's class.
        x: the tensor.
        shape: extents.
        strides: in elements; the last is 1.
        block: extents of a tile.
        layout: none, or the one layout that its caller makes once for all such tiles.

    Raises:
        AssertionError: Triton's, for what no tensor map can describe.
    """
    key = kind, x.dtype, *block, *map(id, layout)  # what is cached keeps the layout, and so its identity
    fields = _CHECKED.get(key)
    aligned = math.gcd(16, x.data_ptr(), x.element_size() * math.gcd(*strides[:-1])) == 16
    if fields is None or not (
        aligned and strides[-1] == 1 and min(shape) > 0 and len(shape) == len(strides) == len(block)
    ):
        found = kind(x, shape, strides, block, *layout)
        _CHECKED[key] = vars(found) | {"base": None}  # keeps no tensor alive
        return found
    found = object.__new__(kind)
    found.__dict__.update(fields, base=x, shape=shape, strides=strides)
    return found


def describes(descriptor: Any, *, shape: Mapping[int, RowCount], strides: Mapping[int, RowCount]) -> Any:
    """Attach to a descriptor the extents and strides, by axis, that are counts, as its attribute `counts`."""
    descriptor.counts = shape, strides
    return descriptor
