"""The oracles of HSTU against a naive loop with autograd, and required properties of the function."""

from __future__ import annotations

from dataclasses import replace

import naive_hstu
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from attnbench.errors import AttnbenchError, UsageError
from attnbench.workloads.base import Draw
from attnbench.workloads.hstu import WORKLOAD, oracle, oracle_bsa
from attnbench.workloads.hstu.inputs import HstuInputs, make_inputs, torch_dtype
from attnbench.workloads.hstu.parts import output_shapes

DENSE = {
    "one": {"seqlen": 1, "attn_dim": 1},
    "full": {"seqlen": 33},
    "not-causal": {"seqlen": 17, "causal": False},
    "jagged": {"batch": 4, "seqlen": 31, "lengths": "31:0:1:17"},
    "empty": {"batch": 2, "lengths": "0:0"},
    "targets": {"batch": 3, "lengths": "20:7:5", "num_targets": "4:0:5"},
    "prefix": {"batch": 3, "lengths": "20:3:1", "contextual_len": 3, "num_targets": "2:1:0"},
    "window": {"seqlen": 21, "max_attn_len": 4, "contextual_len": 2, "num_targets": 3},
    "window-plain": {"batch": 3, "lengths": "19:1:0", "max_attn_len": 1},
    "window-not-causal": {"seqlen": 15, "max_attn_len": 3, "causal": False, "contextual_len": 2, "num_targets": 2},
    "cached": {"batch": 3, "lengths": "20:3:5", "delta_q": 4, "num_targets": "2:0:5", "contextual_len": 2},
    "factors": {"seqlen": 9, "alpha": 1.7, "scaling_seqlen": 3},
}
SPARSE = {
    "one": {"seqlen": 1, "attn_dim": 1, "block_size": 1},
    "full": {"seqlen": 33, "block_counts": 3},
    "jagged": {"batch": 5, "lengths": "31:0:1:4:3"},
    "empty": {"batch": 2, "lengths": "0:0", "local_window": 3},
    "targets": {"batch": 4, "lengths": "23:5:4:9", "num_targets": "4:5:0:1", "local_window": 3},
    "cached": {"batch": 3, "lengths": "22:3:6", "delta_q": 5, "num_targets": "2:0:6"},
    "sliding": {"seqlen": 19, "local_window": 6, "alpha": 0.9, "scaling_seqlen": 5},
    "shared": {"seqlen": 29, "selection": "shared", "num_targets": 3},
    "pairs": {
        "batch": 3,
        "lengths": "26:9:17",
        "pairs": True,
        "num_targets": "3:0:2",
        "delta_q": 16,
        "block_counts": 2,
    },
    "no-gates": {"seqlen": 18, "gates": False, "local_window": 2},
    "block-1": {"seqlen": 13, "block_size": 1, "block_counts": 4},
}
ALL = [("hstu", name) for name in DENSE] + [("hstu-bsa", name) for name in SPARSE]


def of(variant, name=None, **values):
    base = {
        "batch": 2,
        "seqlen": 40,
        "nheads": 2,
        "attn_dim": 5,
        "linear_dim": 3,
        "dtype": "fp32",
        "mode": "bwd",
        "block_size": 4,
        "block_counts": None,
    }
    return WORKLOAD.case(base | ((DENSE if variant == "hstu" else SPARSE)[name] if name else {}) | values)


def make(case, seed=1):
    return make_inputs(case, seed=seed, kind="normal", device="cpu")


def truth(variant, case, inputs, draw=None):
    return WORKLOAD.oracle(variant, case, inputs, dtype=torch.float64, draw=draw or Draw())


def changed(inputs, **tensors):
    fields = {name: getattr(inputs, name) for name in HstuInputs.__dataclass_fields__}
    return HstuInputs(**(fields | tensors))


