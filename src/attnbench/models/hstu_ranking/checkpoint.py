"""Weights in safetensors files, read and written without a library and without running code.

The format: a little-endian length of 8 bytes, a JSON object of that length (name to dtype, shape and data_offsets, counted
from the object's end), then the data.  (https://github.com/huggingface/safetensors, README "Format".)
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnbench.errors import UsageError, refusal
from attnbench.text import shown

WHO = "checkpoint"
LARGEST_HEADER = 100_000_000
"Limit of the format."
MOST_DIMS = 8
"Of a tensor: more are no weights, and a message could not show them."
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def save(model: nn.Module, path: Path) -> None:
    """Write all weights of a model; an existing file stays intact until the new one is complete."""
    words = {dtype: word for word, dtype in DTYPES.items()}
    weights = {name: weight.detach().cpu().contiguous() for name, weight in model.state_dict().items()}
    header: dict[str, Any] = {}
    end = 0
    for name, weight in weights.items():
        start, end = end, end + weight.numel() * weight.element_size()
        header[name] = {"dtype": words[weight.dtype], "shape": list(weight.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for weight in weights.values():
            file.write(weight.reshape(-1).view(torch.uint8).numpy().data)
    partial.replace(path)


def check(model: nn.Module, path: Path) -> None:
    """Compare the header of a file with the names and shapes of a model, which may be on "meta"; no data is read.

    Raises:
        UsageError: as `load`.
    """
    _check_names(model, path, {name: part.shape for name, part in _header(path)[0].items()})


def load(model: nn.Module, path: Path) -> None:
    """Load the weights of a file into a model, in the model's precision; if the file does not match, nothing changes.

    Raises:
        UsageError: the file is missing, is not a safetensors file, is truncated, or its weights are not the model's.
    """
    found = read(path)
    _check_names(model, path, {name: tuple(tensor.shape) for name, tensor in found.items()})
    for name, weight in model.state_dict().items():
        weight.copy_(found[name])


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, on the CPU, memory-mapped and read-only.

    Raises:
        UsageError: the file is missing, is not a safetensors file, or is truncated.
    """
    parts, begin, size = _header(path)
    data = (
        torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)[begin:]
        if size > begin
        else torch.empty(0, dtype=torch.uint8)
    )
    return {name: _tensor(part, data) for name, part in parts.items()}


class _Part(NamedTuple):
    """Where a tensor is in the data of a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


def _header(path: Path) -> tuple[dict[str, _Part], int, int]:
    """The tensors by name, where their data begins, and the size of the file.

    Raises:
        UsageError: as `read`.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, LARGEST_HEADER):
                raise _no_file(path, "has no header that fits its size")
            header = json.loads(file.read(length))
    except OSError as error:
        raise _no_file(path, f"cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise _no_file(path, "has a header that is no JSON") from None
    if not isinstance(header, dict):
        raise _no_file(path, "has a header that is no object")
    header.pop("__metadata__", None)
    begin = 8 + length
    return {name: _part(path, name, entry, size - begin) for name, entry in header.items()}, begin, size


def _part(path: Path, name: str, entry: Any, size: int) -> _Part:
    try:
        dtype, shape, (start, end) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        numbers = (*shape, start, end)
        # An empty tensor says nothing about its other sizes: without a bound they may overflow.
        right = len(shape) <= MOST_DIMS and all(type(one) is int and 0 <= one <= size for one in numbers)
        fits = right and end - start == math.prod(shape) * dtype.itemsize
    except (KeyError, TypeError, ValueError):
        raise _no_file(path, f"says of {shown(name)} what is not understood") from None
    if not fits:
        raise _no_file(path, f"is cut short at {shown(name)}, or says a wrong size of it")
    return _Part(dtype, tuple(shape), start, end)


def _tensor(part: _Part, data: Tensor) -> Tensor:
    found = data[part.start : part.end]
    # Copied, because the mapped bytes are not aligned for the dtype.
    found = found.clone() if found.storage_offset() % part.dtype.itemsize else found
    return found.view(part.dtype).view(part.shape)


def _check_names(model: nn.Module, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    wanted = model.state_dict()
    for name, weight in wanted.items():
        if name not in shapes:
            raise UsageError(refusal(WHO, "file", path.name, f"has no weights {name}", "all weights of the model"))
        if shapes[name] != tuple(weight.shape):
            raise UsageError(refusal(WHO, name, list(shapes[name]), "is another model's", f"{list(weight.shape)}"))
    if extra := sorted(shapes.keys() - wanted.keys()):
        wrong = f"has weights the model has not, such as {shown(extra[0])}"
        raise UsageError(refusal(WHO, "file", path.name, wrong, "weights of the model alone"))


def _no_file(path: Path, wrong: str) -> UsageError:
    return UsageError(refusal(WHO, "file", path.name, wrong, "a safetensors file of floating-point weights"))
