"""Records what a function allocates, clears and launches while it runs; tensors are numbered."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, SupportsIndex

import torch
from torch import Tensor

from attnbench.kernels.shared.counts import COUNTED, CountExpression, Extent, RowCount, Rows, Source, following, now
from attnbench.kernels.shared.keys import hash_callees_first
from attnbench.kernels.shared.launch import SIMPLE, Repeat


class Notes(threading.local):
    """What this thread records."""

    recorder: Recorder | None = None


notes = Notes()


class Inside(NamedTuple):
    """Position of a tensor that lies inside an own tensor."""

    number: int
    "number of the own tensor"
    offset: int
    "byte offset from its beginning"


class Recorder:
    """Records what a function allocates, clears and launches, on numbered tensors: its arguments, then its own."""

    def __init__(self, tensors: Sequence[Tensor | None], axes: Mapping[int, int] | None = None) -> None:
        """Begin to note.

        Args:
            tensors: the arguments.
            axes: of the rows of those whose rows differ from call to call; None: any extent may.
        """
        self.given, self.axes = len(tensors), axes
        self.tensors: list[Tensor | None] = []
        self.shapes: list[list[str | int]] = []
        "shapes of own tensors; extents that depend on arguments are expressions"
        self.layouts: list[Layout] = []
        "the same for allocating them"
        self.counted: dict[tuple[int, int], int] = {}
        "extents of arguments that expressions contain, by number and axis"
        self.inside: list[Inside] = []
        self.conditions: set[str] = set()
        "what kernels are specialized for in counts, as expressions that are true"
        self.numbers: dict[int, int] = {}
        "numbers of tensors, by identity"
        self.known: dict[tuple[int, int, bool], str] = {}
        "cached expressions of extents"
        self.expressions: dict[int, tuple[Source, str, CountExpression | None]] = {}
        "cached expressions of sources, by identity, and compiled if they depend on arguments"
        for number, x in enumerate(tensors):
            # A tensor that is passed twice is two arguments.
            one = x.view_as(x) if x is not None and id(x) in self.numbers else x
            self.tensors.append(one)
            if one is not None:
                self.numbers[id(one)] = number
        self.steps: list[Repeat | int] = []
        self.fault: str | None = None

    def around(self, numbers: Iterable[int]) -> set[int]:
        """Numbers of tensors, with those inside an own tensor replaced by it."""
        return {number if number >= 0 else self.inside[-2 - number].number for number in numbers}

    def number(self, x: Tensor) -> int:
        """Number of a tensor or of the tensor that it is a view of from the beginning; below -1 for one inside an own tensor.

        Raises:
            LookupError: it is none of them, or could be several.
        """
        if id(x) in self.numbers:
            return self.numbers[id(x)]
        there = [(number, other) for number, other in enumerate(self.tensors) if other is not None and other.numel()]
        address = x.data_ptr()
        found = [number for number, other in there if other.data_ptr() == address]
        if len(found) == 1:
            return found[0]
        around = [
            Inside(number, address - other.data_ptr())
            for number, other in there
            if number >= self.given and 0 < address - other.data_ptr() < other.nbytes
        ]
        if found or len(around) != 1 or not all(isinstance(n, int) for n in self.shapes[around[0].number - self.given]):
            raise LookupError("a tensor is none of the arguments, and was not made by `empty`")
        if around[0] not in self.inside:
            self.inside.append(around[0])
        return -2 - self.inside.index(around[0])

    def written(self, source: Source) -> str:
        """An expression as one string.

        Raises:
            LookupError: it contains an unknown tensor, or a stride that does not follow from extents.
        """
        return self._expression(source)[1]

    def _expression(self, source: Source) -> tuple[Source, str, CountExpression | None]:
        text = ""
        for one in source:
            if isinstance(one, str):
                text += one
            else:
                text += self.known.get((id(one.of), one.axis, one.is_stride)) or self._extent(one)
        found = self.expressions[id(source)] = source, text, following(text) if "r[" in text else None
        return found

    def _extent(self, extent: Extent) -> str:
        x, axis, is_stride = extent
        found = self.known[id(x), axis, is_stride] = self._written(x, axis, is_stride=is_stride)
        return found

    def _written(self, x: Tensor, axis: int, *, is_stride: bool) -> str:
        found = self.numbers.get(id(x))
        if found is None:
            return self._written_of_view(x, axis, is_stride=is_stride)
        if not is_stride:
            return self._rows(found, x, axis)
        if x.stride(axis) != contiguous_strides(x.shape)[axis]:
            raise LookupError("a stride is of a tensor with gaps")
        behind = range(axis + 1, x.dim())
        factors = [self._rows(found, x, at) for at in behind]
        return "*".join(factor if factor.isdigit() else f"max(1,{factor})" for factor in factors) or "1"

    def _rows(self, number: int, x: Tensor, axis: int) -> str:
        """How long a tensor of a number is along an axis."""
        if number >= self.given:
            return str(self.shapes[number - self.given][axis])
        if self.axes is not None and self.axes.get(number) != axis:
            return str(x.shape[axis])
        self.counted[number, axis] = x.shape[axis]
        return f"r[{number},{axis}]"

    def _written_of_view(self, x: Tensor, axis: int, *, is_stride: bool) -> str:
        """Rows of a view with another shape, such as the pages of keys, from the rows of the tensor."""
        number = self.number(x)
        of = self.tensors[number] if number >= 0 else None
        if of is None or axis or is_stride:
            raise LookupError("a count is of a part of a tensor, or not of the first dim of a view")
        times, rest = divmod(math.prod(of.shape[1:]), math.prod(x.shape[1:]) or 1)
        if rest or x.shape[0] != of.shape[0] * times:
            raise LookupError("a count is of a part of a tensor")
        return f"{self._extent(Extent(of, 0, is_stride=False))}*{times}"

    def follows(self, count: RowCount) -> CountExpression | None:
        """The expression of a count; None: the count does not depend on arguments.

        Raises:
            LookupError: it contains an unknown tensor.
        """
        return (self.expressions.get(id(count.source)) or self._expression(count.source))[2]

    def made(self, shape: Sequence[SupportsIndex], x: Tensor) -> None:
        """Record an allocation, with the requested shape."""
        self.numbers[id(x)] = len(self.tensors)
        self.tensors.append(x)
        extents: list[str | int] = list(x.shape)
        shape_of: list[int | CountExpression] = list(x.shape)
        for axis, extent in enumerate(shape):
            if isinstance(extent, RowCount):
                try:
                    _, source, found = self.expressions.get(id(extent.source)) or self._expression(extent.source)
                except LookupError as fault:
                    self.fault = str(fault)
                else:
                    if found is not None:
                        extents[axis], shape_of[axis] = f"({source})", found
        self.shapes.append(extents)
        self.layouts.append(Layout(shape_of, x.dtype))

    def specialise(self, count: RowCount, *, seen: bool) -> None:
        """Add the conditions of a launch on a count: its width, and where it is seen whether it is 1 and 16 divides it.

        Raises:
            LookupError: it contains an unknown tensor.
        """
        _, text, found = self.expressions.get(id(count.source)) or self._expression(count.source)
        n = count.value
        if found is not None:
            self.conditions.add(f"({text}>={2**31})=={n >= 2**31}")
            if seen:
                self.conditions |= {f"({text}==1)=={n == 1}", f"({text}%16==0)=={n % 16 == 0}"}

    def note(self, step: Callable[..., Repeat | int], *given: Any) -> None:
        """Record the step that a function returns, or why the call cannot be repeated."""
        try:
            self.steps.append(step(*given))
        except LookupError as fault:
            self.fault = str(fault)
        except Exception as fault:  # such as an unknown launcher: later calls are launched through Triton
            self.fault = f"{type(fault).__name__}: {fault}"


class Layout(NamedTuple):
    """An allocation: a contiguous tensor, of which some extents depend on arguments."""

    shape: Sequence[int | CountExpression]
    dtype: torch.dtype

    def at(self, rows: Rows) -> tuple[int, ...]:
        """The shape, for arguments with these extents."""
        shape = []
        for one in self.shape:
            shape.append(one if isinstance(one, int) else one.at(rows))
        return tuple(shape)


def empty(shape: Sequence[SupportsIndex], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Allocate a contiguous tensor on the card of another, by default with its dtype."""
    made = like.new_empty(list(map(int, shape)), dtype=dtype)
    recorder = notes.recorder
    if recorder is not None:
        recorder.made(shape, made)
    return made


