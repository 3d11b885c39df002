"""Work and oracle of block-sparse attention against counting and a naive evaluation."""

import random

import pytest
import torch
from naive_sparse import attention, visible

from attnbench.workloads.base import Draw
from attnbench.workloads.sparse import WORKLOAD
from attnbench.workloads.sparse.case import BLOCKS
from attnbench.workloads.sparse.inputs import SparseInputs
from attnbench.workloads.sparse.oracle import evaluate, log_sum_exp
from attnbench.workloads.sparse.work import density, work_of

SIZES = (1, 63, 127, 129, 200, 257)


def drawn_case(seed):
    rng = random.Random(seed)
    group = rng.choice((1, 2, 3))
    seqlen, seqlen_k = rng.choice(SIZES), rng.choice(SIZES)
    return WORKLOAD.case(
        {
            "batch": rng.choice((1, 2)),
            "seqlen": seqlen,
            "seqlen_k": rng.choice((seqlen, seqlen_k)),
            "nheads": 2 * group,
            "nheads_kv": 2,
            "headdim": rng.choice((8, 16)),
            "causal": rng.random() < 0.5,
            "block": rng.choice(BLOCKS),
            "dtype": "fp32",
            "pattern": rng.choice(("random", "random-uneven", "window")),
            "density": 1.0 if seqlen_k < 129 or seqlen < 129 else 0.5,
            "map_seed": seed,
        }
    )


def with_holes(case, inputs, seed):
    """The same inputs with some blocks more taken out of the map: rows without any among them."""
    keep = torch.rand(inputs.block_map.shape, generator=torch.Generator().manual_seed(seed)) < 0.6
    return SparseInputs(q=inputs.q, k=inputs.k, v=inputs.v, block_map=inputs.block_map & keep)


@pytest.mark.parametrize("seed", range(40))
def test_work_is_what_counting_the_mask_says(seed):
    case = drawn_case(seed)
    inputs = with_holes(case, WORKLOAD.inputs(case, seed=0, kind="zeros", device="cpu"), seed)
    seen = visible(case, inputs.block_map)
    found = work_of(case, inputs.block_map.numpy())
    assert found.flops == 4 * case.headdim * int(seen.sum())
    assert found.dense_flops == 4 * case.headdim * int(visible(case, torch.ones_like(inputs.block_map)).sum())
    keys = seen.unflatten(1, (case.nheads_kv, -1)).any(2).any(2)
    elements = seen.any(-1).sum() + 2 * keys.sum() + case.batch * case.nheads * case.seqlen
    assert found.bytes == 4 * case.headdim * int(elements)
    own = WORKLOAD.work(case)
    assert density(case) == (own.flops / own.dense_flops if own.dense_flops else 0.0)


@pytest.mark.parametrize("seed", range(16))
def test_the_oracle_is_attention_over_the_map_whatever_the_chunks(seed):
    case = drawn_case(seed)
    inputs = with_holes(case, WORKLOAD.inputs(case, seed=seed, kind="normal", device="cpu"), seed)
    out, lse = attention(case, inputs)
    for workspace in (None, 1 << 15):
        found = evaluate(case, inputs, dtype=torch.float64, draw=Draw(), workspace=workspace)["out"]
        torch.testing.assert_close(found, out, rtol=1e-10, atol=1e-12)
        logs = log_sum_exp(case, inputs, dtype=torch.float64, draw=Draw(), workspace=workspace)
        torch.testing.assert_close(logs[..., 0].transpose(1, 2), lse, rtol=1e-10, atol=1e-12)
    errors = WORKLOAD.expected_errors("given", case, inputs, draw=Draw())["out"]
    rough = evaluate(case, inputs, dtype=torch.float32, draw=Draw())["out"]
    assert errors.shape == out.shape
    assert ((rough - out).abs() <= 8 * errors + 1e-12).all()


