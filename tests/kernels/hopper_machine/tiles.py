"""Values of a running kernel: integers, register tiles, pointers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import triton.language as tl
from triton.experimental.gluon import language as gl

from .mistakes import Mistake, OutOfBounds, TooEarly, Unsupported

_TORCH = {
    tl.bfloat16: torch.bfloat16,
    tl.float16: torch.float16,
    tl.float32: torch.float32,
    tl.float64: torch.float64,
    tl.int1: torch.bool,
    tl.int8: torch.int8,
    tl.int16: torch.int16,
    tl.int32: torch.int32,
    tl.int64: torch.int64,
    tl.uint8: torch.uint8,
    tl.uint16: torch.uint16,
    tl.uint32: torch.uint32,
    tl.uint64: torch.uint64,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
}
_TRITON = {mine: theirs for theirs, mine in _TORCH.items()}


def torch_dtype(dtype: Any) -> torch.dtype:
    return _TORCH[dtype]


def dtype_of(dtype: torch.dtype) -> Any:
    return _TRITON[dtype]


def poison(dtype: torch.dtype) -> float:
    """The value of elements that were never written."""
    return float("nan") if dtype.is_floating_point else -1 if dtype.is_signed else 1


def not_negative(*values: Any) -> None:
    """Refuse negative operands of // and %, which a kernel rounds differently from Python."""
    for value in values:
        if bool((value < 0).any()) if isinstance(value, torch.Tensor) else value < 0:
            raise Mistake("a negative operand of // or %: kernels round to zero, Python rounds down")


class Int(int):
    """A run-time integer of 32 or 64 bits; overflow is a mistake, as are negative operands of // and %."""

    bits: int

    def __new__(cls, value: int, bits: int = 32) -> Int:
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise Mistake(f"{value} does not fit into {bits} bits")
        self = super().__new__(cls, value)
        self.bits = bits
        return self

    @property
    def dtype(self) -> Any:
        return tl.int64 if self.bits == 64 else tl.int32

    def to(self, dtype: Any, bitcast: bool = False) -> Int | float:
        kind = torch_dtype(dtype)
        if bitcast:
            raise Unsupported("a bit cast of one integer")
        return float(self) if kind.is_floating_point else Int(int(self), 8 * kind.itemsize)

    def __truediv__(self, other: Any) -> Any:
        return int(self) / int(other) if isinstance(other, int) else super().__truediv__(other)

    def __neg__(self) -> Int:
        return Int(-int(self), self.bits)

    def __invert__(self) -> Int:
        return Int(~int(self), self.bits)


def bits_of(value: int) -> int:
    """Bits of a run-time integer, or of a constant as Triton types it: 64 where 32 are too few."""
    return value.bits if type(value) is Int else 32 if -(2**31) <= value < 2**31 else 64


def whole(value: int) -> Int:
    """A run-time integer of a constant."""
    return value if type(value) is Int else Int(value, bits_of(value))


def _of_ints(name: str) -> None:
    work = getattr(operator, name)

    def both(left: Int, right: Any) -> Any:
        if not isinstance(right, int):
            return NotImplemented
        if name in ("floordiv", "mod"):
            not_negative(left, right)
        return Int(work(int(left), int(right)), max(bits_of(left), bits_of(right)))

    plain = name.rstrip("_")
    setattr(Int, f"__{plain}__", lambda self, other: both(self, other))
    setattr(Int, f"__r{plain}__", lambda self, other: both(other, self) if isinstance(other, int) else NotImplemented)


for _name in ("add", "sub", "mul", "floordiv", "mod", "and_", "or_", "xor", "lshift", "rshift"):
    _of_ints(_name)


class _Type:
    """The result of `tile.type`; layouts are left to the compiler."""

    layout = gl.AutoLayout()

    def __init__(self, tile: Tile) -> None:
        self.shape, self.element_ty = tile.shape, tile.dtype


