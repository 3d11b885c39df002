"""A dense HSTU problem as the kernels take it, and the checks of a caller's arguments.

Shapes, dtypes and devices are checked on the host in every call.  Checking values inside tensors synchronizes with the
device, so only `check_values` does it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from attnbench.kernels.hstu.arguments import Sequences
from attnbench.kernels.hstu.dense.configs import triangle_grid
from attnbench.kernels.shared.card import capability_of, processors, takes_compiled
from attnbench.kernels.shared.counts import describes, descriptor_of, rows_in
from attnbench.kernels.shared.limits import LARGEST_FACTOR, as_float, extent_fault, is_whole
from attnbench.kernels.shared.tiling import Grid, block_of

WHO = "hstu_attention"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LARGEST_DIM = 256
LARGEST_COUNT = 2**24
INDICES = (torch.int32, torch.int64)
OPTIONAL = ("gates", "offsets_q", "num_targets")
"Tensors that may be None."


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Sequences, mask and factors of one call."""

    offsets: Tensor
    "int32 or int64 [B + 1]: sequence b has the keys [b] to [b + 1]"
    offsets_q: Tensor | None
    "the same for queries, the last rows of each sequence; None: every row is a query"
    num_targets: Tensor | None
    "int32 or int64 [B]"
    max_seqlen: int
    max_seqlen_q: int
    alpha: float
    scaling_seqlen: int
    causal: bool
    contextual_len: int
    max_attn_len: int | None

    @property
    def batch(self) -> int:
        """Number of sequences; 0 for unusable offsets."""
        return max(1, *self.offsets.shape[:1]) - 1 if self.offsets.dim() else 0

    def sequences(self) -> Sequences:
        """Where the sequences lie, as kernels take it."""
        return Sequences(offsets_ptr=self.offsets, offsets_q_ptr=self.offsets_q, num_targets_ptr=self.num_targets)

    def grid(self, q: Tensor) -> Grid | None:
        """The call's `triangle_grid`, on the card of the queries [Tq, H, D]."""
        return triangle_grid(
            self.batch * q.shape[1],
            self.max_seqlen_q,
            causal=self.causal,
            cached=self.offsets_q is not None,
            windowed=self.max_attn_len is not None,
            processors=processors(q),
        )

    def flags(self) -> dict[str, Any]:
        """Compile-time constants of a kernel that come from the mask."""
        return {
            "CAUSAL": self.causal,
            "HAS_PREFIX": self.contextual_len > 0,
            "HAS_TARGETS": self.num_targets is not None,
            "HAS_WINDOW": self.max_attn_len is not None,
            "HAS_CACHE": self.offsets_q is not None,
        }


def blocks_of(attn_dim: int, linear_dim: int) -> dict[str, Any]:
    """Dims and tile columns, as compile-time constants."""
    return {
        "ATTN_DIM": attn_dim,
        "LINEAR_DIM": linear_dim,
        "BLOCK_D": block_of(attn_dim),
        "BLOCK_V": block_of(linear_dim),
    }


def takes_tma(x: Tensor) -> bool:
    """Whether TMA (sm_90 and later) can read [rows, heads, dims] with its strides."""
    if (capability_of(x) or (9, 0)) < (9, 0):
        return False
    item = x.element_size()
    return (
        x.numel() > 0
        and x.data_ptr() % 16 == 0
        and x.stride(2) == 1
        and all(stride * item % 16 == 0 and stride for stride in x.stride()[:2])
    )


