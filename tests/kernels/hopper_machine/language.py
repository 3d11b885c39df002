"""Stand-ins for `gl.` and `tl.` functions that do not depend on the machine, under the names of the originals."""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import triton.language as tl

from .mistakes import Mistake, Unsupported
from .tiles import Int, Pointer, Tile, bits_of, paired, poison, scalar, torch_dtype, whole


def _range(*bounds: int, **_options: Any) -> Iterator[Int]:
    return (whole(index) for index in builtins.range(*bounds))


def full(shape: Sequence[int], value: Any, dtype: Any, layout: Any = None) -> Tile:
    value = value.value if isinstance(value, Tile) else value
    return Tile(torch.full(tuple(shape), value, dtype=torch_dtype(dtype)))


def zeros(shape: Sequence[int], dtype: Any, layout: Any = None) -> Tile:
    return full(shape, 0, dtype)


def full_like(input: Tile, value: Any, shape: Any = None, dtype: Any = None, layout: Any = None) -> Tile:
    return full(shape or input.shape, value, dtype or input.dtype)


def zeros_like(input: Tile, shape: Any = None, dtype: Any = None, layout: Any = None) -> Tile:
    return full_like(input, 0, shape, dtype)


def arange(start: int, end: int, layout: Any = None) -> Tile:
    return Tile(torch.arange(start, end, dtype=torch.int32))


def where(condition: Any, x: Any, y: Any) -> Any:
    if not any(isinstance(one, (Tile, Pointer)) for one in (condition, x, y)):
        chosen = x if condition else y
        if any(isinstance(one, float) for one in (x, y)):
            return float(chosen)
        return chosen if isinstance(chosen, bool) else Int(chosen, builtins.max(bits_of(x), bits_of(y)))
    first, second = paired(x, y)
    test = condition.value if isinstance(condition, Tile) else torch.tensor(bool(condition))
    if not any(isinstance(one, torch.Tensor) for one in (first, second)):
        kind = torch.float32 if any(isinstance(one, float) for one in (x, y)) else torch.int32
        first = torch.tensor(first, dtype=kind)
    return Tile(torch.where(test, first, second))


def _extreme(of_tiles: Callable, with_nan: Callable, of_scalars: Callable) -> Callable:
    def stand_in(x: Any, y: Any, propagate_nan: Any = None) -> Any:
        if not isinstance(x, Tile) and not isinstance(y, Tile):
            if isinstance(x, float) or isinstance(y, float):
                return float(of_tiles(torch.tensor(float(x)), torch.tensor(float(y))))
            return Int(of_scalars(x, y), builtins.max(bits_of(x), bits_of(y)))
        first, second = paired(x, y)
        like = first if isinstance(first, torch.Tensor) else second
        first, second = (
            one if isinstance(one, torch.Tensor) else torch.tensor(one, dtype=like.dtype) for one in (first, second)
        )
        # Those for floats return the other operand if one is NaN, as the card does by default.
        told = propagate_nan.value if isinstance(propagate_nan, tl.constexpr) else propagate_nan
        keeps = told == tl.PropagateNan.ALL
        return Tile((with_nan if keeps else of_tiles)(first, second))

    return stand_in


maximum = _extreme(torch.fmax, torch.maximum, builtins.max)
minimum = _extreme(torch.fmin, torch.minimum, builtins.min)


def _reduced(work: Callable[[torch.Tensor, int], torch.Tensor]) -> Callable:
    def stand_in(input: Tile, axis: int | None = None, *options: Any, keep_dims: bool = False, **named: Any) -> Any:
        if options or named:
            raise Unsupported(f"a reduction with {options or named}")
        value = input.value
        if value.dtype in (torch.bfloat16, torch.bool):
            value = value.to(torch.float32 if value.dtype == torch.bfloat16 else torch.int32)
        if axis is None:
            return scalar(work(value.flatten(), 0))
        found = work(value, axis)
        if keep_dims:
            found = found.unsqueeze(axis)
        return Tile(found) if found.dim() else scalar(found)

    return stand_in


