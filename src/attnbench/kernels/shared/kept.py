"""What a call works out on the host, kept: the next call with the same key repeats its launches on other tensors.

    launches = Launches(function)       function allocates by `empty`, clears by `clear`, launches by `launch`
    launches(q, k, v)                   runs it, and notes what it allocates, clears and launches
    launches(q2, k2, v2)                allocates, clears and launches the same on other tensors

All that a function does on the host must follow from the key under which its `Launches` are kept: shapes, strides,
precisions, cards and the alignment of addresses (`facts_of`), every other argument, and `switches`.  So checks,
configurations, grids, specialisations and descriptors are those of the first call.  What depends on more is never
kept: the stream, the current device, memory (only shapes of it), values inside tensors.

Sequences one after another have another number of rows in almost every batch.  Of arguments that are `jagged` the key
leaves it out, and what follows from it (allocations, grids, descriptors of a whole tensor, counts that kernels take
unspecialised) is worked out in each call: the function has to take that number by `rows_in`, never from a shape.

A call that cannot be repeated runs its function each time, as do the interpreter and the machine of the tests.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Generic, NamedTuple, SupportsIndex, TypeVar

import torch
from torch import Tensor

from attnbench.kernels.shared import card
from attnbench.kernels.shared.launch import Follows, Repeat, RowCount, is_observed, switches

MOST_KEPT = 1024
"Calls of a function that are kept, some 5 KB each; the oldest goes first."
MOST_ELEMENTS = 2**30
"Of a jagged argument whose rows are left out of a key: what follows from them then has 32 bits, and no limit is near."

_Call = TypeVar("_Call")
Results = tuple[Tensor | None, ...]


class Kept(Generic[_Call]):
    """What was worked out for a key: no more than MOST_KEPT."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, _Call] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._calls)

    def get(self, key: Hashable) -> _Call | None:
        """What is kept for a key; of arguments that cannot be a key, nothing."""
        try:
            return self._calls.get(key)
        except TypeError:
            return None

    def keep(self, key: Hashable, call: _Call) -> _Call:
        """Keep a call, or what another thread has kept meanwhile."""
        try:
            hash(key)
        except TypeError:
            return call
        with self._lock:
            if key not in self._calls and len(self._calls) >= MOST_KEPT:
                del self._calls[next(iter(self._calls))]
            return self._calls.setdefault(key, call)


def facts_of(*tensors: Tensor | None, jagged: Collection[int] = ()) -> Hashable:
    """What a call on these tensors depends on, but values and addresses; of an address how it is aligned.

    Of something else than tensors, what is never met again: it has to be checked each time.

    Args:
        tensors: of the call.
        jagged: numbers of those whose rows are counted in each call.  In place of how many stands which of them have
            equally many; none, one, and those of very large tensors are said all the same.

    Raises:
        ValueError: a tensor on a card has no memory there, as a fake one.
    """
    facts: list[Any] = []
    counts: list[int] = []
    try:
        for number, x in enumerate(tensors):
            if x is None:
                facts.append(None)
                continue
            address = x.data_ptr()
            if not address and x.device.type == "cuda" and x.numel():
                raise ValueError(f"a tensor of shape {tuple(x.shape)} has no memory on {x.device}; one with values")
            if number in jagged and (rows := x.shape[0]) > 1 and x.numel() < MOST_ELEMENTS:
                if rows not in counts:
                    counts.append(rows)
                facts.append((counts.index(rows), x.shape[1:], x.stride(), x.dtype, x.device, address & 15))
            else:
                facts.append((x.shape, x.stride(), x.dtype, x.device, address & 15))
    except (AttributeError, IndexError, TypeError):
        return object()
    return (*facts, *switches(), card.stand_in)


def exact(*values: Any) -> tuple[Any, ...]:
    """Arguments as a key that tells apart what compares as equal: 1, 1.0 and True."""
    return values + tuple(map(type, values))


def rows_in(x: Tensor) -> RowCount:
    """How many rows a jagged argument has, or what was made by `empty` with as many."""
    return RowCount(x)


class _Notes(threading.local):
    """What is being noted in this thread."""

    recorder: _Recorder | None = None


_notes = _Notes()