def descriptor(x: Tensor, rows: int, columns: int) -> Any:
    """A TMA descriptor of [rows, heads, dims]: tiles of one head, zeros outside."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    found = descriptor_of(TensorDescriptor, x, list(x.shape), list(x.stride()), [rows, 1, columns])
    return describes(found, shape={0: rows_in(x)}, strides={})


def default_alpha(q: Tensor) -> float:
    """1 / sqrt of the attention dim; 1 for a shape that will be refused."""
    return max(1, *q.shape[-1:]) ** -0.5 if q.dim() else 1.0


def alpha_of(alpha: float | None, q: Tensor) -> float:
    """α, checked to be a number, as a float; None: the default."""
    found: float = default_alpha(q) if alpha is None else as_float(alpha)
    return found


def check_device(q: Tensor, *, compiled: bool) -> None:
    """Refuse CPU tensors where the kernels are compiled, not interpreted.

    Raises:
        ValueError: naming the device and what is accepted.
    """
    if compiled and not takes_compiled(q):
        raise wrong("q.device", q.device, "has no compiled kernels", "a CUDA device")


def check_types(tensors: dict[str, Any], alpha: Any) -> None:
    """Refuse arguments that are no tensors and an α that is no number, before they are used.

    Args:
        tensors: by name; None: not passed, which is allowed for those of OPTIONAL.
        alpha: None: not passed.

    Raises:
        ValueError: naming the argument, its type and what is accepted.
    """
    for name, x in tensors.items():
        if not isinstance(x, Tensor) and not (x is None and name in OPTIONAL):
            raise wrong(name, repr(x)[:40], f"is of type {type(x).__name__}", "a tensor")
    if alpha is not None and (isinstance(alpha, Tensor) or not isinstance(as_float(alpha), float)):
        raise wrong("alpha", repr(alpha)[:40], f"is of type {type(alpha).__name__}", "a number, or None")


def check_tensors(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> None:
    """Refuse shapes, dtypes, devices and numbers that the kernels do not support, without reading tensor values.

    Raises:
        ValueError: naming the argument, its value and what is accepted.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 3:
            raise wrong(f"{name}.shape", tuple(x.shape), "is not packed", "[rows, heads, dims]")
        if x.dtype not in DTYPES:
            raise wrong(f"{name}.dtype", x.dtype, "is not supported", "bfloat16, float16 or float32")
        if not 1 <= x.shape[2] <= LARGEST_DIM:
            raise wrong(f"{name}.shape", tuple(x.shape), "has too many dims or none", f"1 to {LARGEST_DIM} dims")
        if x.stride(2) != 1 and x.shape[2] > 1:
            raise wrong(f"{name}.stride", x.stride(), "has gaps in the last dim", "a last stride of 1")
    for name, value, wanted, whose in (
        ("k.dtype", k.dtype, q.dtype, "q's"),
        ("k.device", k.device, q.device, "q's"),
        ("k.shape[1]", k.shape[1], q.shape[1], "q's heads"),
        ("v.dtype", v.dtype, q.dtype, "q's"),
        ("v.device", v.device, q.device, "q's"),
        ("v.shape[1]", v.shape[1], q.shape[1], "q's heads"),
        ("k.shape[2]", k.shape[2], q.shape[2], "q's dims"),
        ("v.shape[0]", v.shape[0], k.shape[0], "k's rows"),
    ):
        if value != wanted:
            raise wrong(name, value, "does not fit", f"{wanted}, {whose}")
    if problem.offsets_q is None and q.shape[0] != k.shape[0]:
        said = f"{k.shape[0]}, k's rows; offsets_q says where they differ"
        raise wrong("q.shape[0]", q.shape[0], "does not fit", said)
    _check_indices(q, problem)
    _check_numbers(problem)
    fault = extent_fault({"q": q, "k": k, "v": v}, problem.batch, max(problem.max_seqlen, problem.max_seqlen_q))
    if fault:
        raise wrong(*fault)


def _check_indices(q: Tensor, problem: Problem) -> None:
    batch = problem.batch
    for name, x, length in (
        ("offsets", problem.offsets, max(1, batch + 1)),
        ("offsets_q", problem.offsets_q, batch + 1),
        ("num_targets", problem.num_targets, batch),
    ):
        if x is None:
            continue
        if x.dtype not in INDICES:
            raise wrong(f"{name}.dtype", x.dtype, "is not supported", "int32 or int64")
        if tuple(x.shape) != (length,):
            raise wrong(f"{name}.shape", tuple(x.shape), "does not fit", f"[{length}] for {batch} sequences")
        if x.device != q.device:
            raise wrong(f"{name}.device", x.device, "does not fit", f"{q.device}, q's")
        if not x.is_contiguous():
            raise wrong(f"{name}.stride", x.stride(), "has gaps", "contiguous")


