"""Launch a kernel through Triton, and launch it again without Triton's work of a call.

`kernel[grid](...)` binds the signature, specialises each argument, looks the compiled kernel up by that and makes a
tensor map of each descriptor: 100 to 400 µs of the host.  A `Repeat` has all of it but the addresses, and calls the
launcher of the compiled kernel, which Triton itself calls at the end.  That launcher takes an address as it takes a
tensor, and a tensor map as made by `make_tensordesc_arg`; Triton 3.6 and 3.9 have it in different places (`_launcher`).

What is not as expected there gives no `Repeat`, and the kernel is launched through Triton each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from inspect import getclosurevars, signature
from operator import itemgetter
from typing import Any, NamedTuple, SupportsIndex

from torch import Tensor
from triton import knobs

MOST_MAPS = 64
"Tensor maps that are kept of an argument, one an address: allocators give few addresses again and again."


def is_observed() -> bool:
    """Whether somebody asked Triton to be told of launches, or to look into compilations: then it launches."""
    runtime = knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave) or runtime.add_stages_inspection_hook)


def switches() -> tuple[Any, ...]:
    """Triton's switches that choose another compiled kernel for the same call."""
    casts = getattr(knobs.compilation, "fpsan_homomorphic_casts", None)  # Triton 3.6 has none
    return knobs.runtime.debug, knobs.compilation.instrumentation_mode, casts