def close(got, expected):
    assert list(got) == list(expected)
    for name, tensor in got.items():
        torch.testing.assert_close(
            tensor, expected[name], rtol=1e-10, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize(("variant", "name"), ALL)
def test_agrees_with_the_naive_loop_forward_and_backward(variant, name):
    case = of(variant, name)
    inputs = make(case)
    got = truth(variant, case, inputs)
    close(got, naive_hstu.gradients(naive_hstu.dense if variant == "hstu" else naive_hstu.sparse, case, inputs))
    assert {which: tuple(tensor.shape) for which, tensor in got.items()} == output_shapes(case, variant)
    assert all(tensor.dtype == torch.float64 for tensor in got.values())


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 14), min_size=1, max_size=3),
    st.integers(0, 3),
    st.none() | st.integers(1, 9),
    st.sampled_from([None, 3]),
    st.integers(0, 9),
)
def test_agrees_with_the_naive_loop_on_any_lengths(lengths, targets, delta_q, window, seed):
    shape = {
        "batch": len(lengths),
        "num_targets": targets,
        "delta_q": delta_q,
        "lengths": ":".join(str(n + targets) for n in lengths),
    }
    for variant, function, own in (
        ("hstu", naive_hstu.dense, "max_attn_len"),
        ("hstu-bsa", naive_hstu.sparse, "local_window"),
    ):
        case = of(variant, block_size=2, **shape, **{own: window})
        inputs = make(case, seed)
        close(truth(variant, case, inputs), naive_hstu.gradients(function, case, inputs))


@pytest.mark.parametrize("variant", ["hstu", "hstu-bsa"])
def test_sequences_do_not_affect_one_another(variant):
    case = of(variant, batch=3, lengths="17:0:23", num_targets="2:0:3")
    inputs = make(case)
    before = truth(variant, case, inputs)
    other = changed(
        inputs,
        **{
            name: torch.cat([getattr(inputs, name)[:17], torch.full_like(getattr(inputs, name)[17:], 0.3)])
            for name in ("q", "k", "v", "dout", "gates")
        },
    )
    after = truth(variant, case, other)
    assert all(torch.equal(before[name][:17], after[name][:17]) for name in before)
    assert not any(torch.equal(before[name][17:], after[name][17:]) for name in before)


@settings(max_examples=20)
@given(st.sampled_from(["hstu", "hstu-bsa"]), st.integers(1, 36), st.integers(0, 9))
def test_a_future_key_changes_nothing(variant, row, seed):
    case = of(variant, batch=1, seqlen=37, mode="fwd", local_window=3)
    inputs = make(case, seed)
    noise = {name: getattr(inputs, name).clone() for name in ("q", "k", "v", "gates")}
    for tensor in noise.values():
        tensor[row:] = 50.0
    before, after = (truth(variant, case, one)["out"] for one in (inputs, changed(inputs, **noise)))
    assert torch.equal(before[:row], after[:row])
    assert not torch.equal(before[row:], after[row:])


def test_targets_do_not_see_one_another():
    for variant in ("hstu", "hstu-bsa"):
        case = of(variant, batch=1, seqlen=20, num_targets=4, mode="fwd")
        inputs = make(case)
        k, v = inputs.k.clone(), inputs.v.clone()
        k[18], v[18] = 9.0, 9.0
        before, after = (truth(variant, case, one)["out"] for one in (inputs, changed(inputs, k=k, v=v)))
        others = [row for row in range(20) if row != 18]
        assert torch.equal(before[others], after[others])
        assert not torch.equal(before[18], after[18])


