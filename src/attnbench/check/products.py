"""Operators of torch that a call dispatches and that compute rather than copy."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PRODUCTS = re.compile(
    r"(^|_)(mm|bmm|addmm|baddbmm|addbmm|matmul|mv|addmv|einsum|linear|convolution|conv\dd|softmax|"
    r"attention|flash|mha)(_|$)"
)
"""Parts of names of operators that multiply matrices or compute attention; copies, casts and scaling have none."""


@contextmanager
def products() -> Iterator[set[str]]:
    """Collect the names of such operators while the block runs.

    Work outside torch's dispatcher is not seen: kernels launched directly, NumPy.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    found: set[str] = set()

    def collect(mode: TorchDispatchMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if PRODUCTS.search(name):
            found.add(name)
        return func(*args, **(kwargs or {}))

    class Collect(TorchDispatchMode):
        pass

    # A method defined in the class body would be wrapped by torch so that torch.compile does not trace it, which
    # imports all of torch._dynamo at the first call: half the start-up time of a worker on a CPU.
    Collect.__torch_dispatch__ = torch._disable_dynamo(collect) if "torch._dynamo" in sys.modules else collect
    with Collect():
        yield found
