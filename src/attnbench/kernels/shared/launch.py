"""Launch a kernel through Triton, and launch it again without Triton's host work.

`kernel[grid](...)` binds the signature, specialises each argument, looks up the compiled kernel and makes a tensor map for
each descriptor: 100 to 400 µs on the host.  A `Repeat` stores the results except for the addresses, and calls the launcher
of the compiled kernel, which Triton itself calls at the end.  That launcher takes an address in place of a tensor, and a
tensor map made by `make_tensordesc_arg`; it is in different places in Triton 3.6 and 3.9 (`_launcher`).

If anything there is not as expected, there is no `Repeat`, and the kernel is launched through Triton each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import lru_cache, partial
from inspect import signature
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, SupportsIndex

from torch import Tensor
from triton import knobs

from attnbench.kernels.shared.counts import CountExpression, RowCount, Rows

SIMPLE = (int, float, bool, str, type(None))
"Types of most launch arguments: they contain neither tensors nor counts."
MOST_MAPS = 64
"Tensor maps cached for an argument, one for each address: allocators return few addresses again and again."


def is_observed() -> bool:
    """Whether launch or compile hooks are registered with Triton: then Triton has to launch."""
    runtime = knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave) or runtime.add_stages_inspection_hook)


def switches() -> tuple[Any, ...]:
    """Triton's settings that select another compiled kernel for the same call."""
    casts = getattr(knobs.compilation, "fpsan_homomorphic_casts", None)  # Triton 3.6 has none
    return knobs.runtime.debug, knobs.compilation.instrumentation_mode, casts


class _Address(NamedTuple):
    """Replaces a tensor in a descriptor."""

    value: int

    def data_ptr(self) -> int:
        """The address."""
        return self.value