@pytest.mark.parametrize("targets", [0, 5])
@pytest.mark.parametrize("size", [2, 8])
def test_all_blocks_selected_and_no_compressed_branch_is_dense(targets, size):
    case = of("hstu-bsa", lengths="37:13", num_targets=targets, block_size=size, block_counts=-(-40 // size))
    inputs = make(case)
    inputs.gates[..., 0], inputs.gates[..., 1] = 0.0, 1.0
    sparse, dense = truth("hstu-bsa", case, inputs), truth("hstu", case, inputs)
    close({name: sparse[name] for name in dense}, dense)


def test_a_sliding_branch_over_everything_is_dense():
    case = of("hstu-bsa", lengths="37:13", num_targets=3, local_window=40)
    inputs = make(case)
    inputs.gates[...] = torch.tensor([0.0, 0.0, 1.0])
    sparse, dense = truth("hstu-bsa", case, inputs), truth("hstu", case, inputs)
    close({name: sparse[name] for name in dense}, dense)


def test_the_compressed_branch_is_dense_where_blocks_are_constant():
    case = of("hstu-bsa", batch=1, seqlen=24, mode="fwd")
    inputs = make(case)
    inputs.gates[...] = torch.tensor([1.0, 0.0])
    constant = changed(inputs, **{name: getattr(inputs, name)[::4].repeat_interleave(4, 0) for name in ("k", "v")})
    sparse, dense = (truth(variant, case, constant)["out"] for variant in ("hstu-bsa", "hstu"))
    ends = slice(3, None, 4)
    torch.testing.assert_close(sparse[ends], dense[ends], rtol=1e-6, atol=1e-8)
    assert not sparse[:3].any()


@pytest.mark.parametrize(("variant", "name"), [("hstu", "window"), ("hstu-bsa", "targets"), ("hstu-bsa", "shared")])
def test_permuting_heads_permutes_outputs(variant, name):
    case = of(variant, name, nheads=3)
    inputs = make(case)
    order = [2, 0, 1]
    turned = changed(inputs, **{which: getattr(inputs, which)[:, order] for which in ("q", "k", "v", "dout", "gates")})
    before, after = truth(variant, case, inputs), truth(variant, case, turned)
    close(after, {which: tensor[:, order] for which, tensor in before.items()})


@pytest.mark.parametrize("variant", ["hstu", "hstu-bsa"])
def test_alpha_and_the_divisor_scale_as_they_should(variant):
    case = of(variant, lengths="17:30", num_targets=2)
    inputs = make(case)
    base = truth(variant, case, inputs)
    close(truth(variant, replace(case, scaling_seqlen=10), inputs), {name: 4 * tensor for name, tensor in base.items()})
    doubled = truth(variant, replace(case, alpha=2 * case.alpha), inputs)
    by_queries = truth(variant, case, changed(inputs, q=2 * inputs.q))
    close(doubled, by_queries | {"dq": 2 * by_queries["dq"]})


@pytest.mark.parametrize("variant", ["hstu", "hstu-bsa"])
def test_a_cached_step_is_the_end_of_the_whole(variant):
    whole = of(variant, batch=3, lengths="33:2:20", num_targets="3:1:0")
    cached = replace(whole, delta_q=5)
    inputs = make(whole)
    last = [*range(28, 33), 33, 34, *range(50, 55)]
    rows = {name: getattr(inputs, name)[last] for name in ("q", "gates", "dout")}
    before, after = truth(variant, whole, inputs), truth(variant, cached, changed(inputs, **rows))
    for name in ("out", "dq"):
        torch.testing.assert_close(after[name], before[name][last], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("variant", "name"), [("hstu", "window"), ("hstu", "cached"), ("hstu-bsa", "targets"), ("hstu-bsa", "shared")]
)
@pytest.mark.parametrize("workspace", [1, 20_000])
def test_chunks_change_nothing(variant, name, workspace):
    case = of(variant, name)
    inputs = make(case)
    evaluate = oracle.evaluate if variant == "hstu" else oracle_bsa.evaluate
    close(evaluate(case, inputs, dtype=torch.float64, draw=Draw(), workspace=workspace), truth(variant, case, inputs))


def test_memory_stays_within_the_workspace():
    case = of("hstu", batch=1, seqlen=1500, nheads=4)
    inputs, workspace = make(case), 4 * 2**20
    with profile(profile_memory=True, activities=[ProfilerActivity.CPU], acc_events=True) as taken:
        oracle.evaluate(case, inputs, dtype=torch.float64, draw=Draw(), workspace=workspace)
    held = peak = 0
    for event in taken.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    result = sum(8 * torch.Size(shape).numel() for shape in output_shapes(case, "hstu").values())
    assert result < peak < 4 * result + 2 * workspace < 8 * 4 * 1500**2 / 4


@pytest.mark.parametrize("variant", ["hstu", "hstu-bsa"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_own_precision_is_off_by_rounding_alone(variant, dtype):
    case = of(variant, seqlen=129, attn_dim=32, linear_dim=16, dtype=dtype, num_targets=4, block_size=16)
    inputs = make(case)
    true = truth(variant, case, inputs)
    plain = WORKLOAD.oracle(variant, case, inputs, dtype=torch_dtype(case), draw=Draw())
    step = torch.finfo(torch_dtype(case)).eps
    for name, tensor in plain.items():
        assert tensor.dtype == torch_dtype(case)
        error = (tensor.double() - true[name]).norm() / true[name].norm()
        assert 0.05 * step < error < 4 * step, name


@pytest.mark.parametrize(
    ("variant", "name"), [("hstu", "cached"), ("hstu", "prefix"), ("hstu-bsa", "targets"), ("hstu-bsa", "shared")]
)
@pytest.mark.parametrize("mode", ["fwd", "bwd"])
def test_drawn_oracle_is_the_selected_part_of_the_whole(variant, name, mode):
    case = of(variant, name, mode=mode, nheads=3)
    inputs = make(case)
    whole = truth(variant, case, inputs)
    pairs = ((0, 1), (1, 0), (1, 2)) if case.batch > 1 else ((0, 1), (0, 2))
    for draw in (Draw(pairs), Draw(pairs[::-1])):
        drawn = truth(variant, case, inputs, draw)
        assert {which: tuple(tensor.shape) for which, tensor in drawn.items()} == output_shapes(case, variant, draw)
        close(drawn, WORKLOAD.select(case, whole, draw))


def test_a_draw_fits_and_has_the_corners():
    case = of("hstu", batch=5, lengths="9:40:0:7:8", nheads=3)
    assert WORKLOAD.draw(case, seed=0, max_bytes=2**30) == Draw()
    draw = WORKLOAD.draw(case, seed=0, max_bytes=0)
    assert draw.parts == tuple((s, h) for s in (0, 1, 2, 4) for h in (0, 2))
    large = of("hstu", batch=64, seqlen=512, nheads=16, attn_dim=64, linear_dim=64, mode="fwd")
    first, again, other = (WORKLOAD.draw(large, seed=s, max_bytes=2 * 100 * 8 * 512 * 64) for s in (1, 1, 2))
    assert first == again != other
    assert len(first.parts) == 100


def test_another_layout_and_variant_are_refused():
    case = of("hstu", "full")
    with pytest.raises(AttnbenchError, match=r"out=\[2, 66, 3\] is not the workload's layout; \[66, 2, 3\]$"):
        WORKLOAD.select(case, {"out": torch.zeros(2, 66, 3)}, Draw())
    with pytest.raises(UsageError, match=r"^hstu: variant=bsa is not known; one of hstu, hstu-bsa"):
        truth("bsa", case, make(case))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"causal": False}, "hstu-bsa: causal=False is not defined; causal=true only"),
        ({"contextual_len": 2}, "hstu-bsa: contextual_len=2 is not defined; contextual_len=0 only"),
        (
            {"max_attn_len": 9},
            "hstu-bsa: max_attn_len=9 is not defined; max_attn_len=none only; --local-window is its own",
        ),
    ],
)
def test_the_sparse_variant_says_what_it_is_not_defined_for(values, message):
    case = of("hstu-bsa", "full", **values)
    assert case.sparse_refusal.startswith(message)
    with pytest.raises(UsageError, match="is not defined"):
        truth("hstu-bsa", case, make(case))
    assert truth("hstu", case, make(case))["out"].shape == (66, 2, 3)


