"""Records what a function allocates, clears and launches while it runs; tensors are numbered."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, SupportsIndex

import torch
from torch import Tensor

from attnbench.kernels.shared.counts import Extent, Follows, RowCount, Rows, Source, counts_of, following, now
from attnbench.kernels.shared.launch import Repeat


class Notes(threading.local):
    """What is being noted in this thread."""

    recorder: Recorder | None = None


notes = Notes()


class Inside(NamedTuple):
    """Where a tensor begins that lies inside an own one."""

    number: int
    "of the own one"
    offset: int
    "bytes from its begin"


class Recorder:
    """Notes what a function allocates, clears and launches, on tensors by number: its arguments', then its own."""

    def __init__(self, tensors: Sequence[Tensor | None], axes: Mapping[int, int] | None = None) -> None:
        """Begin to note.

        Args:
            tensors: the arguments.
            axes: of the rows of those whose rows differ from call to call; None: any extent may.
        """
        self.given, self.axes = len(tensors), axes
        self.tensors: list[Tensor | None] = []
        self.shapes: list[list[str | int]] = []
        "of own tensors: the extents, those that follow arguments as sources"
        self.inside: list[Inside] = []
        self.kinds: list[tuple[Source, bool]] = []
        "comparisons of counts that kernels are compiled for, and how they came out"
        self.numbers: dict[int, int] = {}
        "of tensors, by identity"
        self.known: dict[tuple[int, int, bool], str] = {}
        "extents as they are written"
        for x in tensors:
            # One tensor given twice is two arguments.
            twice = any(x is other for other in self.tensors)
            self.add(x.view_as(x) if x is not None and twice else x)
        self.steps: list[Repeat | int] = []
        self.fault: str | None = None

    def add(self, x: Tensor | None) -> None:
        """Give a tensor the next number."""
        if x is not None:
            self.numbers[id(x)] = len(self.tensors)
        self.tensors.append(x)

    def around(self, step: Repeat | int) -> set[int]:
        """Numbers of the tensors that a step is of, and of those that it is inside of."""
        numbers = {step} if isinstance(step, int) else step.numbers
        return {number if number >= 0 else self.inside[-2 - number].number for number in numbers}

    def number(self, x: Tensor) -> int:
        """Number of a tensor, or of the one whose beginning it is another view of; under -1 of one inside an own one.

        Raises:
            LookupError: it is none of them, or may be of several.
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
        """A source in one piece.

        Raises:
            LookupError: it is of no known tensor, or of strides that do not follow.
        """
        return "".join(one if isinstance(one, str) else self._extent(one) for one in source)

    def _extent(self, extent: Extent) -> str:
        x, axis, is_stride = extent
        key = id(x), axis, is_stride
        if key not in self.known:
            self.known[key] = self._written(x, axis, is_stride=is_stride)
        return self.known[key]

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
        return f"r[{number},{axis}]" if self.axes is None or self.axes.get(number) == axis else str(x.shape[axis])

    def _written_of_view(self, x: Tensor, axis: int, *, is_stride: bool) -> str:
        """Rows of another view of a tensor, as pages are keys, by the rows of that tensor."""
        number = self.number(x)
        of = self.tensors[number] if number >= 0 else None
        if of is None or axis or is_stride:
            raise LookupError("a count is of a part of a tensor, or of no first dim of a view")
        times, rest = divmod(math.prod(of.shape[1:]), math.prod(x.shape[1:]) or 1)
        if rest or x.shape[0] != of.shape[0] * times:
            raise LookupError("a count is of a part of a tensor")
        return f"{self._extent(Extent(of, 0, is_stride=False))}*{times}"

    def follows(self, count: RowCount) -> Follows | None:
        """A count by the arguments that it follows; None: it follows none.

        Raises:
            LookupError: it is of no known tensor.
        """
        source = self.written(count.source)
        return following(source) if "r[" in source else None

    def made(self, shape: Sequence[SupportsIndex], x: Tensor) -> None:
        """Note what was allocated, by the shape that was asked for."""
        self.add(x)
        extents: list[str | int] = list(x.shape)
        for axis, extent in enumerate(shape):
            if isinstance(extent, RowCount):
                try:
                    source = self.written(extent.source)
                except LookupError as fault:
                    self.fault = str(fault)
                else:
                    extents[axis] = f"({source})" if "r[" in source else x.shape[axis]
        self.shapes.append(extents)

    def layout(self, number: int) -> Layout:
        """Shape and precision of an own tensor."""
        x = self.tensors[number]
        assert x is not None
        shape = [following(one) if isinstance(one, str) else one for one in self.shapes[number - self.given]]
        return Layout(shape, x.dtype)

    def note(self, step: Callable[[], Repeat | int]) -> None:
        """Note a step, or why the call cannot be repeated."""
        try:
            self.steps.append(step())
        except LookupError as fault:
            self.fault = str(fault)
        except (
            Exception
        ) as fault:  # another launcher than the known: this call has been launched, the next go by Triton
            self.fault = f"{type(fault).__name__}: {fault}"


class Layout(NamedTuple):
    """What is allocated: contiguous, some extents of which follow arguments."""

    shape: Sequence[int | Follows]
    dtype: torch.dtype

    def at(self, rows: Rows) -> tuple[int, ...]:
        """The shape, for arguments of these extents."""
        return tuple([one if isinstance(one, int) else one.at(rows) for one in self.shape])


def empty(shape: Sequence[SupportsIndex], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Allocate a contiguous tensor on the card of another, by default of its precision."""
    made = like.new_empty([int(extent) for extent in shape], dtype=dtype)
    recorder = notes.recorder
    if recorder is not None:
        recorder.made(shape, made)
    return made