def _no_nan(work: Callable, worst: float) -> Callable[[torch.Tensor, int], torch.Tensor]:
    def reduce(value: torch.Tensor, axis: int) -> torch.Tensor:
        if not value.dtype.is_floating_point:
            return work(value, axis)
        gone = value.isnan()
        found = work(value.masked_fill(gone, worst), axis)
        return found.masked_fill(gone.all(axis), float("nan"))

    return reduce


max = _reduced(_no_nan(torch.amax, float("-inf")))
min = _reduced(_no_nan(torch.amin, float("inf")))
sum = _reduced(lambda value, axis: torch.sum(value, axis, dtype=value.dtype))


def _elementwise(work: Callable[[torch.Tensor], torch.Tensor]) -> Callable:
    def stand_in(x: Any) -> Any:
        return Tile(work(x.value)) if isinstance(x, Tile) else scalar(work(torch.tensor(x)))

    return stand_in


exp = _elementwise(torch.exp)
exp2 = _elementwise(torch.exp2)
log = _elementwise(torch.log)
log2 = _elementwise(torch.log2)
sqrt = sqrt_rn = _elementwise(torch.sqrt)
rsqrt = _elementwise(torch.rsqrt)
abs = _elementwise(torch.abs)
sin = _elementwise(torch.sin)
cos = _elementwise(torch.cos)
erf = _elementwise(torch.erf)
floor = _elementwise(torch.floor)
ceil = _elementwise(torch.ceil)


def fma(x: Any, y: Any, z: Any) -> Any:
    tiles = [one.value for one in (x, y, z) if isinstance(one, Tile)]
    x, y, z = (one.value.double() if isinstance(one, Tile) else one for one in (x, y, z))
    return Tile((x * y + z).to(tiles[0].dtype)) if tiles else x * y + z


def fdiv(x: Any, y: Any, ieee_rounding: bool = False) -> Any:
    return x / y


def div_rn(x: Any, y: Any) -> Any:
    return x / y


def cast(input: Any, dtype: Any, fp_downcast_rounding: None = None, bitcast: bool = False) -> Any:
    if isinstance(input, float):
        return scalar(torch.tensor(input).to(torch_dtype(dtype)))
    return (whole(input) if isinstance(input, int) else input).to(dtype, bitcast=bitcast)


def to_tensor(x: Any) -> Any:
    return whole(x) if type(x) is int else x


def convert_layout(value: Tile, layout: Any, assert_trivial: bool = False) -> Tile:
    return Tile(value.value)


def set_auto_layout(value: Tile, layout: Any) -> Tile:
    return Tile(value.value)


def expand_dims(input: Tile, axis: int) -> Tile:
    return Tile(input.value.unsqueeze(axis))


def _sizes(given: tuple) -> Sequence[int]:
    return given[0] if len(given) == 1 and not isinstance(given[0], int) else given


def broadcast(input: Tile, other: Tile) -> tuple[Tile, Tile]:
    first, second = torch.broadcast_tensors(*paired(input, other))
    return Tile(first), Tile(second)


def broadcast_to(input: Tile, *shape: Any) -> Tile:
    return Tile(input.value.expand(*_sizes(shape)))


def reshape(input: Tile, *shape: Any, can_reorder: bool = False) -> Tile:
    if can_reorder:
        raise Unsupported("a reshape that may reorder")
    return Tile(input.value.reshape(*_sizes(shape)))


def permute(input: Tile, *dims: Any) -> Tile:
    return Tile(input.value.permute(*_sizes(dims)))


def trans(input: Tile, *dims: Any) -> Tile:
    return permute(input, *dims) if dims else Tile(input.value.transpose(-2, -1))


def split(a: Tile) -> tuple[Tile, Tile]:
    first, second = a.value.unbind(-1)
    return Tile(first), Tile(second)


def join(a: Tile, b: Tile) -> Tile:
    return Tile(torch.stack((a.value, b.value), -1))


def load(pointer: Pointer, mask: Any = None, other: Any = None, **_hints: Any) -> Any:
    at, wanted = pointer.places(mask)
    found = pointer.flat[at] if len(pointer.flat) else pointer.flat.new_zeros(at.shape)
    if other is None:
        other = poison(found.dtype)
    if isinstance(other, Tile):
        other = other.value.to(found.dtype)
    found = torch.where(wanted, found, other).to(found.dtype)
    return Tile(found) if found.dim() else scalar(found)