class _TensorMap:
    """The tensor map of a descriptor, remade for other addresses, extents and strides."""

    __slots__ = ("extents", "fields", "kind", "known", "make", "numbers", "strides")

    def __init__(self, descriptor: Any, make: Callable[[Any], Sequence[Any]], recorder: Numbering) -> None:
        self.kind, self.fields = type(descriptor), descriptor.__dict__ | {"base": None, "counts": None}  # no tensor
        self.make = make
        self.extents: list[tuple[int, CountExpression]] = []
        self.strides: list[tuple[int, CountExpression]] = []
        for following, counts in zip((self.extents, self.strides), getattr(descriptor, "counts", ()), strict=False):
            for axis, count in counts.items():
                if (found := recorder.follows(count)) is not None:
                    following.append((axis, found))
        self.numbers = tuple(descriptor.shape), tuple(descriptor.strides)
        "extents and strides of the first call"
        self.known = dict[tuple[int, Sequence[int], Sequence[int]], Any]()

    def numbers_for(self, rows: Rows) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Extents and strides, for arguments with these extents."""
        shape, strides = map(list, self.numbers)
        for axis, found in self.extents:
            shape[axis] = found.at(rows)
        for axis, found in self.strides:
            strides[axis] = found.at(rows)
        return tuple(shape), tuple(strides)

    def at(self, address: int, shape: Sequence[int], strides: Sequence[int]) -> Any:
        """The map of a tensor at this address; made here, and cached in `known` by all three."""
        described = object.__new__(self.kind)  # a shallow copy, without the checks of its class
        described.__dict__.update(self.fields, base=_Address(address), shape=[*shape], strides=[*strides])
        found = self.make(described)[0]
        if len(self.known) >= MOST_MAPS:
            self.known.clear()
        self.known[address, shape, strides] = found
        return found


_Map = tuple[int, int, _TensorMap]
"A launch argument that is a descriptor: its index among the arguments, and the number of its tensor."
_BoundMap = tuple[int, int, _TensorMap, tuple[int, ...], tuple[int, ...]]
"The same with its extents and strides, for arguments with known extents."


class Numbering(Protocol):
    """What a recorded launch asks of its recorder."""

    numbers: dict[int, int]
    "numbers of tensors, by identity: the usual ones, without a call of `number`"

    def number(self, x: Tensor) -> int:
        """Number of a tensor, or a LookupError."""

    def follows(self, count: RowCount) -> CountExpression | None:
        """The expression of a count; None: the count is constant."""


class _TupleArgument:
    """A tuple argument that contains tensors or counts, remade for other addresses and extents."""

    __slots__ = ("at", "counts", "moves", "pointers", "tuples", "values")

    def __init__(self, values: Any, recorder: Numbering, launched_on: set[int]) -> None:
        """The parts of a tuple; numbers of the tensors in it are added to `launched_on`.

        Raises:
            LookupError: it is no tuple, or contains something that is no argument.
        """
        if not isinstance(values, tuple):
            raise LookupError(f"an argument is of type {type(values).__name__}")
        self.values: list[Any] = []
        self.pointers: list[tuple[int, int]] = []
        self.counts: list[tuple[int, CountExpression]] = []
        self.tuples: list[tuple[int, _TupleArgument]] = []
        self.moves = False
        "whether an integer in it depends on the rows"
        numbers = recorder.numbers
        for at, value in enumerate(values):
            kept = None  # keeps no tensor alive
            if isinstance(value, Tensor):
                known = numbers.get(id(value))
                number = recorder.number(value) if known is None else known
                self.pointers.append((at, number))
                launched_on.add(number)
            elif isinstance(value, RowCount):
                kept = value.value
                if (found := recorder.follows(value)) is not None:
                    self.counts.append((at, found))
                    self.moves = True
            elif type(value) in SIMPLE or _is_constant(value):
                kept = value
            else:
                inner = _TupleArgument(value, recorder, launched_on)
                self.tuples.append((at, inner))
                self.moves |= inner.moves
            self.values.append(kept)

    def renumber(self, order: Mapping[int, int]) -> None:
        """Renumber the tensors, after which it can be remade."""
        for place, (at, number) in enumerate(self.pointers):
            self.pointers[place] = at, order[number]
        for _, inner in self.tuples:
            inner.renumber(order)
        self.at = self._at()

    def bound(self, rows: Rows) -> _TupleArgument:
        """The same for arguments with these extents, one of whose counts moves."""
        found = copy(self)
        found.values, found.counts = [*self.values], []
        for at, count in self.counts:
            found.values[at] = count.at(rows)
        found.tuples = _bound(self.tuples, rows, found.values)
        found.at = found._at()
        return found

    def _at(self) -> Callable[[Sequence[int]], tuple[Any, ...]]:
        """A function from addresses to the tuple; without a loop if there are only tensors."""
        if 1 < len(self.pointers) == len(self.values):
            return itemgetter(*map(itemgetter(1), self.pointers))
        return self._one_by_one

    def _one_by_one(self, addresses: Sequence[int]) -> tuple[Any, ...]:
        values = self.values.copy()
        for at, number in self.pointers:
            values[at] = addresses[number]
        for at, inner in self.tuples:
            values[at] = inner.at(addresses)
        return tuple(values)


def _bound(
    tuples: Sequence[tuple[int, _TupleArgument]], rows: Rows, values: list[Any]
) -> list[tuple[int, _TupleArgument]]:
    """Tuples for arguments of these extents; one without tensors is a constant then, and becomes one of the values."""
    found = []
    for at, filled in tuples:
        made = filled.bound(rows) if filled.moves else filled
        if made.pointers or made.tuples:
            found.append((at, made))
        else:
            values[at] = made.at(())
    return found


class Bound(NamedTuple):
    """A launch for arguments with known extents: everything except addresses."""

    before: Sequence[int]
    "the grid"
    arguments: Sequence[Any]
    tuples: Sequence[tuple[int, _TupleArgument]]
    "tuples that contain tensors or counts"
    maps: Sequence[_BoundMap]


class Repeat:
    """A launch with everything bound except addresses and row counts; tensors have the recorder's numbers at first."""

    __slots__ = (
        "after",
        "arguments",
        "before",
        "compiled",
        "counts",
        "follows",
        "grid",
        "launch",
        "launched_on",
        "maps",
        "nested",
        "pointers",
        "tuples",
    )

    def __init__(
        self, compiled: Any, grid: Sequence[SupportsIndex], values: Sequence[Any], recorder: Numbering
    ) -> None:
        """Record a launch.

        Args:
            compiled: Triton's compiled kernel, which has run.
            grid: programs along each axis.
            values: all arguments in the kernel's order.
            recorder: numbers the tensors, and says which counts follow the rows.

        Raises:
            LookupError: the launcher, an argument or a tensor does not support repeating.
        """
        launcher = compiled.run
        self.launch, between, self.nested = _launcher(launcher, compiled.packed_metadata)
        scratch = launcher.global_scratch_size or launcher.profile_scratch_size
        if scratch or getattr(launcher, "gsan_enabled", False):
            raise LookupError("the kernel needs scratch memory from Triton")
        self.compiled = compiled  # keeps its code loaded
        self.before = list(map(int, (*grid, 1, 1)[:3]))
        self.grid: list[tuple[int, CountExpression]] = []
        "extents of the grid that depend on a count"
        for axis, extent in enumerate(grid):
            if isinstance(extent, RowCount) and (found := recorder.follows(extent)) is not None:
                self.grid.append((axis, found))
        self.counts: list[tuple[int, CountExpression]] = []
        "arguments that depend on a count"
        flags = launcher.launch_cooperative_grid, launcher.launch_pdl
        self.after: tuple[Any, ...] = (compiled.function, *flags, *between)
        self.arguments: list[Any] = []
        self.pointers: list[tuple[int, int]] = []
        self.tuples: list[tuple[int, _TupleArgument]] = []
        self.maps: list[_Map] = []
        self.launched_on: set[int] = set()
        "the recorder's numbers of the tensors"
        makers, numbers, moves = iter(_makers(compiled)), recorder.numbers, False
        for value in values:
            at = len(self.arguments)
            if type(value) in SIMPLE:
                self.arguments.append(value)
            elif (pointer := isinstance(value, Tensor)) or hasattr(value, "block_shape"):
                x = value if pointer else value.base
                known = numbers.get(id(x))
                number = recorder.number(x) if known is None else known
                self.launched_on.add(number)
                self.arguments.append(None)
                if pointer:
                    self.pointers.append((at, number))
                else:
                    tensor_map = _TensorMap(value, next(makers), recorder)
                    self.maps.append((at, number, tensor_map))
                    self.arguments += (*value.shape, *value.strides)
                    moves = moves or bool(tensor_map.extents or tensor_map.strides)
            elif isinstance(value, RowCount):
                if (found := recorder.follows(value)) is not None:
                    self.counts.append((at, found))
                self.arguments.append(value.value)
            elif _is_constant(value):
                self.arguments.append(value)
            else:
                filled = _TupleArgument(value, recorder, self.launched_on)
                moves = moves or filled.moves
                self.tuples.append((at, filled))
                self.arguments.append(None)
        self.follows = bool(self.grid or self.counts or moves)
        "whether anything except addresses differs from call to call"

    def renumber(self, order: Mapping[int, int]) -> None:
        """Renumber the tensors, once, after which it can be bound."""
        for place, (at, number) in enumerate(self.pointers):
            self.pointers[place] = at, order[number]
        for place, (at, number, tensor_map) in enumerate(self.maps):
            self.maps[place] = at, order[number], tensor_map
        for _, filled in self.tuples:
            filled.renumber(order)

    def bound(self, rows: Rows) -> Bound:
        """The launch for arguments with these extents."""
        before, arguments, tuples, maps = self.before, self.arguments, self.tuples, list[_BoundMap]()
        if self.follows:
            before, arguments = [*before], [*arguments]
            for axis, found in self.grid:
                before[axis] = found.at(rows)
            for at, found in self.counts:
                arguments[at] = found.at(rows)
            tuples = _bound(tuples, rows, arguments)
        for at, number, tensor_map in self.maps:
            shape, strides = tensor_map.numbers
            if tensor_map.extents or tensor_map.strides:
                shape, strides = tensor_map.numbers_for(rows)
                arguments[at + 1 : at + 1 + len(shape) + len(strides)] = *shape, *strides
            maps.append((at, number, tensor_map, shape, strides))
        return Bound(before, arguments, tuples, maps)

    def __call__(self, stream: int, addresses: Sequence[int], bound: Bound) -> None:
        """Launch on a stream of the current device, with tensors at these addresses; `bound`: result of `bound`."""
        before, given, tuples, maps = bound
        arguments = [*given]
        for at, number in self.pointers:
            arguments[at] = addresses[number]
        for at, filled in tuples:
            arguments[at] = filled.at(addresses)
        for at, number, tensor_map, shape, strides in maps:
            key = addresses[number], shape, strides
            arguments[at] = tensor_map.known.get(key) or tensor_map.at(*key)
        if self.nested:
            self.launch(*before, stream, *self.after, arguments)
        else:
            self.launch(*before, stream, *self.after, *arguments)