def test_a_row_without_a_block_is_zero_and_its_logarithm_minus_infinity():
    case = WORKLOAD.case({"batch": 1, "seqlen": 130, "nheads": 1, "headdim": 8, "block": "64x64", "dtype": "fp32"})
    inputs = WORKLOAD.inputs(case, seed=0, kind="normal", device="cpu")
    inputs.block_map[:] = True
    inputs.block_map[0, 0, 1] = False
    out = evaluate(case, inputs, dtype=torch.float64, draw=Draw())["out"][0, :, 0]
    lse = log_sum_exp(case, inputs, dtype=torch.float64, draw=Draw())[0, :, 0, 0]
    assert (out[64:128] == 0).all()
    assert (lse[64:128] == -torch.inf).all()
    assert out.isfinite().all()
    assert lse[:64].isfinite().all()
    assert lse[128:].isfinite().all()


def test_a_part_of_a_case_is_that_part_of_the_whole():
    case = WORKLOAD.case({"batch": 3, "seqlen": 200, "nheads": 6, "nheads_kv": 3, "headdim": 8, "dtype": "fp32"})
    inputs = WORKLOAD.inputs(case, seed=0, kind="normal", device="cpu")
    draw = WORKLOAD.draw(case, seed=0, max_bytes=1)
    assert draw.parts
    whole = WORKLOAD.oracle("given", case, inputs, dtype=torch.float64, draw=Draw())
    part = WORKLOAD.oracle("given", case, inputs, dtype=torch.float64, draw=draw)
    torch.testing.assert_close(WORKLOAD.select(case, whole, draw)["out"], part["out"])


def shifted(case, inputs, order):
    """Keys, values and the columns of the map with whole blocks in another order."""
    size = case.block_shape[1]
    rows = torch.cat([torch.arange(block * size, (block + 1) * size) for block in order])
    return SparseInputs(q=inputs.q, k=inputs.k[:, rows], v=inputs.v[:, rows], block_map=inputs.block_map[..., order])


def test_what_must_not_change_the_answer_does_not():
    """Density 1 is dense; key blocks in another order with their map; values of cleared blocks; other heads."""
    case = WORKLOAD.case(
        {
            "batch": 2,
            "seqlen": 256,
            "nheads": 4,
            "nheads_kv": 2,
            "headdim": 16,
            "block": "64x64",
            "density": 0.5,
            "dtype": "fp32",
        }
    )
    inputs = WORKLOAD.inputs(case, seed=0, kind="normal", device="cpu")

    def out(inputs, variant="given"):
        return WORKLOAD.oracle(variant, case, inputs, dtype=torch.float64, draw=Draw())["out"]

    base = out(inputs)
    torch.testing.assert_close(out(shifted(case, inputs, [2, 0, 3, 1])), base, rtol=1e-9, atol=1e-12)
    full = SparseInputs(q=inputs.q, k=inputs.k, v=inputs.v, block_map=torch.ones_like(inputs.block_map))
    assert torch.equal(out(full), out(inputs, "dense"))
    cleared = inputs.block_map.clone()
    cleared[..., 1] = False
    one = SparseInputs(q=inputs.q, k=inputs.k, v=inputs.v, block_map=cleared)
    other = SparseInputs(q=inputs.q, k=inputs.k.clone(), v=inputs.v.clone(), block_map=cleared)
    other.k[:, 64:128], other.v[:, 64:128] = 100.0, -7.0
    assert torch.equal(out(one), out(other))
    changed = inputs.block_map.clone()
    changed[1, 3] ^= True
    apart = out(SparseInputs(q=inputs.q, k=inputs.k, v=inputs.v, block_map=changed)) != base
    assert not apart[0].any()
    assert not apart[1, :, :3].any()
    assert apart[1, :, 3].any()


