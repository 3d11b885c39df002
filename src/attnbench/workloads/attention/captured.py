"""q, k and v captured from a model: a ``.safetensors`` file with tensors of these names in the workload's layout.

Imports without torch, and a plan reads shapes without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnbench.errors import UsageError, refusal
from attnbench.workloads.given_files import path_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

NAMES = ("q", "k", "v")


def read_captured(name: str, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype) -> dict[str, Tensor]:
    """Read q, k and v, on the CPU and in the case's precision.

    Args:
        name: of the file, as returned by `given_files.known_as`.
        shapes: of q, k and v.
        dtype: of the case.

    Raises:
        UsageError: the file does not exist or cannot be read; a tensor is missing, has another shape, is not floating,
            or is not finite in the case's precision.
    """
    with _opened(name, "pt") as file:
        return {one: _checked(name, one, file.get_tensor(one), shapes[one], dtype) for one in NAMES}


def axes_of(name: str) -> dict[str, int]:
    """Return the axes that a file sets: the shape of its tensors, q [B, Sq, H, D], k [B, Sk, G, D] and v [B, Sk, G, Dv].

    Raises:
        UsageError: as `read_captured`, or a tensor has another number of dimensions or no elements; k or v does not fit
            the others.
    """
    with _opened(name, "numpy") as file:
        slices = {one: file.get_slice(one) for one in NAMES}
        shapes = {one: tuple(part.get_shape()) for one, part in slices.items()}
        dtypes = {one: part.get_dtype() for one, part in slices.items()}
    for one, dtype in dtypes.items():
        if not dtype.startswith(("F", "BF")):
            raise _wrong(name, f"has {one} of dtype {dtype}", "a floating dtype")
    for one, shape in shapes.items():
        if len(shape) != 4 or 0 in shape:
            raise _wrong(name, f"has {one} of shape {list(shape)}", "[batch, rows, heads, dims], none of them 0")
    batch, seqlen, nheads, headdim = shapes["q"]
    _, seqlen_k, nheads_kv, headdim_v = shapes["v"]
    fitting = {"k": (batch, seqlen_k, nheads_kv, headdim), "v": (batch, seqlen_k, nheads_kv, headdim_v)}
    for one, shape in fitting.items():
        if shapes[one] != shape:
            raise _wrong(name, f"has {one} of shape {list(shapes[one])}", f"{list(shape)}")
    return {
        "batch": batch,
        "seqlen": seqlen,
        "seqlen_k": seqlen_k,
        "nheads": nheads,
        "nheads_kv": nheads_kv,
        "headdim": headdim,
        "headdim_v": headdim_v,
    }


def zero_rows(tensors: dict[str, Tensor]) -> tuple[str, ...]:
    """Return a note for each tensor with rows that are all 0: padding, whose scores are all equal."""
    notes = []
    for one, tensor in tensors.items():
        rows = (tensor == 0).all(-1)
        if count := int(rows.sum()):
            first = rows.nonzero()[0].tolist()
            notes.append(f"captured {one}: {count} of {rows.numel()} rows are all 0, the first at {first}")
    return tuple(notes)


@contextmanager
def _opened(name: str, framework: str) -> Iterator[Any]:
    path = path_of("attention", "input", name)
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise _wrong(name, "needs the package safetensors", "pip install safetensors") from None
    try:
        with safe_open(str(path), framework=framework) as file:
            there = set(file.keys())
            if missing := [one for one in NAMES if one not in there]:
                raise _wrong(name, f"has no tensor {missing[0]}", f"tensors {', '.join(NAMES)}")
            yield file
    except (SafetensorError, OSError, ValueError) as error:
        raise _wrong(name, f"cannot be read ({type(error).__name__})", "a .safetensors file") from None


def _checked(name: str, one: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if tuple(tensor.shape) != shape:
        raise _wrong(name, f"has {one} of shape {list(tensor.shape)}", f"{list(shape)}")
    if not tensor.is_floating_point():
        raise _wrong(name, f"has {one} of dtype {str(tensor.dtype).removeprefix('torch.')}", "a floating dtype")
    found = tensor.to(dtype)
    if bad := int((~found.isfinite()).sum()):
        first = (~found.isfinite()).nonzero()[0].tolist()
        words = f"has {bad} elements of {one} that are NaN or infinite in the case's precision, the first at {first}"
        raise _wrong(name, words, "finite values")
    return found.contiguous()


def _wrong(name: str, wrong: str, accepted: str) -> UsageError:
    return UsageError(refusal("attention", "input", name, wrong, accepted))