class Tile:
    """A register tensor.

    Args:
        data: its elements, in their own type.
        product: the asynchronous product that writes these registers, until it completes.
        token: result of `warpgroup_mma` that has not passed through `warpgroup_mma_wait` yet.
    """

    __slots__ = ("data", "lent", "product", "token")

    def __init__(self, data: torch.Tensor, product: Any = None, token: bool = False) -> None:
        self.data, self.product, self.token = data, product, token
        self.lent: Any = None
        "the product that uses these registers as its accumulator"

    @property
    def free(self) -> torch.Tensor:
        """The elements, which one product in flight may still be writing, but no later one may use as its accumulator.

        Raises:
            TooEarly: a product in flight uses the registers as its accumulator.
        """
        if self.lent is not None and not self.lent.over:
            raise TooEarly(f"registers used that {self.lent} adds to")
        return self.data

    @property
    def value(self) -> torch.Tensor:
        """The elements.

        Raises:
            TooEarly: a product in flight writes the registers.
        """
        if self.token:
            raise TooEarly(f"the result of {self.product} goes through warpgroup_mma_wait before it is used")
        if self.product is not None and not self.product.over:
            raise TooEarly(f"registers used while {self.product} is in flight; warpgroup_mma_wait waited for less")
        return self.free

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"tensor: {name}")

    @property
    def shape(self) -> list[int]:
        return list(self.data.shape)

    @property
    def numel(self) -> int:
        return self.data.numel()

    @property
    def dtype(self) -> Any:
        return dtype_of(self.data.dtype)

    @property
    def type(self) -> _Type:
        return _Type(self)

    def __bool__(self) -> bool:
        if self.data.numel() != 1:
            raise Mistake("a tile has no truth value")
        return bool(self.value)

    def __getitem__(self, key: Any) -> Tile:
        keys = key if isinstance(key, tuple) else (key,)
        if not all(one is None or one == slice(None) for one in keys):
            raise Unsupported(f"a tile indexed with {key}")
        return Tile(self.value[key])

    def __neg__(self) -> Tile:
        return Tile(-self.value)

    def __invert__(self) -> Tile:
        return Tile(~self.value)

    def to(self, dtype: Any, fp_downcast_rounding: None = None, bitcast: bool = False) -> Tile:
        kind = torch_dtype(dtype)
        if kind == torch.float8_e4m3fn and not bitcast:  # the card's conversion saturates, torch's makes NaN
            return Tile(self.value.clamp(-448, 448).to(kind))
        return Tile(self.value.view(kind) if bitcast else self.value.to(kind))


def scalar(value: torch.Tensor) -> Int | float:
    """One element as a scalar."""
    one = value.item()
    return one if isinstance(one, (bool, float)) else Int(one, max(32, 8 * value.element_size()))


def paired(left: Any, right: Any) -> tuple[Any, Any]:
    """Operands converted by Triton's rules where torch's differ: int1 counts as int32, an int64 scalar widens a tile."""
    values = [one.value if isinstance(one, Tile) else one for one in (left, right)]
    for mine, other in ((0, 1), (1, 0)):
        tile, with_ = values[mine], values[other]
        if not isinstance(tile, torch.Tensor):
            continue
        if isinstance(with_, int) and not isinstance(with_, bool) and not tile.dtype.is_floating_point:
            wide = torch.int64 if bits_of(with_) == 64 else torch.int32
            values[mine] = tile.to(torch.promote_types(tile.dtype, wide))
        elif isinstance(with_, torch.Tensor) and tile.dim() != with_.dim() and tile.dim() and with_.dim():
            raise Mistake(f"tiles of {list(tile.shape)} and {list(with_.shape)} have different ranks")
    return values[0], values[1]


def _of_tiles(name: str, work: Callable[[Any, Any], Any]) -> None:
    def both(left: Any, right: Any) -> Tile:
        first, second = paired(left, right)
        if name in ("floordiv", "mod"):
            not_negative(first, second)
        if name == "truediv":
            first, second = (
                one.float() if isinstance(one, torch.Tensor) and one.element_size() < 4 else one
                for one in (first, second)
            )
        return Tile(work(first, second))

    plain = name.rstrip("_")
    setattr(
        Tile, f"__{plain}__", lambda self, other: NotImplemented if isinstance(other, Pointer) else both(self, other)
    )
    if plain not in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(Tile, f"__r{plain}__", lambda self, other: both(other, self))


for _name in (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "and_",
    "or_",
    "xor",
    "lshift",
    "rshift",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
):
    _of_tiles(_name, getattr(operator, _name))


class _PointerType:
    def __init__(self, element_ty: Any) -> None:
        self.element_ty = element_ty
        self.scalar = self

    def is_ptr(self) -> bool:
        return True


class Pointer:
    """One pointer or a tile of pointers: positions in a tensor's storage."""

    def __init__(self, flat: torch.Tensor, at: torch.Tensor) -> None:
        self.flat, self.at = flat, at

    @staticmethod
    def of(tensor: torch.Tensor) -> Pointer:
        """Pointer to the beginning of a tensor."""
        count = tensor.untyped_storage().nbytes() // tensor.element_size()
        return Pointer(tensor.as_strided((count,), (1,), 0), torch.tensor(tensor.storage_offset()))

    @property
    def dtype(self) -> _PointerType:
        return _PointerType(dtype_of(self.flat.dtype))

    type = dtype

    @property
    def shape(self) -> list[int]:
        return list(self.at.shape)

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"pointer: {name}")

    def __getitem__(self, key: Any) -> Pointer:
        return Pointer(self.flat, Tile(self.at)[key].data)

    def __add__(self, other: Any) -> Pointer:
        step = other.value.long() if isinstance(other, Tile) else int(other)
        return Pointer(self.flat, self.at + step)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Pointer:
        return self + -other

    def places(self, mask: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions of the elements, and which of them the mask selects, each of the tile's shape.

        Raises:
            OutOfBounds: a selected element is outside the storage.
        """
        wanted = torch.as_tensor(True if mask is None else mask.value if isinstance(mask, Tile) else bool(mask))
        at, wanted = torch.broadcast_tensors(self.at, wanted)
        if bool((wanted & ((at < 0) | (at >= len(self.flat)))).any()):
            raise OutOfBounds(f"a pointer outside its tensor's {len(self.flat)} elements")
        return torch.where(wanted, at, 0), wanted