class _Recorder:
    """Notes what a function allocates, clears and launches, on tensors by number: its arguments', then its own."""

    def __init__(self, tensors: Sequence[Tensor | None]) -> None:
        self.given = len(tensors)
        self.tensors: list[Tensor | None] = []
        self.rows = dict[int, Follows]()
        "of own tensors, by number: the argument's that they follow"
        for x in tensors:
            # One tensor given twice is two arguments.
            twice = any(x is other for other in self.tensors)
            self.tensors.append(x.view_as(x) if x is not None and twice else x)
        self.steps: list[Repeat | int] = []
        self.fault: str | None = None

    def number(self, x: Tensor) -> int:
        """Number of a tensor, or of the one whose beginning it is another view of.

        Raises:
            LookupError: it is none of them, or may be of several.
        """
        for number, other in enumerate(self.tensors):
            if x is other:
                return number
        found = [
            number
            for number, other in enumerate(self.tensors)
            if other is not None and other.numel() and other.data_ptr() == x.data_ptr()
        ]
        if len(found) != 1:
            raise LookupError("a tensor is none of the arguments, and was not made by `empty`")
        return found[0]

    def follows(self, count: RowCount) -> Follows | None:
        """A count by the argument that it follows; None: of an own tensor that follows none.

        Raises:
            LookupError: it is of no known tensor.
        """
        number = self.number(count.of)
        if number < self.given:
            return Follows(number, count.factor, count.size)
        found = self.rows.get(number)
        if found is None:
            return None
        if found.size != 1:
            raise LookupError("rows of a tensor that has a row for several of an argument")
        return Follows(found.number, found.factor * count.factor, count.size)

    def made(self, shape: Sequence[SupportsIndex], x: Tensor) -> None:
        """Note what was allocated, by the shape that was asked for."""
        self.tensors.append(x)
        for axis, extent in enumerate(shape):
            if isinstance(extent, RowCount):
                try:
                    found = self.follows(extent)
                    if axis and found is not None:
                        raise LookupError("rows that are no first dim")
                except LookupError as fault:
                    self.fault = str(fault)
                else:
                    if found is not None:
                        self.rows[len(self.tensors) - 1] = found

    def layout(self, number: int) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
        """Shape, strides and precision of a tensor."""
        x = self.tensors[number]
        assert x is not None
        return tuple(x.shape), x.stride(), x.dtype

    def size(self, number: int) -> tuple[int, Follows | None]:
        """Bytes of an own tensor, or of each of its rows, and what these follow."""
        shape, _, dtype = self.layout(number)
        follows = self.rows.get(number)
        return math.prod(shape if follows is None else shape[1:]) * dtype.itemsize, follows

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


