"""q, k and v captured from a model: a ``.safetensors`` file with tensors of these names in the workload's layout."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.errors import UsageError, refusal
from attnbench.workloads.given_files import path_of

NAMES = ("q", "k", "v")


def read_captured(name: str, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype) -> dict[str, Tensor]:
    """Read q, k and v, on the CPU and in the case's precision.

    Args:
        name: of the file, as returned by `given_files.known_as`.
        shapes: of q, k and v.
        dtype: of the case.

    Raises:
        UsageError: the file does not exist or cannot be read; a tensor is missing, has another shape, is not floating,
            is not finite in the case's precision, or has rows that are all 0.
    """
    path = path_of("attention", "input", name)
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise _wrong(name, "needs the package safetensors", "pip install safetensors") from None
    try:
        with safe_open(str(path), framework="pt") as file:
            there = set(file.keys())
            if missing := [one for one in NAMES if one not in there]:
                raise _wrong(name, f"has no tensor {missing[0]}", f"tensors {', '.join(NAMES)}")
            return {one: _checked(name, one, file.get_tensor(one), shapes[one], dtype) for one in NAMES}
    except (SafetensorError, OSError, ValueError) as error:
        raise _wrong(name, f"cannot be read ({type(error).__name__})", "a .safetensors file") from None


def _checked(name: str, one: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if tuple(tensor.shape) != shape:
        raise _wrong(name, f"has {one} of shape {list(tensor.shape)}", f"{list(shape)}")
    if not tensor.is_floating_point():
        raise _wrong(name, f"has {one} of dtype {str(tensor.dtype).removeprefix('torch.')}", "a floating dtype")
    found = tensor.to(dtype)
    if bad := int((~found.isfinite()).sum()):
        raise _wrong(
            name, f"has {bad} elements of {one} that are NaN or infinite in the case's precision", "finite values"
        )
    if empty := int((found == 0).all(-1).sum()):
        raise _wrong(name, f"has {empty} rows of {one} that are all 0", "rows with a value other than 0")
    return found.contiguous()


def _wrong(name: str, wrong: str, accepted: str) -> UsageError:
    return UsageError(refusal("attention", "input", name, wrong, accepted))