def _check_numbers(problem: Problem) -> None:
    for name, least in (
        ("max_seqlen", 0),
        ("max_seqlen_q", 0),
        ("scaling_seqlen", 1),
        ("contextual_len", 0),
        ("max_attn_len", 1),
    ):
        value = getattr(problem, name)
        if value is None and name == "max_attn_len":
            continue
        if not is_whole(value) or not least <= value <= LARGEST_COUNT:
            raise wrong(name, repr(value), "cannot be used", f"a whole number from {least} to {LARGEST_COUNT}")
    if type(problem.causal) is not bool:
        raise wrong("causal", repr(problem.causal), "cannot be used", "True or False")
    if not math.isfinite(problem.alpha):
        raise wrong("alpha", problem.alpha, "is not finite", "a finite number")
    if abs(problem.alpha) > LARGEST_FACTOR:
        raise wrong("alpha", problem.alpha, "is too large", f"at most {LARGEST_FACTOR}")


def check_values(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> None:
    """Refuse values inside the tensors that would read or write outside of them; synchronizes with the device.

    Raises:
        ValueError: naming the argument, its value and what is accepted.
    """
    if problem.offsets.is_meta:  # a tensor without values is only compiled for
        return
    offsets = problem.offsets.tolist()
    lengths = _lengths("offsets", offsets, k.shape[0], "k", problem.max_seqlen, "max_seqlen")
    queries = lengths
    if problem.offsets_q is None and problem.max_seqlen_q < max(lengths, default=0):
        longest = max(lengths)
        raise wrong(
            "max_seqlen_q",
            problem.max_seqlen_q,
            f"is below the {longest} rows of sequence {lengths.index(longest)}",
            f"at least {longest}",
        )
    if problem.offsets_q is not None:
        queries = _lengths(
            "offsets_q", problem.offsets_q.tolist(), q.shape[0], "q", problem.max_seqlen_q, "max_seqlen_q"
        )
        for number, (some, all_) in enumerate(zip(queries, lengths, strict=True)):
            if some > all_:
                raise wrong(
                    f"offsets_q[{number + 1}]",
                    sum(queries[: number + 1]),
                    f"gives sequence {number} {some} queries and {all_} keys",
                    "no more queries than keys",
                )
    if problem.num_targets is not None:
        for number, (count, length) in enumerate(zip(problem.num_targets.tolist(), lengths, strict=True)):
            if not 0 <= count <= length:
                raise wrong(f"num_targets[{number}]", count, "is out of range", f"from 0 to its {length} rows")
    for name, x in (("q", q), ("k", k), ("v", v)):
        finite = x.isfinite()
        if not bool(finite.all()):
            at = (~finite).nonzero()[0].tolist()
            raise wrong(f"{name}{at}", x[tuple(at)].item(), "is not finite", "finite values")


def _lengths(name: str, offsets: list[int], rows: int, of: str, most: int, bound: str) -> list[int]:
    if offsets[0] != 0:
        raise wrong(f"{name}[0]", offsets[0], "is not the start", "0")
    lengths = [after - before for before, after in pairwise(offsets)]
    for number, length in enumerate(lengths):
        if length < 0:
            raise wrong(
                f"{name}[{number + 1}]",
                offsets[number + 1],
                f"falls from {offsets[number]}",
                "offsets that never decrease",
            )
        if length > most:
            raise wrong(bound, most, f"is below the {length} rows of sequence {number}", f"at least {max(lengths)}")
    if offsets[-1] != rows:
        raise wrong(f"{name}[{len(lengths)}]", offsets[-1], f"is not the end of {of}", f"its {rows} rows")
    return lengths


def wrong(name: str, value: object, why: str, accepted: str) -> ValueError:
    """The error for an argument: its name, its value, what is wrong with it, and what is accepted."""
    return ValueError(f"{WHO}: {name}={value} {why}; {accepted}")