def _is_constant(value: Any) -> bool:
    if not isinstance(value, tuple):
        return isinstance(value, SIMPLE)
    others = set(map(type, value)).difference(SIMPLE)
    return not others or (Tensor not in others and all(map(_is_constant, value)))


def _launcher(launcher: Any, metadata: Any) -> tuple[Callable[..., None], tuple[Any, ...], bool]:
    """The C launch function, its arguments between flags and kernel arguments, and whether the latter are one tuple.

    Raises:
        LookupError: Triton has an unknown launcher.
    """
    launch: Any = getattr(launcher, "launch", None)
    if hasattr(launch, "__closure__"):  # for a kernel with descriptors, whose maps it makes
        launch = dict(zip(launch.__code__.co_freevars, launch.__closure__ or (), strict=True)).get("launcher")
        launch = launch and launch.cell_contents
    if launch is None:
        raise LookupError("the launcher has no launch function")
    unobserved = (None, None, None)  # launch metadata, and the hooks before and after
    if hasattr(launcher, "arg_annotations"):
        scratch = (None, None)
        return launch, (metadata, *unobserved, *scratch, launcher.arg_annotations, launcher.kernel_signature), True
    return launch, (None, None, metadata, *unobserved), False


@lru_cache(maxsize=1)  # takes longer than all that `_makers` does
def _parameters(function: Callable[..., Any]) -> int:
    return len(signature(function).parameters)


def _makers(compiled: Any) -> list[Callable[[Any], Sequence[Any]]]:
    """For each descriptor of a kernel, the function that makes its tensor map.

    Raises:
        LookupError: Triton makes them in another way.
    """
    described = getattr(compiled.metadata, "tensordesc_meta", None) or []
    if not described:
        return []
    from triton.backends.nvidia import driver

    make = driver.make_tensordesc_arg
    rest = (None,) * (_parameters(make) - 2)
    if None in described:
        raise LookupError("a descriptor is not passed as a tensor map")
    return [partial(_made, make, metadata, rest) for metadata in described]


def _made(make: Callable[..., Sequence[Any]], metadata: Any, rest: tuple[None, ...], descriptor: Any) -> Sequence[Any]:
    return make(descriptor, metadata, *rest)
