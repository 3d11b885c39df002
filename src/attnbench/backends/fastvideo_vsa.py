"""``fastvideo-vsa``: FastVideo's video sparse attention over a given map of 64x64 blocks, without its coarse branch.

``[tk]``, the default, is the ThunderKittens kernel for Hopper, ``[triton]`` the portable one.  Each is called by its
own operator, because the library's entry point silently falls back from one to the other.  The wheels contain a copy
of the driver's libcuda under another name.  If that copy is loaded, or deleted without a link to the system's, the
compiled module cannot be imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Config, Launch, Machine
from attnbench.backends.sparse import SparseBackend, SparseLimits, lists_of, native_block
from attnbench.errors import Unavailable, Unsupported, refusal

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.sparse.case import SparseCase
    from attnbench.workloads.sparse.inputs import SparseInputs

INSTALL = (
    "pip install --no-deps fastvideo-kernel==0.3.2, then put a link to the system's libcuda.so.1 in the place "
    "of fastvideo_kernel.libs/libcuda-*"
)
COMPILED = "fastvideo_kernel._C.fastvideo_kernel_ops"
DEFAULT = "tk"


class FastVideoVsa(SparseBackend):
    """Forward only; no causal mask; a row without a block is refused, because the kernel would compute one."""

    name = "fastvideo-vsa"
    title = "FastVideo VSA"
    tested = "NVIDIA H200, torch 2.11"
    install = INSTALL
    module = "fastvideo_kernel.block_sparse_attn"
    distribution = "fastvideo-kernel"
    compiles = True
    default = DEFAULT
    limits = SparseLimits(dtypes=("bf16",), headdims=(64, 128), blocks=("64x64",), capability=(8, 0))

    def configs(self, case: SparseCase) -> Iterable[Config]:
        """Return the two kernels."""
        return Config("tk"), Config("triton")

    @property
    def kernel(self) -> str:
        """The kernel that is called."""
        return self.own or DEFAULT

    def check(self, case: SparseCase, machine: Machine) -> None:
        """Refuse cases that the kernel does not support.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        if self.kernel == "tk" and machine.capability and machine.capability != (9, 0):
            raise Unsupported(refusal(self.name, "config", "tk", "runs on compute capability 9.0", "triton"))

    @contextmanager
    def session(self, case: SparseCase, inputs: SparseInputs) -> Iterator[Launch]:
        """Use tensors [B, H, S, D], padded to whole blocks; padding keys are hidden by the sizes of blocks."""
        import torch

        importlib.import_module("fastvideo_kernel.block_sparse_attn")  # defines the operators
        if self.kernel == "tk":
            compiled(self.name, "block_sparse_fwd")
        name = "block_sparse_attn_sm90" if self.kernel == "tk" else "block_sparse_attn_triton"
        operator = getattr(torch.ops.fastvideo_kernel, name)
        shape = native_block(case, self.limits.blocks)
        columns = -(-case.seqlen_k // shape[1])
        sizes = torch.full((columns,), shape[1], dtype=torch.int32, device=inputs.q.device)
        sizes[-1] = case.seqlen_k - shape[1] * (len(sizes) - 1)
        made: dict[str, Tensor] = {}

        def convert(blocks: Tensor) -> None:
            made.update(lists_of(blocks))

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out: Tensor = operator(q, k, v, made["indices"], made["counts"], sizes)[0]
            return out

        yield self.launch(case, inputs, attend, convert=convert, multiple=shape, notes=(f"kernel {name}",))


def compiled(who: str, function: str) -> Any:
    """Return a function of the library's compiled module.

    Raises:
        Unavailable: the module cannot be imported or lacks it; the library would silently use another kernel.
    """
    try:
        found = getattr(importlib.import_module(COMPILED), function, None)
        wrong = f"has no {function}"
    except ImportError as why:
        found, wrong = None, f"does not import ({' '.join(str(why).split())[:120]})"
    if found is None:
        raise Unavailable(refusal(who, "module", COMPILED, wrong, "its compiled kernels", INSTALL))
    return found