def zeros(shape: Sequence[SupportsIndex], like: Tensor, dtype: torch.dtype) -> Tensor:
    """Allocate as `empty` does, and write zeros."""
    made = empty(shape, like, dtype)
    clear(made)
    return made


def clear(x: Tensor) -> None:
    """Write zeros."""
    recorder = notes.recorder
    if recorder is not None:
        recorder.note(recorder.number, x)
    x.zero_()


def launch(kernel: Any, grid: tuple[SupportsIndex, ...], *values: Any, **named: Any) -> None:
    """Launch a Triton kernel on the current device: ``kernel[grid](*values, **named)``."""
    plain = {name: now(value) if isinstance(value, COUNTED) else value for name, value in named.items()}
    hash_callees_first(kernel)
    compiled = kernel[tuple(map(int, grid))](*map(now, values), **plain)
    recorder = notes.recorder
    if recorder is not None:
        recorder.note(_repeat, recorder, kernel, compiled, grid, values, named)


def _repeat(
    recorder: Recorder,
    kernel: Any,
    compiled: Any,
    grid: tuple[SupportsIndex, ...],
    values: tuple[Any, ...],
    named: dict[str, Any],
) -> Repeat:
    if compiled is None or kernel.pre_run_hooks:
        raise LookupError("nothing was compiled, or the kernel has hooks")
    given = dict(zip(kernel.arg_names, values, strict=False)) | named
    ordered = []
    for param in kernel.params:
        try:
            value = given[param.name]
        except KeyError:
            value = param.default
        ordered.append(value)
        if type(value) in SIMPLE or isinstance(value, Tensor) or param.is_constexpr:
            continue
        if isinstance(value, RowCount):
            recorder.specialise(value, seen=not param.do_not_specialize)
        elif isinstance(value, tuple):
            _specialise_within(recorder, value)
        else:
            for counts in getattr(value, "counts", ()):  # of a descriptor
                for count in counts.values():
                    recorder.specialise(count, seen=False)
    return Repeat(compiled, grid, ordered, recorder)


def _specialise_within(recorder: Recorder, values: tuple[Any, ...]) -> None:
    """In a tuple every number is seen."""
    for value in values:
        if isinstance(value, RowCount):
            recorder.specialise(value, seen=True)
        elif isinstance(value, tuple):
            _specialise_within(recorder, value)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    strides, stride = [], 1
    for extent in reversed(shape):
        strides.append(stride)
        stride *= extent or 1
    return tuple(strides[::-1])