def zeros(shape: Sequence[SupportsIndex], like: Tensor, dtype: torch.dtype) -> Tensor:
    """Allocate as `empty` does, and clear."""
    made = empty(shape, like, dtype)
    clear(made)
    return made


def clear(x: Tensor) -> None:
    """Write zeros."""
    recorder = notes.recorder
    if recorder is not None:
        recorder.note(lambda: recorder.number(x))
    x.zero_()


def launch(kernel: Any, grid: tuple[SupportsIndex, ...], *values: Any, **named: Any) -> None:
    """Launch a kernel of Triton's on the current device: ``kernel[grid](*values, **named)``."""
    plain = {name: now(value) for name, value in named.items()}
    compiled = kernel[tuple(map(int, grid))](*map(now, values), **plain)
    recorder = notes.recorder
    if recorder is not None:
        recorder.note(lambda: _repeat(recorder, kernel, compiled, grid, values, named))


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
    ordered = [given.get(param.name, param.default) for param in kernel.params]
    for param, value in zip(kernel.params, ordered, strict=True):
        described = hasattr(value, "block_shape")
        for count in _counts_in(value):
            unseen = described or (param.do_not_specialize and not isinstance(value, tuple))
            recorder.kinds += _kinds(count, specialised=not unseen)
    return Repeat(compiled, grid, ordered, recorder.number, recorder.follows)


def _counts_in(value: Any) -> Iterable[RowCount]:
    if isinstance(value, RowCount):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from _counts_in(one)
    elif hasattr(value, "block_shape"):
        for counts in counts_of(value):
            yield from counts.values()


def _kinds(count: RowCount, *, specialised: bool) -> Iterable[tuple[Source, bool]]:
    """What Triton compiles a kernel for of a whole number: how wide it is, whether it is 1, whether 16 divides it."""
    n, source = count.value, count.source
    yield (*source, f">={2**31}"), n >= 2**31
    if specialised:
        yield (*source, "==1"), n == 1
        yield (*source, "%16==0"), n % 16 == 0


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Those of a contiguous tensor."""
    return tuple(accumulate((max(1, extent) for extent in reversed(shape[1:])), int.__mul__, initial=1))[::-1]