def _stored(pointer: Pointer, value: Any, mask: Any) -> tuple[tuple[torch.Tensor], torch.Tensor, torch.Tensor]:
    at, wanted = pointer.places(mask)
    value = value.value if isinstance(value, Tile) else torch.tensor(value)
    if value.dim() and value.dim() != at.dim():
        raise Mistake(f"a tile of {list(value.shape)} to pointers of {list(at.shape)}")
    at, wanted, value = torch.broadcast_tensors(at, wanted, value.to(pointer.flat.dtype))
    return (at[wanted],), value[wanted], wanted


def store(pointer: Pointer, value: Any, mask: Any = None, **_hints: Any) -> None:
    at, values, _ = _stored(pointer, value, mask)
    pointer.flat.index_put_(at, values)


def atomic_add(pointer: Pointer, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> Any:
    before = load(pointer, mask)
    at, values, _ = _stored(pointer, val, mask)
    pointer.flat.index_put_(at, values, accumulate=True)
    return before


def associative_scan(input: Tile, axis: int, combine_fn: Callable, reverse: bool = False) -> Tile:
    if reverse:
        raise Unsupported("a scan in reverse")
    parts = [Tile(one) for one in input.value.split(1, axis)]
    return Tile(torch.cat([one.value for one in itertools.accumulate(parts, combine_fn)], axis))


def static_assert(cond: Any, msg: str = "") -> None:
    if not cond:
        raise Mistake(f"static_assert: {msg}")


def device_assert(cond: Any, msg: str = "", mask: Any = None) -> None:
    holds = cond.value if isinstance(cond, Tile) else torch.tensor(bool(cond))
    if mask is not None:
        holds = holds | ~mask.value
    if not bool(holds.all()):
        raise Mistake(f"device_assert: {msg}")


def static_range(*bounds: int) -> Sequence[int]:
    return builtins.range(*bounds)


def multiple_of(input: Any, values: Any) -> Any:
    return input


max_contiguous = max_constancy = multiple_of


def assume(cond: Any) -> None:
    device_assert(cond, "an assumption does not hold")


def inline_asm_elementwise(
    asm: str, constraints: str, args: Sequence[Tile], dtype: Any, is_pure: bool, pack: int
) -> Tile:
    """Inline assembly: a thread's own value by a shuffle, and numbers rounded to 16 bits or to e4m3 in one register."""
    if asm == "shfl.sync.bfly.b32 $0, $1, 0, 31, -1;":
        return args[0]
    for short, kind in (("bf16x2", tl.bfloat16), ("f16x2", tl.float16)):
        if asm == f"cvt.rn.{short}.f32 $0, $2, $1;" and (dtype, pack) == (kind, 2):
            return args[0].to(kind)
    pair = "cvt.rn.satfinite.e4m3x2.f32 {}, ${}, ${};".format
    wanted = "{ .reg .b16 low, high; " + f"{pair('low', 2, 1)} {pair('high', 4, 3)} mov.b32 $0, " + "{low, high}; }"
    if " ".join(asm.split()) == wanted and (dtype, pack) == (tl.int8, 4):
        return args[0].to(tl.float8e4nv).to(tl.int8, bitcast=True)
    raise Unsupported(f"assembly: {asm}")


def barrier(*, cluster: bool = False) -> None:
    """All warps of a partition are one actor here."""


thread_barrier = barrier


def num_ctas() -> int:
    return 1


def constexpr(value: Any) -> Any:
    return value


for _name in (
    "abs",
    "broadcast_to",
    "cast",
    "exp",
    "exp2",
    "expand_dims",
    "log",
    "log2",
    "max",
    "min",
    "permute",
    "reshape",
    "split",
    "sqrt",
    "sum",
    "trans",
):
    setattr(Tile, _name, globals()[_name])

STAND_INS = {
    name: value
    for name, value in list(globals().items())
    if getattr(value, "__module__", None) == __name__ and not name.startswith("_")
}
STAND_INS["range"] = _range
