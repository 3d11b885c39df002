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
from functools import lru_cache
from inspect import signature
from operator import itemgetter
from typing import Any, NamedTuple, SupportsIndex

from torch import Tensor
from triton import knobs

from attnbench.kernels.shared.counts import CountExpression, RowCount, Rows, counts_of

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

    __slots__ = ("descriptor", "extents", "known", "make", "strides")

    def __init__(
        self,
        descriptor: Any,
        make: Callable[[Any], Sequence[Any]],
        extents: Sequence[tuple[int, CountExpression]],
        strides: Sequence[tuple[int, CountExpression]],
    ) -> None:
        self.descriptor = _copied(descriptor)
        self.descriptor.base = self.descriptor.counts = None  # keeps no tensor alive
        self.make, self.extents, self.strides = make, extents, strides
        self.known = dict[tuple[int, Sequence[int], Sequence[int]], Any]()

    def numbers(self, rows: Rows) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Extents and strides, for arguments with these extents."""
        shape, strides = [*self.descriptor.shape], [*self.descriptor.strides]
        for axis, found in self.extents:
            shape[axis] = found.at(rows)
        for axis, found in self.strides:
            strides[axis] = found.at(rows)
        return tuple(shape), tuple(strides)

    def at(self, address: int, shape: Sequence[int], strides: Sequence[int]) -> Any:
        """The map of a tensor at this address; made here, and cached in `known` by all three."""
        described = _copied(self.descriptor)
        described.base, described.shape, described.strides = _Address(address), [*shape], [*strides]
        found = self.make(described)[0]
        if len(self.known) >= MOST_MAPS:
            self.known.clear()
        self.known[address, shape, strides] = found
        return found


def _copied(descriptor: Any) -> Any:
    """A shallow copy, without the checks of its class; `copy.copy` takes several times as long."""
    found = object.__new__(type(descriptor))
    found.__dict__.update(descriptor.__dict__)
    return found


class _BoundMap(NamedTuple):
    """A `_DescriptorArgument` for arguments with known extents."""

    at: int
    number: int
    tensor_map: _TensorMap
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _DescriptorArgument(NamedTuple):
    """A launch argument that is a descriptor."""

    at: int
    "its index among the arguments"
    number: int
    "number of its tensor"
    tensor_map: _TensorMap

    def bound(self, rows: Rows) -> _BoundMap:
        """The same with its extents and strides, for arguments with these extents."""
        return _BoundMap(self.at, self.number, self.tensor_map, *self.tensor_map.numbers(rows))


class _TupleArgument:
    """A tuple argument that contains tensors or counts, remade for other addresses and extents."""

    __slots__ = ("at", "counts", "pointers", "tuples", "values")

    def __init__(
        self,
        values: Sequence[Any],
        number: Callable[[Tensor], int],
        follows: Callable[[RowCount], CountExpression | None],
    ) -> None:
        self.values: list[Any] = []
        self.pointers: list[tuple[int, int]] = []
        self.counts: list[tuple[int, CountExpression]] = []
        self.tuples: list[tuple[int, _TupleArgument]] = []
        for at, value in enumerate(values):
            kept = None  # keeps no tensor alive
            if isinstance(value, Tensor):
                self.pointers.append((at, number(value)))
            elif isinstance(value, RowCount):
                kept = int(value)
                if (found := follows(value)) is not None:
                    self.counts.append((at, found))
            elif _is_constant(value):
                kept = value
            else:
                self.tuples.append((at, _tuple_argument(value, number, follows)))
            self.values.append(kept)
        self.at = self._at()

    @property
    def numbers(self) -> set[int]:
        """Numbers of the tensors in it."""
        return {number for _, number in self.pointers}.union(*(inner.numbers for _, inner in self.tuples))

    @property
    def moves(self) -> bool:
        """Whether an integer in it depends on the rows."""
        return bool(self.counts) or any(inner.moves for _, inner in self.tuples)

    def renumber(self, order: Mapping[int, int]) -> None:
        """Renumber the tensors."""
        self.pointers = [(at, order[number]) for at, number in self.pointers]
        for _, inner in self.tuples:
            inner.renumber(order)
        self.at = self._at()

    def bound(self, rows: Rows) -> _TupleArgument:
        """The same for arguments with these extents."""
        if not self.moves:
            return self
        found = copy(self)
        found.values, found.counts = [*self.values], []
        for at, count in self.counts:
            found.values[at] = count.at(rows)
        found.tuples = _bound(self.tuples, rows, found.values)
        found.at = found._at()
        return found

    def _at(self) -> Callable[[Sequence[int]], tuple[Any, ...]]:
        """A function from addresses to the tuple; without a loop if there are only tensors."""
        numbers = [number for _, number in self.pointers]
        return itemgetter(*numbers) if 1 < len(numbers) == len(self.values) else self._one_by_one

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
        made = filled.bound(rows)
        if made.pointers or made.tuples:
            found.append((at, made))
        else:
            values[at] = made.at(())
    return found


def _tuple_argument(
    value: Any, number: Callable[[Tensor], int], follows: Callable[[RowCount], CountExpression | None]
) -> _TupleArgument:
    if not isinstance(value, tuple):
        raise LookupError(f"an argument is of type {type(value).__name__}")
    return _TupleArgument(value, number, follows)


class Bound(NamedTuple):
    """A launch for arguments with known extents: everything except addresses."""

    before: Sequence[int]
    "the grid"
    arguments: Sequence[Any]
    tuples: Sequence[tuple[int, _TupleArgument]]
    "tuples that contain tensors or counts"
    maps: Sequence[_BoundMap]


class Repeat:
    """A launch with everything bound except addresses and row counts; tensors have the caller's numbers."""

    __slots__ = (
        "after",
        "arguments",
        "compiled",
        "counts",
        "fixed",
        "follows",
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
        follows: Callable[[RowCount], CountExpression | None] = lambda count: None,
    ) -> None:
        """Record a launch.

        Args:
            compiled: Triton's compiled kernel, which has run.
            grid: programs along each axis.
            values: all arguments in the kernel's order.
            number: returns the number of a tensor.
            follows: returns the expression of a count; None: the count is constant.

        Raises:
            LookupError: the launcher, an argument or a tensor does not support repeating.
        """
        launcher = compiled.run
        self.launch, between, self.nested = _launcher(launcher, compiled.packed_metadata)
        scratch = launcher.global_scratch_size or launcher.profile_scratch_size
        if scratch or getattr(launcher, "gsan_enabled", False):
            raise LookupError("the kernel needs scratch memory from Triton")
        self.compiled = compiled  # keeps its code loaded
        self.grid = [(axis, found) for axis, n in enumerate(grid) if isinstance(n, RowCount) and (found := follows(n))]
        "extents of the grid that depend on a count"
        self.counts: list[tuple[int, CountExpression]] = []
        "arguments that depend on a count"
        flags = launcher.launch_cooperative_grid, launcher.launch_pdl
        self.after: tuple[Any, ...] = (compiled.function, *flags, *between)
        self.arguments: list[Any] = []
        self.pointers: list[tuple[int, int]] = []
        self.tuples: list[tuple[int, _TupleArgument]] = []
        self.maps: list[_DescriptorArgument] = []
        "descriptors of which an extent or a stride depends on a count"
        maps: list[_BoundMap] = []
        makers = iter(_makers(compiled))
        for value in values:
            at = len(self.arguments)
            if type(value) in SIMPLE:
                self.arguments.append(value)
            elif isinstance(value, Tensor):
                self.pointers.append((at, number(value)))
                self.arguments.append(None)
            elif hasattr(value, "block_shape"):
                tensor_map = _TensorMap(value, next(makers), *_following(value, follows))
                described = _DescriptorArgument(at, number(value.base), tensor_map)
                if tensor_map.extents or tensor_map.strides:
                    self.maps.append(described)
                else:
                    maps.append(described.bound({}))
                self.arguments += (None, *value.shape, *value.strides)
            elif isinstance(value, RowCount):
                if (found := follows(value)) is not None:
                    self.counts.append((at, found))
                self.arguments.append(int(value))
            elif _is_constant(value):
                self.arguments.append(value)
            else:
                self.tuples.append((at, _tuple_argument(value, number, follows)))
                self.arguments.append(None)
        self.fixed = Bound([int(extent) for extent in (*grid, 1, 1)[:3]], self.arguments, self.tuples, maps)
        "the launch for the extents of this call; without the descriptors in `maps`"
        self.follows = bool(self.grid or self.counts or self.maps or [1 for _, filled in self.tuples if filled.moves])
        "whether anything except addresses differs from call to call"

    @property
    def numbers(self) -> set[int]:
        """Numbers of the tensors that it is launched on."""
        alone = {number for _, number in self.pointers}
        alone.update([one.number for one in self.maps], [one.number for one in self.fixed.maps])
        return alone.union(*[filled.numbers for _, filled in self.tuples])

    def renumbered(self, order: Mapping[int, int]) -> Repeat:
        """The same launch, with the tensors renumbered."""
        self.pointers = [(at, order[number]) for at, number in self.pointers]
        self.maps = [one._replace(number=order[one.number]) for one in self.maps]
        for _, filled in self.tuples:
            filled.renumber(order)
        maps = [one._replace(number=order[one.number]) for one in self.fixed.maps]
        self.fixed = self.fixed._replace(maps=maps)
        return self

    def bound(self, rows: Rows) -> Bound:
        """The launch for arguments with these extents."""
        if not self.follows:
            return self.fixed
        before, arguments, maps = [*self.fixed.before], [*self.arguments], [*self.fixed.maps]
        for axis, found in self.grid:
            before[axis] = found.at(rows)
        for at, found in self.counts:
            arguments[at] = found.at(rows)
        for one in self.maps:
            made = one.bound(rows)
            arguments[made.at + 1 : made.at + 1 + len(made.shape) + len(made.strides)] = *made.shape, *made.strides
            maps.append(made)
        return Bound(before, arguments, _bound(self.tuples, rows, arguments), maps)

    def __call__(self, stream: int, addresses: Sequence[int], bound: Bound | None = None) -> None:
        """Launch on a stream of the current device, with tensors at these addresses; `bound`: result of `bound`."""
        before, given, tuples, maps = bound or self.fixed
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


def _following(
    descriptor: Any, follows: Callable[[RowCount], CountExpression | None]
) -> list[list[tuple[int, CountExpression]]]:
    """The extents, then the strides, of a descriptor that depend on a count."""
    return [
        [(axis, found) for axis, count in counts.items() if (found := follows(count)) is not None] if counts else []
        for counts in counts_of(descriptor)
    ]


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple):
        return not [one for one in value if type(one) not in SIMPLE and not _is_constant(one)]
    return isinstance(value, SIMPLE)


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

    def maker(metadata: Mapping[str, Any]) -> Callable[[Any], Sequence[Any]]:
        if metadata is None:
            raise LookupError("a descriptor is not passed as a tensor map")
        return lambda descriptor: make(descriptor, metadata, *rest)

    return [maker(metadata) for metadata in described]
