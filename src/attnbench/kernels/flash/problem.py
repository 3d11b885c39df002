"""A softmax attention problem as the kernels take it, and the checks of a caller's arguments.

Shapes, dtypes and devices are checked on the host in every call.  Checking values inside tensors synchronizes with the
device, so only `check_values` does it.

Letters: B sequences, H query heads, G KV heads (H = G R), Sq queries, Sk keys, D head dim, Dv value dim; packed: Tq
and Tk rows of all sequences.  Tensors are dense, q [B, Sq, H, D], k [B, Sk, G, D], v [B, Sk, G, Dv],
out and dout [B, Sq, H, Dv], or packed, [Tq, H, D] and so on; lse has the shape `lse_shape`.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple, SupportsIndex

import torch
from torch import Tensor

from attnbench.kernels.flash.config.decode import LEAST_KEYS
from attnbench.kernels.shared.arguments import Strides
from attnbench.kernels.shared.card import capability_of, takes_compiled
from attnbench.kernels.shared.counts import RowCount, descriptor_of
from attnbench.kernels.shared.kept import describes, empty, rows_in, strides_in
from attnbench.kernels.shared.limits import LARGEST_FACTOR, as_float, extent_fault, is_whole
from attnbench.kernels.shared.tiling import block_of

WHO = "flash_attention"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LARGEST_DIM = 256
BOUND_ROWS = 128
"Upper bounds of a sequence's rows are rounded up to a multiple of this: one or two tiles of every kernel."
LEAST_SCALE = 1e-30
"The backward divides by the scale, in fp32."


class Problem(NamedTuple):
    """Sequences, mask and scale of one call.

    Query i of a sequence is aligned with key i + Sk - Sq and sees the keys from `left` before to `right` after it.
    """

    batch: int
    "number of sequences"
    max_seqlen_q: int
    "queries of a sequence if dense; packed: upper bound of the queries of a sequence"
    max_seqlen_k: int
    scale: float
    "factor of the scores, above 0"
    left: int | None = None
    "None: no bound to the left"
    right: int | None = None
    "None: no bound to the right; causal is 0"
    cu_seqlens_q: Tensor | None = None
    "int32 [B + 1] if packed: sequence b has the queries [b] to [b + 1]; None if dense"
    cu_seqlens_k: Tensor | None = None
    keys: int | RowCount | None = None
    "of a sequence, where dense and `max_seqlen_k` is that of `bound_of_keys`; None: `max_seqlen_k`"

    @property
    def seqlen_k(self) -> int | RowCount:
        """Keys that kernels are told of: those of a sequence where dense; packed, at least the most of one."""
        return self.max_seqlen_k if self.keys is None else self.keys

    @property
    def packed(self) -> bool:
        """Whether sequences are packed one after another, without padding."""
        return self.cu_seqlens_q is not None

    def flags(self) -> dict[str, Any]:
        """Compile-time constants of a kernel from the mask and the layout."""
        return {"HAS_LEFT": self.left is not None, "HAS_RIGHT": self.right is not None, "PACKED": self.packed}

    def lengths(self) -> dict[str, Any]:
        """Kernel arguments for `flash.tiles.sequence`: the offsets, and the lengths if dense."""
        return {
            "cu_q_ptr": self.cu_seqlens_q,
            "cu_k_ptr": self.cu_seqlens_k,
            "seqlen_q": self.max_seqlen_q,
            "seqlen_k": self.seqlen_k,
        }

    def at(self, cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None, k: Tensor | None = None) -> Problem:
        """The same problem with other sequences.

        Args:
            cu_seqlens_q: offsets of packed queries; None if dense.
            cu_seqlens_k: offsets of packed keys; None: those of the queries.
            k: keys, whose number is counted if they are dense; None: it is `max_seqlen_k`.
        """
        cu_seqlens_k = cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
        keys = None if k is None or cu_seqlens_q is not None else rows_in(k, 1)
        return self._replace(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, keys=keys)

    def reach(self) -> dict[str, int]:
        """Kernel arguments: the bounds of the mask; 0 for one that the flags leave out."""
        return {"left": self.left or 0, "right": self.right or 0}


def problem_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
) -> Problem:
    """The problem of these tensors, checked without reading their values.

    Args:
        q: [B, Sq, H, D], or packed [Tq, H, D].
        k: [B, Sk, G, D], or packed [Tk, G, D].
        v: [B, Sk, G, Dv], or packed [Tk, G, Dv].
        causal: hide keys after a query's own position, aligned bottom-right: the last query sees the last key.
        window: how many keys before and after that position a query sees, -1: unbounded.
        scale: factor of the scores; None: 1 / sqrt(D).
        cu_seqlens_q: int32 [B + 1] if packed.
        cu_seqlens_k: the same for keys; None: cu_seqlens_q.
        max_seqlen_q: upper bound of the queries of a sequence, required if packed.
        max_seqlen_k: the same for keys; None: max_seqlen_q.

    Raises:
        ValueError: naming the argument, its value and what is accepted.
    """
    packed = cu_seqlens_q is not None
    if packed:
        cu_seqlens_k = cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
        max_seqlen_k = max_seqlen_q if max_seqlen_k is None else max_seqlen_k
    else:
        for name, value in (
            ("cu_seqlens_k", cu_seqlens_k),
            ("max_seqlen_q", max_seqlen_q),
            ("max_seqlen_k", max_seqlen_k),
        ):
            if value is not None:
                raise _wrong(
                    name, "given", "is passed without cu_seqlens_q", "None, or packed tensors with cu_seqlens_q"
                )
    _check_tensors(q, k, v, 3 if packed else 4)
    _check_offsets(q, cu_seqlens_q, cu_seqlens_k)
    for name, value in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        if packed and (not is_whole(value) or value < 0):
            raise _wrong(name, repr(value), "cannot be used", "a Python int from 0")
    scale = _scale(q, scale)
    assert not packed or (max_seqlen_q is not None and max_seqlen_k is not None)
    # A sequence has at most all rows, whatever bound the caller passes.
    longest_q = q.shape[1] if max_seqlen_q is None else min(max_seqlen_q, q.shape[0])
    longest_k = k.shape[1] if max_seqlen_k is None else min(max_seqlen_k, k.shape[0])
    left, right = _reach(causal, window, longest_q, longest_k)
    batch = cu_seqlens_q.shape[0] - 1 if cu_seqlens_q is not None else q.shape[0]
    fault = extent_fault({"q": q, "k": k, "v": v}, batch, max(longest_q, longest_k))
    if fault:
        raise _wrong(*fault)
    return Problem(
        batch=batch,
        max_seqlen_q=longest_q,
        max_seqlen_k=longest_k,
        scale=scale,
        left=left,
        right=right,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
    )


def bound_of_keys(k: Tensor) -> int | None:
    """Bound of the keys of dense sequences by which their calls are kept; None: of what is refused.

    It is a multiple of BOUND_ROWS, but where that would be another default order than for the keys themselves.
    """
    try:
        keys: int = k.shape[1]
    except (AttributeError, IndexError, RuntimeError):  # the last of a nested tensor
        return None
    bound = -(-keys // BOUND_ROWS) * BOUND_ROWS
    return min(bound, LEAST_KEYS - 1) if keys < LEAST_KEYS else bound


def bounds_of(q: Tensor, k: Tensor, max_seqlen_q: Any, max_seqlen_k: Any) -> tuple[Any, Any]:
    """Upper bounds of a sequence's queries and keys, for the key of a packed call: rounded up, at most the total rows.

    Any bound that is not too small gives the same result, because kernels read the lengths from the offsets.  Bounds that
    will be refused are returned unchanged.
    """
    max_seqlen_k = max_seqlen_q if max_seqlen_k is None else max_seqlen_k
    if type(max_seqlen_q) is not int or type(max_seqlen_k) is not int:
        return max_seqlen_q, max_seqlen_k
    try:
        most_q, most_k = min(max_seqlen_q, q.shape[0]), min(max_seqlen_k, k.shape[0])
    except (AttributeError, IndexError, RuntimeError):
        return max_seqlen_q, max_seqlen_k
    return (
        most_q if most_q <= BOUND_ROWS else -(-most_q // BOUND_ROWS) * BOUND_ROWS,
        most_k if most_k <= BOUND_ROWS else -(-most_k // BOUND_ROWS) * BOUND_ROWS,
    )


def bounded(problem: Problem, bounds: tuple[int, int], *, causal: bool, window: tuple[int, int] | None) -> Problem:
    """The same problem with the bounds of `bounds_of`, if dense of `bound_of_keys`, valid for all lengths with these bounds.

    Args:
        problem: checked.
        bounds: of the queries (if dense: their number) and keys of a sequence.
        causal: as passed by the caller.
        window: the same.
    """
    max_seqlen_q, max_seqlen_k = bounds
    left, right = _reach(causal, window, max_seqlen_q, max_seqlen_k)
    return problem._replace(max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, left=left, right=right)


def lse_shape(q: Tensor, problem: Problem) -> tuple[int, int, int]:
    """[B, H, Sq], or packed [1, H, Tq]: shape of lse, fp32 and contiguous."""
    return lse_extents(q, packed=problem.packed)


def lse_extents(q: Tensor, *, packed: bool) -> tuple[int, int, int]:
    """The same without a problem."""
    if packed:
        return 1, q.shape[1], q.shape[0]
    return q.shape[0], q.shape[2], q.shape[1]


def like(x: Tensor) -> tuple[SupportsIndex, ...]:
    """Shape of a tensor, with its number of rows as a `RowCount`."""
    return *x.shape[:-3], rows_in(x, x.dim() - 3), *x.shape[-2:]


def results_of(q: Tensor, dim_v: int, problem: Problem) -> tuple[Tensor, Tensor]:
    """Allocate the output and lse."""
    out = empty((*like(q)[:-1], dim_v), q)
    return out, empty((1, q.shape[1], rows_in(q)) if problem.packed else lse_shape(q, problem), q, torch.float32)


def lse_strides(lse: Tensor, problem: Problem) -> dict[str, int | RowCount]:
    """Kernel arguments: elements from one sequence and head of lse to the next; if packed these depend on the rows."""
    batch, head, _ = strides_in(lse, 2) if problem.packed else lse.stride()
    return {"lse_batch": batch, "lse_head": head}


def strides_of(x: Tensor) -> Strides:
    """Strides of a tensor; 0 between packed sequences, whose place `sequence` computes."""
    return Strides(0, *x.stride()[:2]) if x.dim() == 3 else Strides(*strides_in(x, 1)[:3])


def blocks_of(dim: int, dim_v: int) -> dict[str, Any]:
    """Dims and tile columns, as compile-time constants."""
    return {"DIM": dim, "DIM_V": dim_v, "BLOCK_D": block_of(dim), "BLOCK_V": block_of(dim_v)}


def takes_tma(x: Tensor) -> bool:
    """Whether TMA (sm_90 and later) can read the tensor with its strides."""
    if (capability_of(x) or (9, 0)) < (9, 0):
        return False
    item = x.element_size()
    return (
        x.numel() > 0
        and x.data_ptr() % 16 == 0
        and x.stride(-1) == 1
        and all(int(stride) * item % 16 == 0 and int(stride) for stride in strides_in(x, x.dim() - 3)[:-1])
    )


def descriptor(x: Tensor, rows: int, columns: int) -> Any:
    """A TMA descriptor of [sequences, rows, heads, dims]; packed: of one sequence.

    A tile is [1, rows, 1, columns]; outside the tensor it is 0, which ends a dense sequence but not a packed one.
    """
    from triton.tools.tensor_descriptor import TensorDescriptor

    shape, strides = list(x.shape), list(x.stride())
    if x.dim() == 3:
        # Of x itself, not of a view: a cached call identifies tensors by identity.
        found = descriptor_of(
            TensorDescriptor, x, [1, *shape], [shape[0] * strides[0], *strides], [1, rows, 1, columns]
        )
        return describes(found, shape={1: rows_in(x)}, strides={0: rows_in(x) * strides[0]})
    counted = {axis: one for axis, one in enumerate(strides_in(x, 1)) if isinstance(one, RowCount)}
    strides = list(map(int, strides_in(x, 1)))
    found = descriptor_of(TensorDescriptor, x, shape, strides, [1, rows, 1, columns])
    return describes(found, shape={1: rows_in(x, 1)}, strides=counted)


def check_device(q: Tensor, *, compiled: bool) -> None:
    """Refuse CPU tensors where the kernels are compiled, not interpreted.

    Raises:
        ValueError: naming the device and what is accepted.
    """
    if compiled and not takes_compiled(q):
        raise _wrong("q.device", q.device, "has no compiled kernels", "a CUDA device")


def check_values(problem: Problem, q: Tensor, k: Tensor) -> None:
    """Refuse offsets that would read or write outside the tensors; synchronizes with the device.

    Raises:
        ValueError: naming the argument, its value and what is accepted.
    """
    for name, offsets, rows, most in (
        ("q", problem.cu_seqlens_q, q.shape[0], problem.max_seqlen_q),
        ("k", problem.cu_seqlens_k, k.shape[0], problem.max_seqlen_k),
    ):
        if offsets is None or offsets.is_meta:  # a tensor without values is only compiled for
            continue
        values = offsets.tolist()
        lengths = [after - before for before, after in pairwise(values)]
        if values[0] != 0:
            raise _wrong(f"cu_seqlens_{name}[0]", values[0], "is not the start", "0")
        if min(lengths, default=0) < 0:
            at = next(i for i, length in enumerate(lengths) if length < 0)
            raise _wrong(
                f"cu_seqlens_{name}[{at + 1}]",
                values[at + 1],
                f"falls from {values[at]}",
                "offsets that never decrease",
            )
        if max(lengths, default=0) > most:
            raise _wrong(f"max_seqlen_{name}", most, "is below the rows of a sequence", f"at least {max(lengths)}")
        if values[-1] != rows:
            raise _wrong(
                f"cu_seqlens_{name}[{len(lengths)}]", values[-1], f"is not the end of {name}", f"its {rows} rows"
            )


def _check_tensors(q: Tensor, k: Tensor, v: Tensor, dims: int) -> None:
    layout = "[sequences, rows, heads, dims], or packed [rows, heads, dims] with cu_seqlens_q"
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise _wrong(name, type(x).__name__, "is no tensor", layout)
        if x.dim() != dims:
            raise _wrong(f"{name}.shape", tuple(x.shape), "does not fit", layout)
        if x.dtype not in DTYPES:
            raise _wrong(f"{name}.dtype", x.dtype, "is not supported", "bfloat16, float16 or float32")
        if not 1 <= x.shape[-1] <= LARGEST_DIM:
            raise _wrong(f"{name}.shape", tuple(x.shape), "has too many dims or none", f"1 to {LARGEST_DIM} dims")
        if x.stride(-1) != 1 and x.shape[-1] > 1:
            raise _wrong(f"{name}.stride", x.stride(), "has gaps in the last dim", "a last stride of 1")
    for name, x in (("k", k), ("v", v)):
        _same(f"{name}.dtype", x.dtype, q.dtype, "q's")
        _same(f"{name}.device", x.device, q.device, "q's")
    _same("k.shape[-1]", k.shape[-1], q.shape[-1], "q's dims")
    _same("v.shape", tuple(v.shape[:-1]), tuple(k.shape[:-1]), "k's rows and heads")
    if dims == 4:
        _same("k.shape[0]", k.shape[0], q.shape[0], "q's sequences")
    heads, heads_kv = q.shape[-2], k.shape[-2]
    if heads_kv == 0 or heads % heads_kv:
        raise _wrong("k.shape[-2]", heads_kv, f"does not divide the {heads} heads of q", f"a divisor of {heads}")


def _check_offsets(q: Tensor, cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None) -> None:
    for name, x in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if x is None:
            continue
        if not isinstance(x, Tensor):
            raise _wrong(name, type(x).__name__, "is no tensor", "int32 [sequences + 1], contiguous")
        if x.dtype != torch.int32 or x.dim() != 1 or x.shape[0] < 1 or not x.is_contiguous():
            raise _wrong(name, f"{x.dtype} {tuple(x.shape)}", "does not fit", "int32 [sequences + 1], contiguous")
        _same(f"{name}.device", x.device, q.device, "q's")
    if cu_seqlens_q is not None and cu_seqlens_k is not None:
        _same("cu_seqlens_k.shape", tuple(cu_seqlens_k.shape), tuple(cu_seqlens_q.shape), "cu_seqlens_q's")


def _scale(q: Tensor, scale: float | None) -> float:
    scale = as_float(scale)
    if scale is None:
        scale = q.shape[-1] ** -0.5
    elif not isinstance(scale, float):
        raise _wrong("scale", repr(scale)[:40], "is no number", "a finite number over 0, or None")
    if not 0 < scale < math.inf:
        raise _wrong("scale", scale, "cannot be used", "a finite number over 0")
    if not LEAST_SCALE <= scale <= LARGEST_FACTOR:
        raise _wrong("scale", scale, "is out of range", f"from {LEAST_SCALE} to {LARGEST_FACTOR}")
    return scale


def _reach(
    causal: bool, window: tuple[int, int] | None, longest_q: int, longest_k: int
) -> tuple[int | None, int | None]:
    """Bounds of the mask, at most the length of the longest sequence.

    Kernels add the bounds to row numbers in 32 bits.  A window as wide as the sequence hides nothing, so a wider one is the
    same.  It stays a bound and does not become None: whether there is a bound is compiled into a kernel, and lengths should
    need no recompilation.
    """
    is_window = (
        isinstance(window, tuple | list) and len(window) == 2 and all(is_whole(one) and one >= -1 for one in window)
    )
    if window is not None and not is_window:
        shown = tuple(window) if isinstance(window, list) else window  # as it was before PyTorch made it a list
        raise _wrong("window", shown, "is not a window", "(left, right) in keys from 0, -1 for unbounded, or None")
    left, right = (None if bound < 0 else bound for bound in window or (-1, -1))
    left = None if left is None else min(left, longest_k)
    if causal:
        return left, 0
    return left, None if right is None else min(right, longest_q)


def _same(name: str, value: object, wanted: object, whose: str) -> None:
    if value != wanted:
        raise _wrong(name, value, "does not fit", f"{wanted}, {whose}")


def _wrong(name: str, value: object, wrong: str, accepted: str) -> ValueError:
    return ValueError(f"{WHO}: {name}={value} {wrong}; {accepted}")