@pytest.mark.parametrize(
    ("variant", "values", "words"),
    [
        ("hstu", {"num_targets": 5}, {"targets that see each other"}),
        ("hstu", {"contextual_len": 4}, {"contextual prefix treated as history"}),
        ("hstu", {"max_attn_len": 4}, {"window (max_attn_len) ignored"}),
        ("hstu", {"causal": False}, set()),
        ("hstu", {"lengths": "7:40"}, {"divided by each sequence's own length instead of one length for all"}),
        ("hstu-bsa", {"num_targets": 5}, {"targets that see each other"}),
        ("hstu-bsa", {"selection": "shared", "block_counts": 2}, set()),
        ("hstu-bsa", {"pairs": True, "block_counts": 2}, {"actions that select for themselves"}),
    ],
)
def test_suspects_are_wrong_answers_that_apply(variant, values, words):
    case = of(variant, lengths=values.pop("lengths", "full"), **values)
    inputs = make(case)
    true = truth(variant, case, inputs)
    found = dict(WORKLOAD.suspects(variant, case, inputs, draw=Draw()))
    always = {"outputs not divided by the length", "alpha missing (1 instead of the factor of the scores)"}
    always |= {"causal mask ignored"} if variant == "hstu" and case.causal else set()
    always |= {name for name in found if name.startswith("selection per head")} if variant == "hstu-bsa" else set()
    assert set(found) == words | always
    for name, outputs in found.items():
        assert list(outputs) == list(true)
        assert not torch.allclose(outputs["out"].double(), true["out"], rtol=1e-3), name