def test_known_mistakes_are_told_apart():
    case = WORKLOAD.case(
        {
            "batch": 2,
            "seqlen": 200,
            "nheads": 2,
            "headdim": 8,
            "block": "64x64",
            "causal": True,
            "density": 0.5,
            "dtype": "fp32",
        }
    )
    inputs = WORKLOAD.inputs(case, seed=0, kind="normal", device="cpu")
    truth = attention(case, inputs)[0]
    words = {}
    for name, outputs in WORKLOAD.suspects("given", case, inputs, draw=Draw()):
        assert (outputs["out"] - truth).abs().max() > 0.1, name
        words[name] = outputs["out"]
    assert len(words) == 7
    torch.testing.assert_close(
        words["the block map ignored: dense attention"].double(),
        attention(case, inputs, torch.ones_like(inputs.block_map))[0],
        rtol=1e-4,
        atol=1e-5,
    )
    assert list(WORKLOAD.suspects("dense", case, inputs, draw=Draw())) == []


def test_a_chosen_map_is_judged_as_a_map_followed_and_measured():
    case = WORKLOAD.case(
        {"batch": 1, "seqlen": 200, "nheads": 2, "headdim": 8, "block": "64x64", "density": 0.5, "dtype": "fp32"}
    )
    inputs = WORKLOAD.inputs(case, seed=0, kind="normal", device="cpu")
    judge = WORKLOAD.choice("chosen")
    assert judge is not None
    assert WORKLOAD.choice("given") is None
    chosen = inputs.block_map
    assert judge.faults(case, inputs, chosen) == []
    assert judge.faults(case, inputs, chosen[:, :1]) == ["shape=[1, 1, 4, 4] is wrong; [1, 2, 4, 4]"]
    assert judge.faults(case, inputs, chosen.int()) == ["dtype=torch.int32 is wrong; torch.bool"]
    wide = WORKLOAD.case(case.to_dict() | {"widen": True})
    assert judge.faults(wide, inputs, torch.zeros_like(chosen)) == [
        "leaves out 16 of the 16 blocks that the case's map keeps"
    ]
    assert judge.is_oracles(case, inputs, torch.ones_like(chosen))
    follows = judge.follow(case, inputs, chosen, dtype=torch.float64, draw=Draw())["out"]
    torch.testing.assert_close(follows, attention(case, inputs)[0])
    found = judge.measures(case, inputs, chosen, dtype=torch.float64, draw=Draw())
    seen = visible(case, chosen)
    dense, lse = attention(case, inputs, torch.ones_like(chosen))
    assert found["useful_flops"] == 4 * 8 * int(seen.sum())
    assert found["density"] == pytest.approx(float(seen.float().mean()))
    assert found["actual_sparsity"] == pytest.approx(1 - found["density"])
    assert found["mass_kept"] == pytest.approx(float((attention(case, inputs)[1] - lse).exp().mean()))
    assert found["dense_rel_l1"] == pytest.approx(float((follows - dense).abs().sum() / dense.abs().sum()))
    everything = judge.measures(case, inputs, torch.ones_like(chosen), dtype=torch.float64, draw=Draw())
    assert (everything["mass_kept"], everything["dense_rel_l1"]) == (pytest.approx(1.0), 0.0)
    nothing = judge.measures(case, inputs, torch.zeros_like(chosen), dtype=torch.float64, draw=Draw())
    assert (nothing["mass_kept"], nothing["dense_rel_l1"], nothing["useful_flops"]) == (0.0, 1.0, 0)


def test_a_smaller_case_is_advised_and_refused_where_none_is_left():
    case = WORKLOAD.case({"batch": 2, "seqlen": 1024, "nheads": 2, "headdim": 8})
    assert WORKLOAD.shrink(case, 0.5).batch == 1
    assert WORKLOAD.shrink(WORKLOAD.case(case.to_dict() | {"batch": 1}), 0.5).seqlen == 512
    assert WORKLOAD.shrink(WORKLOAD.case(case.to_dict() | {"batch": 1, "density": 0.125}), 0.25) is None
