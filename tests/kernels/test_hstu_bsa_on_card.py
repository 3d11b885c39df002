"""Block-sparse HSTU kernels on a card: every precision, both schedules, odd lengths, the same bits, CUDA graphs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attnbench.backends.base import Config
from attnbench.workloads.base import Draw
from attnbench.workloads.hstu import WORKLOAD, oracle_bsa
from attnbench.workloads.hstu.inputs import make_inputs

pytestmark = pytest.mark.gpu

CASES = {
    "bf16": {"dtype": "bf16"},
    "fp16": {"dtype": "fp16"},
    "fp32": {"dtype": "fp32"},
    "many": {"batch": 40, "seqlen": 300, "lengths": "zipf", "nheads": 3},
    "jagged": {"batch": 7, "lengths": "1000:0:1:31:32:33:999", "num_targets": "20:0:1:2:32:0:7", "local_window": 70},
    "cached": {"batch": 3, "lengths": "1000:6:410", "num_targets": "3:6:0", "delta_q": 50, "gates": False},
    "shared": {"selection": "shared", "num_targets": 3, "pairs": True},
    "dims": {"attn_dim": 40, "linear_dim": 200, "block_size": 16, "block_counts": 16},
    "large": {"attn_dim": 256, "linear_dim": 256, "block_size": 128, "block_counts": 3},
    "few": {"block_counts": 1, "block_size": 64},
    "narrow": {"attn_dim": 32, "linear_dim": 64, "nheads": 8},
}


def of(**values):
    return WORKLOAD.case(
        {
            "batch": 3,
            "seqlen": 1000,
            "nheads": 2,
            "attn_dim": 128,
            "linear_dim": 128,
            "dtype": "bf16",
            "mode": "fwd-bwd",
            "block_size": 32,
            "block_counts": 4,
        }
        | values
    )


def results(case, inputs, **values):
    """What the last of three calls left; the first two on other numbers."""
    from attnbench.backends.hstu_bsa_triton import HstuBsaTriton

    others = make_inputs(case, seed=9, kind="normal", device="cuda")
    with HstuBsaTriton(Config("it", values)).session(case, others) as it:
        call = it.call("fwd-bwd")
        call()
        call()
        it.reload(inputs)
        call()
        return {name: x.clone() for name, x in it.outputs().items()}


PORTABLE = {"select": None, "attend": None}


@pytest.mark.parametrize("values", [{}, PORTABLE], ids=["default", "portable"])
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_the_oracles(name, values):
    case = of(**CASES[name])
    inputs = make_inputs(case, seed=3, kind="normal", device="cuda")
    found = results(case, inputs, **values)
    blocks = found.pop("blocks")
    assert not oracle_bsa.selection_faults(case, inputs, blocks)
    truth = oracle_bsa.evaluate(case, inputs, dtype=torch.float64, draw=Draw(), blocks=blocks)
    plain = oracle_bsa.evaluate(case, inputs, dtype=inputs.q.dtype, draw=Draw(), blocks=blocks)
    for tensor, right in truth.items():
        steps = 16 if case.dtype == "fp32" else 1
        step = steps * torch.finfo(inputs.q.dtype).eps * float(right.abs().max())
        allowed = (2 if tensor == "out" else 4) * float((plain[tensor].double() - right).abs().max()) + step
        assert float((found[tensor].double() - right).abs().max()) <= allowed, tensor


@pytest.mark.parametrize("name", ["bf16", "many", "jagged", "shared"])
def test_the_same_bits_each_time_and_in_every_schedule(name):
    case = of(**CASES[name])
    inputs = make_inputs(case, seed=3, kind="normal", device="cuda")
    first = results(case, inputs)
    for values in (
        {},
        {"programs_ahead": 1},
        {"programs_ahead": 1, "spare_pairs": 0},
        {"programs_ahead": 10000},
        {"schedule": "passes", "pass_mib": 1},
        {"schedule": "passes"},
    ):
        again = results(case, inputs, **{"attend": None} | values if values else {})
        assert [x for x in first if not torch.equal(first[x], again[x])] == [], values


@pytest.mark.hopper
@pytest.mark.parametrize("name", ["bf16", "many", "jagged", "shared", "cached", "narrow"])
def test_the_kernels_for_hopper_have_the_same_bits_with_any_ring(name):
    case = of(**CASES[name])
    inputs = make_inputs(case, seed=3, kind="normal", device="cuda")
    first = results(case, inputs, attend={})
    for values in ({}, {"ring_mib": 0.0, "step_mib": 0.0}, {"ring_mib": 1.0, "step_mib": 0.1}, {"stages": 2}):
        again = results(case, inputs, attend=values)
        assert [x for x in first if not torch.equal(first[x], again[x])] == [], values


HOPPER = {"select": {}, "attend": {}}
KNOWN = [name for name in CASES if name not in ("fp32", "dims", "large", "few", "shared", "jagged", "cached")]
"Cases that both kernels for Hopper take."


@pytest.mark.hopper
@pytest.mark.parametrize("name", [*KNOWN, "jagged", "cached", "shared"])
def test_the_kernels_for_hopper_are_right(name):
    case = of(**CASES[name])
    inputs = make_inputs(case, seed=3, kind="normal", device="cuda")
    # Targets and a shared selection are the portable kernel's to rank.
    found = results(case, inputs, **HOPPER if name in KNOWN else {"attend": {}})
    blocks = found.pop("blocks")
    assert not oracle_bsa.selection_faults(case, inputs, blocks)
    truth = oracle_bsa.evaluate(case, inputs, dtype=torch.float64, draw=Draw(), blocks=blocks)["out"]
    plain = oracle_bsa.evaluate(case, inputs, dtype=inputs.q.dtype, draw=Draw(), blocks=blocks)["out"]
    step = torch.finfo(inputs.q.dtype).eps * float(truth.abs().max())
    allowed = 2 * float((plain.double() - truth).abs().max()) + step
    assert float((found["out"].double() - truth).abs().max()) <= allowed


@pytest.mark.hopper
@pytest.mark.parametrize(("nheads", "dim"), [(4, 128), (8, 64)])
def test_the_kernels_for_hopper_select_what_the_portable_one_does_at_full_size(nheads, dim):
    """Short rows and long ones, of every place in a job: the scores are the same products of the same numbers."""
    case = of(batch=1, seqlen=8192, nheads=nheads, attn_dim=dim, linear_dim=dim, gates=False)
    inputs = make_inputs(case, seed=3, kind="normal", device="cuda")
    portable, hopper = results(case, inputs, **PORTABLE), results(case, inputs, **HOPPER)
    assert torch.equal(portable["blocks"], hopper["blocks"])
    assert float((portable["out"] - hopper["out"]).abs().max()) <= 0.02 * float(portable["out"].abs().max())


SHORT_RINGS = {
    "portable-0": {"programs_ahead": 1, "spare_pairs": 0},
    "portable-1": {"programs_ahead": 1, "spare_pairs": 1},
    "hopper": {"attend": {"ring_mib": 0.0, "step_mib": 0.0}},
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.hopper] * (name == "hopper")) for name in SHORT_RINGS]
)
def test_a_short_ring_keeps_the_bits_of_many_short_sequences(name):
    """Pairs without a tile of their own hand a place in the ring on as soon as it is free, and no sooner."""
    from attnbench.backends.hstu_bsa_triton import HstuBsaTriton

    case = of(**CASES["many"] | {"batch": 200})
    inputs = make_inputs(case, seed=3, kind="normal", device="cuda")
    values = SHORT_RINGS[name]
    right = results(case, inputs, attend=None, schedule="passes")["out"]
    with HstuBsaTriton(Config("it", {"attend": None} | values)).session(case, inputs) as it:
        call = it.call("fwd")
        call()
        for turn in range(50):
            it.outputs()["out"].fill_(torch.nan)
            call()
            assert torch.equal(it.outputs()["out"], right), turn


def test_a_graph_replays_the_call():
    from attnbench.backends.hstu_bsa_triton import HstuBsaTriton

    case = of()
    one, two = (make_inputs(case, seed=seed, kind="normal", device="cuda") for seed in (1, 2))
    with HstuBsaTriton().session(case, one) as launch:
        call = launch.call("fwd-bwd")
        call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        captured = launch.outputs()
        launch.reload(two)
        call()
        expected = {name: x.clone() for name, x in launch.outputs().items()}
        for x in captured.values():
            x.fill_(-1)
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(x, expected[name]) for name, x in captured.items())


def test_a_block_chosen_by_all_is_many_tiles():
    """Every query chooses the same three blocks: as right as any, and not many times slower."""
    case = of(batch=2, seqlen=4096, gates=False)
    inputs = make_inputs(case, seed=1, kind="normal", device="cuda")
    inputs.q[..., 0], inputs.k[..., 0] = 8.0, 0.0
    inputs.k[:96, :, 0] = 4.0
    inputs.k[4096 : 4096 + 96, :, 0] = 4.0
    found = results(case, replace(inputs))
    assert (found["blocks"][200:4096, :, :3].cpu() == torch.tensor([0, 1, 2])).all()
    truth = oracle_bsa.evaluate(case, inputs, dtype=torch.float32, draw=Draw(), blocks=found["blocks"])["out"]
    assert float((found["out"].float() - truth).abs().max()) <= 0.02 * float(truth.abs().max())