class RowCount:
    """A whole number that follows from how many rows a tensor has: rows · factor / size, rounded up.

    It can be multiplied and parted, nothing else: what else is made of it would be that of one tensor for ever.
    """

    __slots__ = ("factor", "of", "size")

    def __init__(self, of: Tensor, factor: int = 1, size: int = 1) -> None:
        """Of a tensor [rows, ...]."""
        self.of, self.factor, self.size = of, factor, size

    def __mul__(self, times: int) -> RowCount:
        """Of parts, that many times as large."""
        if self.size != 1:
            return NotImplemented
        return RowCount(self.of, self.factor * times)

    def parts(self, size: int) -> RowCount:
        """How many parts of a size it has."""
        return RowCount(self.of, self.factor, self.size * size)

    def __index__(self) -> int:
        return -(-self.of.shape[0] * self.factor // self.size)


class Follows(NamedTuple):
    """A `RowCount` without its tensor."""

    number: int
    "of the tensor"
    factor: int
    size: int

    def at(self, rows: Mapping[int, int]) -> int:
        """The number, where the tensors have so many rows, each by its number."""
        return -(-rows[self.number] * self.factor // self.size)


NO_ROWS: Mapping[int, int] = {}


class _Address(NamedTuple):
    """Stands for a tensor in a descriptor."""

    value: int

    def data_ptr(self) -> int:
        """The address."""
        return self.value


class _TensorMap:
    """The tensor map of a descriptor, made anew for other addresses, and for other rows of all that it describes."""

    __slots__ = ("descriptor", "known", "make")

    def __init__(self, descriptor: Any, make: Callable[[Any], Sequence[Any]]) -> None:
        self.descriptor = copy(descriptor)
        self.descriptor.base = None  # nothing here keeps a tensor alive
        self.make, self.known = make, dict[tuple[int, int | None], Any]()

    def at(self, address: int, rows: int | None) -> Any:
        """The map of a tensor at this address, which is made and `known` then; rows None: as many as it had."""
        described = copy(self.descriptor)
        described.base = _Address(address)
        if rows is not None:
            described.shape = [rows, *described.shape[1:]]
        found = self.make(described)[0]
        if len(self.known) >= MOST_MAPS:
            self.known.clear()
        self.known[address, rows] = found
        return found


class _Filled:
    """A tuple of arguments with tensors in it, made anew for other addresses."""

    __slots__ = ("at", "pointers", "tuples", "values")

    def __init__(self, values: Sequence[Any], number: Callable[[Tensor], int]) -> None:
        self.values = list(values)
        self.pointers = [(at, number(value)) for at, value in enumerate(values) if isinstance(value, Tensor)]
        self.tuples: list[tuple[int, _Filled]] = []
        for at, value in enumerate(values):
            if isinstance(value, Tensor):
                self.values[at] = None  # nothing here keeps a tensor alive
            elif not _is_constant(value):
                self.tuples.append((at, _filled(value, number)))
        self.at = self._at()

    @property
    def numbers(self) -> set[int]:
        """Of the tensors in it."""
        return {number for _, number in self.pointers}.union(*(inner.numbers for _, inner in self.tuples))

    def renumber(self, order: Mapping[int, int]) -> None:
        """Have the same tensors by other numbers."""
        self.pointers = [(at, order[number]) for at, number in self.pointers]
        for _, inner in self.tuples:
            inner.renumber(order)
        self.at = self._at()

    def _at(self) -> Callable[[Sequence[int]], tuple[Any, ...]]:
        """What makes the tuple of tensors at given addresses: where there are only tensors, no loop does."""
        numbers = [number for _, number in self.pointers]
        return itemgetter(*numbers) if 1 < len(numbers) == len(self.values) else self._one_by_one

    def _one_by_one(self, addresses: Sequence[int]) -> tuple[Any, ...]:
        values = self.values.copy()
        for at, number in self.pointers:
            values[at] = addresses[number]
        for at, inner in self.tuples:
            values[at] = inner.at(addresses)
        return tuple(values)


def _filled(value: Any, number: Callable[[Tensor], int]) -> _Filled:
    if not isinstance(value, tuple):
        raise LookupError(f"an argument is of type {type(value).__name__}")
    return _Filled(value, number)


class Repeat:
    """A launch with everything bound but addresses, numbered as the caller numbers its tensors, and counts of rows."""

    __slots__ = (
        "after",
        "arguments",
        "before",
        "compiled",
        "counts",
        "grid",
        "launch",
        "maps",
        "nested",
        "pointers",
        "tuples",
    )

    def __init__(
        self,
        compiled: Any,
        grid: Sequence[SupportsIndex],
        values: Sequence[Any],
        number: Callable[[Tensor], int],
        follows: Callable[[RowCount], Follows | None] = lambda count: None,
    ) -> None:
        """Keep a launch.

        Args:
            compiled: Triton's compiled kernel, which has run.
            grid: programs along each axis.
            values: all arguments in the kernel's order.
            number: of a tensor.
            follows: a count without its tensor; None: it is always the same.

        Raises:
            LookupError: the launcher, an argument or a tensor is none that can be repeated.
        """
        launcher = compiled.run
        self.launch, between, self.nested = _launcher(launcher, compiled.packed_metadata)
        scratch = ("global_scratch_size", "profile_scratch_size")
        if any(getattr(launcher, name) for name in scratch) or getattr(launcher, "gsan_enabled", False):
            raise LookupError("the kernel needs memory of Triton's")
        self.compiled = compiled  # its code stays loaded
        self.before = [int(extent) for extent in (*grid, 1, 1)[:3]]
        self.grid = [(axis, found) for axis, n in enumerate(grid) if isinstance(n, RowCount) and (found := follows(n))]
        "extents of the grid that follow a count"
        self.counts: list[tuple[int, Follows]] = []
        "arguments that do"
        flags = launcher.launch_cooperative_grid, launcher.launch_pdl
        self.after: tuple[Any, ...] = (compiled.function, *flags, *between)
        self.arguments: list[Any] = []
        self.pointers: list[tuple[int, int]] = []
        self.tuples: list[tuple[int, _Filled]] = []
        "those with tensors in them"
        self.maps: list[tuple[int, int, _TensorMap, Follows | None]] = []
        makers = iter(_makers(compiled))
        for value in values:
            at = len(self.arguments)
            if isinstance(value, Tensor):
                self.pointers.append((at, number(value)))
                self.arguments.append(None)
            elif hasattr(value, "block_shape"):
                base = value.base
                # Of all of a tensor as it lies: where that has more rows, so has what is described.
                whole = follows(RowCount(base)) if tuple(value.shape) == tuple(base.shape) else None
                self.maps.append((at, number(base), _TensorMap(value, next(makers)), whole))
                self.arguments += (None, *value.shape, *value.strides)
            elif isinstance(value, RowCount):
                if (found := follows(value)) is not None:
                    self.counts.append((at, found))
                self.arguments.append(int(value))
            elif _is_constant(value):
                self.arguments.append(value)
            else:
                self.tuples.append((at, _filled(value, number)))
                self.arguments.append(None)

    @property
    def numbers(self) -> set[int]:
        """Of the tensors that it is launched on."""
        alone = {number for _, number in self.pointers} | {number for _, number, *_ in self.maps}
        return alone.union(*(filled.numbers for _, filled in self.tuples))

    @property
    def counted(self) -> set[int]:
        """Numbers of the tensors whose rows are counted."""
        found = [count for _, count in (*self.grid, *self.counts)]
        return {count.number for count in (*found, *(whole for *_, whole in self.maps if whole is not None))}

    def renumbered(self, order: Mapping[int, int]) -> Repeat:
        """The same launch, of tensors that have other numbers; those whose rows are counted keep theirs."""
        self.pointers = [(at, order[number]) for at, number in self.pointers]
        self.maps = [(at, order[number], tensor_map, whole) for at, number, tensor_map, whole in self.maps]
        for _, filled in self.tuples:
            filled.renumber(order)
        return self

    def __call__(self, stream: int, addresses: Sequence[int], rows: Mapping[int, int] = NO_ROWS) -> None:
        """Launch on a stream of the current device, on tensors at these addresses, the `counted` with so many rows."""
        before, arguments = self.before, self.arguments.copy()
        for at, number in self.pointers:
            arguments[at] = addresses[number]
        for at, filled in self.tuples:
            arguments[at] = filled.at(addresses)
        for at, number, tensor_map, whole in self.maps:
            key = addresses[number], None if whole is None else rows[whole.number] * whole.factor
            arguments[at] = tensor_map.known.get(key) or tensor_map.at(*key)
            if whole is not None:
                arguments[at + 1] = key[1]
        for at, (number, factor, size) in self.counts:
            arguments[at] = -(-rows[number] * factor // size)
        if self.grid:
            before = before.copy()
            for axis, (number, factor, size) in self.grid:
                before[axis] = -(-rows[number] * factor // size)
        if self.nested:
            self.launch(*before, stream, *self.after, arguments)
        else:
            self.launch(*before, stream, *self.after, *arguments)


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return value is None or isinstance(value, bool | int | float | str)


def _launcher(launcher: Any, metadata: Any) -> tuple[Callable[..., None], tuple[Any, ...], bool]:
    """The function in C that launches, what it takes between the flags and the arguments, and whether these nest.

    Raises:
        LookupError: Triton has another launcher than the two known.
    """
    launch: Any = getattr(launcher, "launch", None)
    if hasattr(launch, "__closure__"):  # of a kernel with descriptors, whose maps it makes
        launch = getclosurevars(launch).nonlocals.get("launcher")
    if launch is None:
        raise LookupError("the launcher has no function to launch")
    unobserved = (None, None, None)  # launch metadata, and the hooks before and after
    if hasattr(launcher, "arg_annotations"):
        scratch = (None, None)
        return launch, (metadata, *unobserved, *scratch, launcher.arg_annotations, launcher.kernel_signature), True
    return launch, (None, None, metadata, *unobserved), False


def _makers(compiled: Any) -> list[Callable[[Any], Sequence[Any]]]:
    """Of each descriptor of a kernel, what makes its tensor map.

    Raises:
        LookupError: Triton makes them in another way.
    """
    described = getattr(compiled.metadata, "tensordesc_meta", None) or []
    if not described:
        return []
    from triton.backends.nvidia import driver

    make = driver.make_tensordesc_arg
    rest = (None,) * (len(signature(make).parameters) - 2)

    def maker(metadata: Mapping[str, Any]) -> Callable[[Any], Sequence[Any]]:
        if metadata is None:
            raise LookupError("a descriptor is passed in parts")
        return lambda descriptor: make(descriptor, metadata, *rest)

    return [maker(metadata) for metadata in described]
