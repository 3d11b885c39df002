"""Cached host work of a call: the next call with the same key repeats its launches on other tensors.

    launches = Launches(function)       function allocates by `empty`, clears by `clear`, launches by `launch`
    launches(q, k, v)                   runs it, and records what it allocates, clears and launches
    launches(q2, k2, v2)                allocates, clears and launches the same on other tensors

All that a function does on the host must follow from the key under which its `Launches` are cached: shapes, strides,
dtypes, cards and the alignment of addresses (`facts_of`), every other argument, and `switches`.  So checks,
configurations, grids, specialisations and descriptors are those of the first call.  What depends on more is never
cached: the stream, the current device, memory (only its shapes), values inside tensors.

Packed sequences have a different total number of rows in almost every batch, and a cache of keys grows with every token.
For arguments that are `jagged` the key leaves the number of rows out, and what depends on it (allocations, grids,
descriptors, counts that kernels take) is recomputed in each call: the function must take that number by `rows_in`, never
from a shape.  If a comparison of such numbers, or what a kernel is compiled for, would have another result, the function
runs again and a second plan is cached.

A call that cannot be repeated runs its function each time; so do the interpreter and the machine of the tests.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import accumulate
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from attnbench.kernels.shared import card
from attnbench.kernels.shared.counts import (
    Rows,
    Source,
    describes,
    descriptor_of,
    following,
    noting_guards,
    rows_in,
    spans,
    stride_in,
    strides_in,
)
from attnbench.kernels.shared.launch import Bound, Repeat, is_observed, switches
from attnbench.kernels.shared.noting import Recorder, clear, contiguous_strides, empty, launch, notes, zeros

__all__ = [
    "Kept",
    "Launches",
    "Results",
    "clear",
    "describes",
    "descriptor_of",
    "empty",
    "exact",
    "facts_of",
    "launch",
    "rows_in",
    "stride_in",
    "strides_in",
    "zeros",
]

MOST_KEPT = 1024
"Cached calls of a function, some 5 KB each; those that were not used for longest are dropped, half of them at a time."
MOST_PLANS = 8
"Cached plans of a call, by the results of comparisons of its row counts; the oldest is dropped first."
MOST_ELEMENTS = 2**30
"Most elements of a jagged argument whose rows are left out of the key: sizes derived from it then fit 32 bits."

_Call = TypeVar("_Call")
Results = tuple[Tensor | None, ...]


class Kept(Generic[_Call]):
    """A cache with at most MOST_KEPT entries, in two halves.

    When the half of the entries used last is full, it becomes the other half, whose entries are dropped; one of them that
    is used before comes back.  So an entry outlives any number of new ones if it is used once in MOST_KEPT / 2 of them,
    and finding one in use is a single look-up, without a list of uses to be kept in order.
    """

    def __init__(self) -> None:
        self._calls: dict[Hashable, _Call] = {}
        self._before: dict[Hashable, _Call] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            return len(self._calls.keys() | self._before.keys())

    def get(self, key: Hashable) -> _Call | None:
        """The entry for a key; None for arguments that cannot be a key."""
        try:
            call = self._calls.get(key)
            if call is None and key in self._before:
                return self._add(key, None)
        except TypeError:
            return None
        return call

    def keep(self, key: Hashable, call: _Call) -> _Call:
        """Add an entry, unless another thread has added one meanwhile, and return it."""
        try:
            hash(key)
        except TypeError:
            return call
        added = self._add(key, call)
        assert added is not None
        return added

    def _add(self, key: Hashable, call: _Call | None) -> _Call | None:
        """Make an entry the one used last, and return it; None where there is neither an entry nor a call."""
        with self._lock:
            found = self._calls.get(key)
            if found is None:
                found = self._before.get(key, call)
                if found is not None:
                    if len(self._calls) >= max(MOST_KEPT // 2, 1):
                        self._before, self._calls = self._calls, {}
                    self._calls[key] = found
            return found


Jagged = Iterable[int] | dict[int, int]
"Numbers of arguments whose rows are counted in each call, and their axis if it is not the first."


def facts_of(*tensors: Tensor | None, jagged: Jagged = ()) -> Hashable:
    """All that a call on these tensors depends on, except values and addresses; of an address its alignment.

    For arguments that are not tensors, an object that equals nothing: such a call is checked each time.

    Args:
        tensors: of the call.
        jagged: the tensors whose rows are counted in each call.  Strides that depend on the rows (`strides_in`) are left
            out too.  The key only has which tensors have equally many rows; 0 or 1 rows, and those of very large tensors,
            stay in the key.

    Raises:
        ValueError: kernels cannot read a tensor's memory: it is fake, sparse, wrapped, or negated lazily.
    """
    facts: list[Any] = []
    counts: list[int] = []
    axes = jagged if type(jagged) is dict else dict.fromkeys(jagged, 0)
    try:
        for number, x in enumerate(tensors):
            if x is None:
                facts.append(None)
                continue
            address = x.data_ptr()
            if x.is_neg():
                raise ValueError("a tensor is lazily negated (Tensor.is_neg); its resolve_neg()")
            if not address and x.device.type == "cuda" and x.numel():
                raise ValueError(
                    f"a tensor of shape {tuple(x.shape)} has no memory on {x.device}; a tensor with values"
                )
            shape, strides, axis = x.shape, x.stride(), axes.get(number)
            if axis is not None and (rows := shape[axis]) > 1 and x.numel() < MOST_ELEMENTS:
                if axis:
                    if x.is_contiguous():
                        strides = strides[axis:]
                    else:
                        found = spans(shape, strides, axis)
                        strides = tuple([-(one // rows) if one in found else one for one in strides])
                if rows not in counts:
                    counts.append(rows)
                extents = [*shape]
                extents[axis] = ~counts.index(rows)  # under 0, as no extent is
                facts.append((tuple(extents), strides, x.dtype, x.device, address & 15))
            else:
                facts.append((shape, strides, x.dtype, x.device, address & 15))
    except (AttributeError, IndexError, TypeError):
        return object()
    except RuntimeError:
        if any(isinstance(x, Tensor) and _is_transformed(x) for x in tensors):
            raise ValueError(
                "a tensor belongs to a transform such as torch.vmap; plain tensors, "
                "and gradients one at a time, without is_grads_batched or vectorize=True"
            ) from None
        layout = ", ".join(sorted({str(x.layout) for x in tensors if isinstance(x, Tensor)}))
        raise ValueError(f"a tensor has no memory that a kernel can read ({layout}); dense tensors") from None
    return (*facts, *switches(), card.stand_in)


def _is_transformed(x: Tensor) -> bool:
    functorch = torch._C._functorch  # "legacy" is the batch of `torch.autograd.grad(is_grads_batched=True)`
    return functorch.is_functorch_wrapped_tensor(x) or functorch.is_legacy_batchedtensor(x)


def exact(*values: Any) -> tuple[Any, ...]:
    """Arguments as a key that distinguishes values that compare as equal: 1, 1.0 and True."""
    return values + tuple(map(type, values))


class Plan:
    """Allocations, clearings and launches of a call, on numbered tensors: arguments, own ones, workspaces, parts of them.

    Workspaces do not outlive the call, so they are parts of two allocations, one of which is cleared before the launches.
    """

    __slots__ = ("counted", "device", "guard", "inside", "known", "own", "results", "steps", "workspaces")

    def __init__(self, recorder: Recorder, results: Results, guards: Sequence[tuple[Source, bool]]) -> None:
        returned = [-1 if x is None else recorder.number(x) for x in results]
        own: list[int] = []
        cleared: list[int] = []
        uncleared: list[int] = []
        mentions: dict[int, list[bool]] = {number: [] for number in range(recorder.given, len(recorder.tensors))}
        for step in recorder.steps:
            is_clearing = isinstance(step, int)
            numbers = {step} if isinstance(step, int) else step.launched_on
            for number in recorder.around(numbers) if recorder.inside else numbers:
                if number in mentions:
                    mentions[number].append(is_clearing)
        for number, clearings in mentions.items():
            once = clearings[:1] == [True] and True not in clearings[1:]
            kind = cleared if once else uncleared
            (own if number in returned or (True in clearings and not once) else kind).append(number)
        made = [*own, *cleared, *uncleared, *range(-2, -2 - len(recorder.inside), -1)]
        order = dict(zip([*range(-1, recorder.given), *made], range(-1, recorder.given + len(made)), strict=True))
        layouts = dict(enumerate(recorder.layouts, recorder.given))
        self.own = [layouts[number] for number in own]
        self.inside = tuple([(order[number], offset) for number, offset in recorder.inside])
        self.workspaces = [layouts[number] for number in cleared], [layouts[number] for number in uncleared]
        steps: list[Repeat | int] = []
        for step in recorder.steps:
            if isinstance(step, int):
                if step not in cleared:
                    steps.append(order[step])
            else:
                step.renumber(order)
                steps.append(step)
        self.steps = tuple(steps)
        first = recorder.tensors[0]
        assert first is not None
        self.device = first.get_device()
        self.results = tuple([order[number] for number in returned])
        conditions = recorder.conditions.copy()
        for source, outcome in guards:
            if "r[" in (text := recorder.written(source)):
                conditions.add(f"({text})=={outcome}")
        self.guard = following(" and ".join(sorted(conditions)) or "True")
        if not self.guard.at(recorder.counted):
            raise LookupError("a compared count does not depend on an argument")
        self.counted = tuple(recorder.counted)
        self.known: _Extents | None = None  # a call that is made once does not pay for them

    def __call__(self, tensors: Sequence[Tensor | None]) -> Results | None:
        """Run it on other tensors, on the current stream of their card; None: the plan is not for their numbers of rows."""
        extents, rows = self.known, {}
        for at in self.counted:
            number, axis = at
            rows[at] = tensors[number].shape[axis]  # type: ignore[union-attr]  # not None
        if extents is None or extents.rows != rows:
            if not self.guard.at(rows):
                return None
            self.known = extents = self._extents(rows)
        like: Any = tensors[0]
        make, known = like.new_empty_strided, [*tensors]  # faster than `new_empty`
        for shape, strides, dtype in extents.own:
            known.append(make(shape, strides, dtype=dtype))
        if current_device() == self.device:
            self._run(known, like, extents)
        else:
            with torch.cuda.device(self.device):
                self._run(known, like, extents)
        return tuple([None if number < 0 else known[number] for number in self.results])

    def _extents(self, rows: Rows) -> _Extents:
        """Allocations and launches for arguments with these numbers of rows."""
        shapes = [layout.at(rows) for layout in self.own]
        own = [(shape, contiguous_strides(shape), layout.dtype) for shape, layout in zip(shapes, self.own, strict=True)]
        cleared, uncleared = (
            _Parts([math.prod(layout.at(rows)) * layout.dtype.itemsize for layout in layouts])
            for layouts in self.workspaces
        )
        bounds = [None if isinstance(step, int) else step.bound(rows) for step in self.steps]
        return _Extents(rows, own, cleared, uncleared, bounds)

    def _run(self, tensors: list[Tensor | None], like: Tensor, extents: _Extents) -> None:
        addresses = [0 if x is None else x.data_ptr() for x in tensors]
        workspaces = []  # keeps them alive until everything is launched
        for parts in (extents.cleared, extents.uncleared):
            if parts.words:
                workspace = like.new_empty(parts.words, dtype=torch.int32)
                if parts is extents.cleared:
                    workspace.zero_()
                workspaces.append(workspace)
            begin = workspaces[-1].data_ptr() if parts.words else 0
            for offset in parts.offsets:
                addresses.append(begin + offset)
        for number, offset in self.inside:
            addresses.append(addresses[number] + offset)
        stream = current_stream(self.device)
        for step, bound in zip(self.steps, extents.bounds, strict=True):
            if bound is None:
                tensors[step].zero_()  # type: ignore[union-attr, index]
            else:
                step(stream, addresses, bound)  # type: ignore[operator]  # no number: a `Repeat`


PART_BYTES = 512
"Alignment of the parts of a workspace: that of PyTorch's allocations."


class _Extents(NamedTuple):
    """Allocations and launches of a plan for these numbers of rows."""

    rows: Rows
    own: Sequence[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]
    cleared: _Parts
    uncleared: _Parts
    bounds: Sequence[Bound | None]


class _Parts:
    """Workspaces as parts of one allocation: its size in 4-byte words, and the byte offset of each."""

    __slots__ = ("offsets", "words")

    def __init__(self, sizes: Sequence[int]) -> None:
        ends = list(accumulate([-(-size // PART_BYTES) * PART_BYTES for size in sizes], initial=0))
        self.offsets, self.words = tuple(ends[:-1]), ends[-1] // 4


def is_on_card(x: Tensor | None) -> bool:
    """Whether a tensor is on a CUDA card: elsewhere no launch is repeated."""
    return x is not None and x.is_cuda


def current_device() -> int:
    """Index of the current CUDA device; CUDA is initialized, because a tensor is on a card."""
    return torch._C._cuda_getDevice()


def current_stream(device: int) -> int:
    """The current stream of a CUDA device, as the driver's handle."""
    return torch._C._cuda_getCurrentRawStream(device)


