"""What only a card can show of block-sparse attention in 8 bits: tensor cores' roundings, every block, graphs, bits."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from attnbench.backends.base import Machine
from attnbench.backends.registry import resolve
from attnbench.check.examine import examine
from attnbench.check.reference import References
from attnbench.kernels.flash.quant.api import flash_quant_attention
from attnbench.kernels.flash.sparse.problem import BLOCKS
from attnbench.kernels.flash.sparse_quant.api import flash_sparse_quant_attention
from attnbench.kernels.flash.sparse_quant.config import Shape, SparseQuantConfig, default_config
from attnbench.workloads.sparse import WORKLOAD
from attnbench.workloads.sparse.inputs import make_inputs

from .quant_cases import distance, held, inputs_of, recipe_of, truth_of

pytestmark = pytest.mark.gpu
LENGTHS = ((1, 63), (127, 1000), (1000, 129), (2100, 4100))
FORMS = {
    (64, (128, 128)): ("m128n128w8s3-ws", "m64n128w4s3-ws-beside-x2", "m64n64w4s3"),
    (128, (128, 128)): ("m128n128w8s4-ws-beside", "m64n128w4s2-ws-beside-x2", "m128n64w8s3"),
    (128, (64, 64)): ("m64n64w4s4-ws-beside-x2", "m64n64w4s4-ws-x2"),
    (64, (64, 64)): ("m64n64w4s4-ws-x3",),
}


def attend(inputs, config=None):
    return flash_sparse_quant_attention(
        inputs.q, inputs.k, inputs.v, inputs.block_map, block=inputs.block, causal=inputs.causal, config=config
    )


def order_of(inputs, short=None):
    """In which order a configuration, or the default, goes through the listed keys."""
    rows, keys = inputs.block
    card = torch.cuda.get_device_capability()
    shape = Shape(dim=inputs.q.shape[-1], block_q=rows, block_k=keys, capability=card)
    config = SparseQuantConfig.parse(short) if short else default_config(shape)
    return {"tile": config.block_n, "backwards": config.order == "ws"}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 96, 128])
@pytest.mark.parametrize("block", BLOCKS)
def test_the_default_is_the_recipe_at_every_length(block, dim, causal):
    for (queries, keys), density in product(LENGTHS, (0.2, 1.0)):
        inputs = inputs_of(
            queries,
            keys,
            batch=2,
            heads=4,
            heads_kv=2,
            dim=dim,
            block=block,
            density=density,
            causal=causal,
            dtype=torch.float16 if dim == 96 else torch.bfloat16,
            device="cuda",
        )
        held(inputs, *attend(inputs), **order_of(inputs))


@pytest.mark.hopper
@pytest.mark.parametrize("dim_block", FORMS, ids=str)
def test_other_forms_are_the_recipe_and_have_the_same_bits_in_every_call(dim_block):
    dim, block = dim_block
    for short, causal in product(FORMS[dim_block], (False, True)):
        inputs = inputs_of(
            2000, 2100, heads=4, heads_kv=2, dim=dim, block=block, density=0.3, causal=causal, device="cuda"
        )
        first, lse = attend(inputs, short)
        held(inputs, first, lse, **order_of(inputs, short))
        differ = sum((attend(inputs, short)[0] != first).any().int() for _ in range(50))
        assert differ.item() == 0, short


@pytest.mark.parametrize("causal", [False, True])
def test_a_full_map_is_the_dense_kernel_up_to_roundings(causal):
    inputs = inputs_of(2000, heads=4, dim=128, block=(128, 128), density=1.0, causal=causal, device="cuda")
    want, lse = flash_quant_attention(inputs.q, inputs.k, inputs.v, causal=causal)
    found, sums = attend(inputs)
    assert distance(found, want.double()) < 0.006
    torch.testing.assert_close(sums, lse, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("kind", ["normal", "outliers", "channel-bias", "video"])
def test_the_error_at_4096_rows_is_the_recipes(kind, dim):
    inputs = inputs_of(4096, heads=2, dim=dim, kind=kind, block=(128, 128), density=0.3, device="cuda")
    out, _ = attend(inputs)
    want, right = recipe_of(inputs, **order_of(inputs))[0], truth_of(inputs)[0]
    found, least = distance(out, right), distance(want, right)
    print(f"{kind} {dim}: {found:.5f}, recipe {least:.5f}")
    assert found <= 1.1 * least + 0.001  # of the output's own rounding


def test_a_call_is_captured_in_a_graph_lists_and_all():
    inputs = inputs_of(1000, heads=4, dim=128, block=(128, 128), density=0.4, causal=True, device="cuda")
    want, _ = attend(inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = attend(inputs)
    out.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, want)


@pytest.mark.parametrize("selector", ["flash-sparse-quant", "flash-sparse-quant[topk0.3]"])
@pytest.mark.parametrize("block", ["128x128", "64x64"])
def test_right_through_the_seam(block, selector):
    case = WORKLOAD.case(
        {
            "batch": 2,
            "seqlen": 1000,
            "nheads": 4,
            "nheads_kv": 2,
            "headdim": 128,
            "dtype": "bf16",
            "block": block,
            "pattern": "random-uneven",
            "density": 0.3,
            "causal": True,
        }
    )
    backend = resolve(selector, case)
    backend.check(case, Machine("cuda", torch.cuda.get_device_capability()))
    inputs = [make_inputs(case, seed=seed, kind="normal", device="cuda") for seed in (1, 2)]
    variant = backend.variant_of(case)
    with backend.session(case, inputs[0]) as launch:
        outcome = examine(launch, References(WORKLOAD, case, *inputs), variant=variant, budget=backend.budget(case))
    assert outcome.ok, outcome.reason