def empty(shape: Sequence[SupportsIndex], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Allocate a contiguous tensor on the card of another, by default of its precision."""
    made = like.new_empty([int(extent) for extent in shape], dtype=dtype)
    recorder = _notes.recorder
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
    recorder = _notes.recorder
    if recorder is not None:
        recorder.note(lambda: recorder.number(x))
    x.zero_()


def launch(kernel: Any, grid: tuple[SupportsIndex, ...], *values: Any, **named: Any) -> None:
    """Launch a kernel of Triton's on the current device: ``kernel[grid](*values, **named)``."""
    plain = [int(value) if isinstance(value, RowCount) else value for value in values]
    by_name = {name: int(value) if isinstance(value, RowCount) else value for name, value in named.items()}
    compiled = kernel[tuple(map(int, grid))](*plain, **by_name)
    recorder = _notes.recorder
    if recorder is not None:
        recorder.note(lambda: _repeat(recorder, kernel, compiled, grid, values, named))


def _repeat(
    recorder: _Recorder,
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
        if isinstance(value, RowCount) and not param.do_not_specialize:
            raise LookupError(f"{param.name} counts rows, and a kernel is compiled for what it is")
    return Repeat(compiled, grid, ordered, recorder.number, recorder.follows)


class Plan:
    """Allocations, clearings and launches of one call, on tensors by number: given, own, workspaces.

    Nobody keeps a workspace, so all of them are parts of two allocations, one of which is cleared before the launches.
    """

    __slots__ = ("counted", "device", "known", "own", "results", "steps", "workspaces")

    def __init__(self, recorder: _Recorder, results: Results) -> None:
        returned = [-1 if x is None else recorder.number(x) for x in results]
        own, cleared, uncleared = list[int](), list[int](), list[int]()
        for number in range(recorder.given, len(recorder.tensors)):
            clearings = [isinstance(step, int) for step in recorder.steps if _mentions(step, number)]
            once = clearings[:1] == [True] and not any(clearings[1:])
            kind = cleared if once else uncleared
            (own if number in returned or (any(clearings) and not once) else kind).append(number)
        order = dict(zip([*own, *cleared, *uncleared], range(recorder.given, len(recorder.tensors)), strict=True))
        order |= {number: number for number in range(-1, recorder.given)}
        self.own = tuple((*recorder.layout(number), recorder.rows.get(number)) for number in own)
        self.workspaces = tuple([recorder.size(number) for number in numbers] for numbers in (cleared, uncleared))
        self.steps = tuple(_renumbered(step, order) for step in recorder.steps if step not in cleared)
        self.counted = {found.number for found in recorder.rows.values()}.union(
            *(step.counted for step in self.steps if isinstance(step, Repeat))
        )
        self.known = self._extents({number: recorder.layout(number)[0][0] for number in self.counted})
        self.results = tuple(order[number] for number in returned)
        first = recorder.tensors[0]
        assert first is not None
        self.device = first.get_device()

    def __call__(self, tensors: tuple[Tensor | None, ...]) -> Results:
        """Run it on other tensors, on the current stream of their card."""
        like: Any = tensors[0]
        make, known = like.new_empty_strided, [*tensors]
        rows = {}
        for number in self.counted:
            rows[number] = tensors[number].shape[0]  # type: ignore[union-attr]
        extents = self.known
        if extents.rows != rows:
            extents = self.known = self._extents(rows)
        for shape, strides, dtype in extents.own:
            known.append(make(shape, strides, dtype=dtype))
        if current_device() == self.device:
            self._run(known, like, extents)
        else:
            with torch.cuda.device(self.device):
                self._run(known, like, extents)
        return tuple([None if number < 0 else known[number] for number in self.results])

    def _extents(self, rows: Mapping[int, int]) -> _Extents:
        """What is allocated where the arguments have so many rows."""
        own = [
            (shape if follows is None else (follows.at(rows), *shape[1:]), strides, dtype)
            for shape, strides, dtype, follows in self.own
        ]
        parts = (
            _Parts([size if follows is None else size * follows.at(rows) for size, follows in sizes])
            for sizes in self.workspaces
        )
        return _Extents(rows, own, *parts)

    def _run(self, tensors: list[Tensor | None], like: Tensor, extents: _Extents) -> None:
        addresses = [0 if x is None else x.data_ptr() for x in tensors]
        workspaces = []  # alive until everything is launched
        for parts in (extents.cleared, extents.uncleared):
            if parts.words:
                workspace = like.new_empty(parts.words, dtype=torch.int32)
                if parts is extents.cleared:
                    workspace.zero_()
                workspaces.append(workspace)
            begin = workspaces[-1].data_ptr() if parts.words else 0
            for offset in parts.offsets:
                addresses.append(begin + offset)
        stream = current_stream(self.device)
        for step in self.steps:
            if type(step) is int:
                tensors[step].zero_()  # type: ignore[union-attr]
            else:
                step(stream, addresses, extents.rows)  # type: ignore[operator]


PART_BYTES = 512
"What a part of a workspace begins at a multiple of, as PyTorch's allocations do."


class _Extents(NamedTuple):
    """What a plan allocates for arguments with so many rows, each by its number."""

    rows: Mapping[int, int]
    own: Sequence[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]
    cleared: _Parts
    uncleared: _Parts


class _Parts:
    """Workspaces as parts of one allocation: its size in words of 4 bytes, and where each begins in bytes."""

    __slots__ = ("offsets", "words")

    def __init__(self, sizes: Sequence[int]) -> None:
        ends = list(accumulate((-(-size // PART_BYTES) * PART_BYTES for size in sizes), initial=0))
        self.offsets, self.words = tuple(ends[:-1]), ends[-1] // 4


def _mentions(step: Repeat | int, number: int) -> bool:
    return step == number if isinstance(step, int) else number in step.numbers


def _renumbered(step: Repeat | int, order: Mapping[int, int]) -> Repeat | int:
    return order[step] if isinstance(step, int) else step.renumbered(order)


def is_on_card(x: Tensor | None) -> bool:
    """Whether a tensor lies on a card of CUDA's: elsewhere nothing is launched that could be repeated."""
    return x is not None and x.is_cuda


def current_device() -> int:
    """Of CUDA, by number; a tensor is on some card, so that CUDA has been set up."""
    return torch._C._cuda_getDevice()


def current_stream(device: int) -> int:
    """Of a CUDA device, as the driver knows it."""
    return torch._C._cuda_getCurrentRawStream(device)


class Launches:
    """A function of tensors that launches kernels, repeated from its second call on.

    The function returns tensors that it made by `empty`, and keeps none.  `fault` says why it is not repeated.
    """

    __slots__ = ("fault", "function", "plan")

    def __init__(self, function: Callable[..., Results]) -> None:
        self.function = function
        self.plan: Plan | None = None
        self.fault: str | None = None

    def __call__(self, *tensors: Tensor | None) -> Results:
        """Run the function, or repeat what it did; the first tensor is there, and says on which card."""
        if is_observed():
            return self._whole(*tensors)
        if self.plan is not None:
            return self.plan(tensors)
        if self.fault is not None or _notes.recorder is not None or not is_on_card(tensors[0]):
            return self._whole(*tensors)
        recorder = _notes.recorder = _Recorder(tensors)
        try:
            results = self._whole(*recorder.tensors)
        finally:
            _notes.recorder = None
        self.fault = recorder.fault
        if self.fault is None:
            try:
                self.plan = Plan(recorder, results)
            except LookupError as fault:
                self.fault = str(fault)
        return results

    def _whole(self, *tensors: Tensor | None) -> Results:
        first = tensors[0]
        assert first is not None
        with torch.cuda.device_of(first):  # Triton launches on the current device
            return self.function(*tensors)