class Launches:
    """A function of tensors that launches kernels; from the second call on its launches are repeated.

    The function returns tensors that it made by `empty`, and keeps none.  `fault` says why it is not repeated.
    """

    __slots__ = ("axes", "fault", "function", "plans")

    def __init__(self, function: Callable[..., Results], jagged: Jagged | None = None) -> None:
        """Keep the launches of a function.

        Args:
            function: of tensors.
            jagged: as `facts_of` was told for the key, so that other rows are constants; None: any may be counted.
        """
        self.function = function
        self.axes = jagged if jagged is None or type(jagged) is dict else dict.fromkeys(jagged, 0)
        self.plans: tuple[Plan, ...] = ()
        self.fault: str | None = None

    def __call__(self, *tensors: Tensor | None) -> Results:
        """Run the function, or repeat what it did.  The first tensor must not be None; its card is used."""
        if is_observed():
            return self._whole(*tensors)
        for plan in self.plans:
            results = plan(tensors)
            if results is not None:
                return results
        if self.fault is not None or notes.recorder is not None or not is_on_card(tensors[0]):
            return self._whole(*tensors)
        recorder = notes.recorder = Recorder(tensors, self.axes)
        try:
            with noting_guards() as guards:
                results = self._whole(*recorder.tensors)
        finally:
            notes.recorder = None
        self.fault = recorder.fault
        if self.fault is None:
            try:
                self.plans = (*self.plans, Plan(recorder, results, guards))[-MOST_PLANS:]
            except LookupError as fault:
                self.fault = str(fault)
        return results

    def _whole(self, *tensors: Tensor | None) -> Results:
        first = tensors[0]
        assert first is not None
        with torch.cuda.device_of(first):  # Triton launches on the current device
            return self.function(*tensors)
