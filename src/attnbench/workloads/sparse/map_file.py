"""A block map from a file: ``.npy``, or ``.safetensors`` with a single tensor or one named ``block_map``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnbench.errors import UsageError, refusal
from attnbench.workloads.given_files import path_of

if TYPE_CHECKING:
    import numpy as np

NAME = "block_map"
DTYPES = ("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64")
"Names of bool and integer types in a safetensors file."


def read_map(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Read and check a map.

    Args:
        name: of the file, as returned by `given_files.known_as`.
        shape: (batch, query heads, rows, columns of blocks).

    Raises:
        UsageError: it does not exist, cannot be read, or has another shape, another type or values other than 0 and 1.
    """
    import numpy as np

    path = path_of("sparse", "pattern", name)
    try:
        found = np.load(path, allow_pickle=False) if path.suffix == ".npy" else _tensor(str(path), name)
    except UsageError:
        raise
    except Exception as error:  # numpy's reader raises whatever a damaged header causes: MemoryError, TokenError …
        raise _wrong(name, f"cannot be read ({type(error).__name__})", "a .npy or .safetensors file") from None
    if not isinstance(found, np.ndarray):
        raise _wrong(name, "holds no array", "a .npy or .safetensors file")
    if found.shape != shape:
        raise _wrong(
            name, f"has shape={list(found.shape)}", f"{list(shape)}: batch, query heads, ⌈Sq/block⌉, ⌈Sk/block⌉"
        )
    if found.dtype != bool:
        if found.dtype.kind not in "iu":
            raise _wrong(name, f"has dtype={found.dtype}", "bool, or whole numbers 0 and 1")
        if not np.isin(found, (0, 1)).all():
            raise _wrong(name, "has values other than 0 and 1", "0 and 1")
    return found.astype(bool)


def _tensor(path: str, name: str) -> Any:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise _wrong(name, "needs the package safetensors", "a .npy file", "pip install safetensors") from None
    try:
        with safe_open(path, framework="numpy") as file:
            names = sorted(file.keys())
            if NAME not in names and len(names) != 1:
                raise _wrong(name, f"holds {', '.join(names) or 'nothing'}", f"one tensor, or one called {NAME}")
            # numpy does not support the other types of such files, and the file may also contain captured tensors.
            tensor = file.get_slice(NAME if NAME in names else names[0])
            if (dtype := tensor.get_dtype()) not in DTYPES:
                raise _wrong(name, f"has dtype={dtype}", "bool, or whole numbers 0 and 1")
            return file.get_tensor(NAME if NAME in names else names[0])
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def _wrong(name: str, wrong: str, accepted: str, todo: str = "") -> UsageError:
    return UsageError(refusal("sparse", "pattern", name, wrong, accepted, todo))
