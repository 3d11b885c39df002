"""A package of AOTInductor with each of our forwards in it, on the CPU: made, loaded, run on other lengths.

The package calls the operators through PyTorch's dispatcher, so that it needs a process in which they are registered.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from .interpreter import interpreted

QUICKLY = {"aot_inductor.compile_wrapper_opt_level": "O0", "aot_inductor.precompile_headers": False}
"""Of C++ that is compiled once and run twice."""
FAMILIES = "flash", "flash.sparse", "flash.quant", "hstu.dense", "hstu.bsa", "hstu.paged"


class Layers(torch.nn.Module):
    """Each attention of one sequence [n, 1, 16], one after the other."""

    def __init__(self, apis: dict[str, Any]) -> None:
        super().__init__()
        self.apis = apis

    def forward(self, q, ends, block_map, pool, table):
        apis, n, batched = self.apis, q.shape[0], q[None]
        dense = apis["flash"].flash_attention(batched, batched, batched, causal=True)[0]
        sparse = apis["flash.sparse"].flash_sparse_attention(dense, batched, batched, block_map, block=(64, 64))[0]
        half = sparse.half()
        quantised = apis["flash.quant"].flash_quant_attention(half, half, half)[0][0].float()
        jagged = apis["hstu.dense"].hstu_attention(quantised, q, q, ends, n)
        blocks = apis["hstu.bsa"].hstu_bsa_attention(jagged, q, q, ends, n, block_size=16, block_counts=2)[0]
        step = apis["hstu.paged"].Step(**table, num_targets=None, max_new=n, max_cached=40)
        return blocks, apis["hstu.paged"].hstu_paged_attention(blocks, q, q, pool, step, scaling_seqlen=64)


def inputs(n: int) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(n)
    q, pool = (torch.randn(shape, generator=generator) for shape in ((n, 1, 16), (3, 2, 32, 1, 16)))
    table = {"offsets": [0, n], "cached": [40], "indptr": [0, 2], "indices": [2, 0]}
    blocks = torch.ones(1, 1, 2, 2, dtype=torch.bool).tril()
    whole = {name: torch.tensor(values, dtype=torch.int32) for name, values in table.items()}
    return q, torch.tensor([0, n], dtype=torch.int32), blocks, pool, whole


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_a_package_holds_every_forward(tmp_path):
    with interpreted(*(f"attnbench.kernels.{name}.api" for name in FAMILIES)) as found, torch.no_grad():
        layers, given = Layers(dict(zip(FAMILIES, found, strict=True))), inputs(80)
        fixed = torch.utils._pytree.tree_map(lambda x: None, given[1:])
        length = torch.export.Dim("length", min=65, max=128)
        exported = torch.export.export(layers, given, dynamic_shapes=({0: length}, *fixed))
        path = torch._inductor.aoti_compile_and_package(
            exported, package_path=str(tmp_path / "layers.pt2"), inductor_configs=QUICKLY
        )
        package = torch._inductor.aoti_load_package(path)
        assert all(map(torch.equal, package(*inputs(70)), layers(*inputs(70))))
    code = f"import torch; torch._inductor.aoti_load_package({path!r})"
    bare = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert bare.returncode
    assert "Could not find schema for attnbench::" in bare.stderr
