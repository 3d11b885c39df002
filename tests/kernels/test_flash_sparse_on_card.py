"""What only a card can show of block-sparse attention: tensor maps, every block, graphs, the same bits in each call."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from attnbench.backends.base import Machine
from attnbench.backends.predict import Predictor
from attnbench.backends.registry import resolve
from attnbench.check.examine import examine
from attnbench.check.reference import References
from attnbench.kernels.flash.api import flash_attention
from attnbench.kernels.flash.sparse.api import flash_sparse_attention, make_lists
from attnbench.kernels.flash.sparse.problem import BLOCKS
from attnbench.workloads.sparse import WORKLOAD
from attnbench.workloads.sparse.inputs import make_inputs

from .sparse_cases import held, inputs_of, truth_of

pytestmark = pytest.mark.gpu
LENGTHS = ((1, 63), (127, 1000), (1000, 129), (1000, 1000), (2100, 4100))
FORMS = {
    (64, (128, 128)): ("m192n128w12s4-ws-lazy", "m256n64w16s6-ws-lazy", "m128n128w8s3-ws"),
    (128, (128, 128)): ("m128n128w8s2-ws-deep-lazy", "m64n64w4s3-ws-x2", "m128n128w8s2-ws-lazy-double"),
    (64, (64, 64)): ("m64n128w4s2-ws-lazy-x2", "m64n128w4s5-ws-joint-lazy-x2"),
    (64, (128, 64)): ("m128n128w8s4-ws-lazy", "m64n128w4s2-ws-lazy-x2"),
    (128, (64, 64)): (
        "m192n64w12s5-ws-lazy",
        "m128n64w8s6-ws-lazy",
        "m64n64w4s3-ws-lazy-double-x2",
        "m64n128w4s3-ws-joint-lazy-x2",
        "m64n64w4s6-ws-joint-lazy-x2",
        "m64n64w4s3-ws-lazy-rs-x2",
        "m64n128w4s3-ws-joint-lazy-rs-x2",
    ),
    (128, (64, 128)): ("m192n64w12s5-ws-lazy",),
    (128, (128, 64)): ("m192n64w12s5-ws-lazy", "m128n64w8s4-ws-lazy", "m128n128w8s2-ws-deep-lazy"),
}


def attend(inputs, config=None):
    return flash_sparse_attention(
        inputs.q, inputs.k, inputs.v, inputs.block_map, block=inputs.block, causal=inputs.causal, config=config
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 96, 128])
@pytest.mark.parametrize("block", BLOCKS)
def test_the_default_is_right_at_every_length(block, dim, causal):
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
        held(inputs, *attend(inputs))


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("block", [(64, 64), (128, 128)])
def test_a_video_of_17776_rows_is_right(block, dim):
    """The oracle keeps some 10 GiB of scores."""
    for causal in (False, True):
        inputs = inputs_of(17_776, dim=dim, block=block, density=0.2, causal=causal, device="cuda")
        (out, lse), (want, want_lse) = attend(inputs), truth_of(inputs)
        # By the row: the more keys a row sees, the smaller its output.
        assert ((out - want).abs().sum(-1) <= 2**-6 * want.abs().sum(-1)).all()
        torch.testing.assert_close(lse.double(), want_lse, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("dim", [24, 100])
def test_the_portable_path_is_right_where_tensor_maps_are_not_enough(dim):
    inputs = inputs_of(1000, batch=2, heads=2, dim=dim, block=(64, 128), causal=True, device="cuda")
    held(inputs, *attend(inputs))


@pytest.mark.hopper
@pytest.mark.parametrize("dim_block", FORMS, ids=str)
def test_every_form_of_the_hopper_path_is_right_and_has_the_same_bits_in_every_call(dim_block):
    dim, block = dim_block
    for short, causal in product(FORMS[dim_block], (False, True)):
        inputs = inputs_of(
            4000, 4100, heads=8, heads_kv=4, dim=dim, block=block, density=0.3, causal=causal, device="cuda"
        )
        first, lse = attend(inputs, short)
        held(inputs, first, lse)
        differ = sum((attend(inputs, short)[0] != first).any().int() for _ in range(50))
        assert differ.item() == 0, short


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
def test_a_full_map_is_dense_attention(dim, causal):
    inputs = inputs_of(2000, heads=4, dim=dim, block=(128, 128), density=1.0, causal=causal, device="cuda")
    want, lse = flash_attention(inputs.q, inputs.k, inputs.v, causal=causal)
    found = attend(inputs)
    torch.testing.assert_close(found[0], want, rtol=2**-6, atol=2**-7)
    torch.testing.assert_close(found[1], lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("block", "short"),
    [
        *((block, None) for block in BLOCKS),
        pytest.param((64, 64), "m64n128w4s3-ws-joint-lazy-x2", marks=pytest.mark.hopper),
        pytest.param((64, 64), "m64n64w4s3-ws-lazy-rs-x2", marks=pytest.mark.hopper),
        pytest.param((128, 64), "m128n128w8s2-ws-deep-lazy", marks=pytest.mark.hopper),
    ],
)
def test_values_of_blocks_that_a_row_does_not_list_change_nothing(block, short):
    inputs = inputs_of(1000, heads=2, dim=128, block=block, density=1.0, device="cuda")
    inputs.block_map[:, :, 0, 2] = False
    out, lse = attend(inputs, short)
    poison = replace(inputs, k=inputs.k.clone(), v=inputs.v.clone())
    where = slice(2 * block[1], 3 * block[1])
    poison.k[:, where], poison.v[:, where] = torch.nan, torch.nan
    found, sums = attend(poison, short)
    assert torch.equal(found[:, : block[0]], out[:, : block[0]])
    assert torch.equal(sums[:, :, : block[0]], lse[:, :, : block[0]])


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


def test_lists_serve_many_calls():
    inputs = inputs_of(1000, heads=4, dim=128, block=(64, 64), causal=True, device="cuda")
    lists = make_lists(inputs.block_map, inputs.q, inputs.k, block=(64, 64), causal=True)
    assert torch.equal(attend(replace(inputs, block_map=lists))[0], attend(inputs)[0])


@pytest.mark.parametrize("block", ["128x128", "64x64"])
def test_right_through_the_seam(block):
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
    backend = resolve("flash-sparse", case)
    backend.check(case, Machine("cuda", torch.cuda.get_device_capability()))
    inputs = [make_inputs(case, seed=seed, kind="normal", device="cuda") for seed in (1, 2)]
    with backend.session(case, inputs[0]) as launch:
        outcome = examine(launch, References(WORKLOAD, case, *inputs), variant="given", budget=backend.budget(case))
    assert outcome.ok, outcome.reason


WHOLE = (("64x64", 4096, 4096), ("128x128", 2064, 5008))
"Lengths of whole strides, which the kernel for Hopper multiplies."


@pytest.mark.parametrize("text", ["topk0.3", "cdf0.5", "sub0.5", "anti0.5", "cdf0.4-sim0.009", "topk0.1-sim0.0085"])
@pytest.mark.parametrize("causal", [False, True])
def test_predicted_maps_are_those_of_torch(text, causal):
    """Scores are rounded differently: a few blocks at the threshold may differ."""
    for block, queries, keys in (("64x64", 4200, 4200), ("128x128", 4100, 5000), ("128x64", 130, 9000), *WHOLE):
        case = WORKLOAD.case(
            {
                "batch": 2,
                "nheads": 4,
                "nheads_kv": 2,
                "headdim": 128,
                "dtype": "bf16",
                "pattern": "full",
                "block": block,
            }
            | {"seqlen": queries, "seqlen_k": keys, "causal": causal}
        )
        inputs = make_inputs(case, seed=1, kind="normal", device="cuda")
        q, k = inputs.q.transpose(1, 2), inputs.k.transpose(1, 2)
        predictor = Predictor.read("who", text)
        by_kernels, by_torch = predictor.on(case, q.device)(q, k), predictor.by_torch(case, q.device)(q, k)
        different = (by_kernels != by_torch).sum() / by_torch.sum()
        assert different <= 0.002, f"{block}: {different:.4f} of the kept blocks"
        assert 0 < by_kernels.float().mean() <= 1
