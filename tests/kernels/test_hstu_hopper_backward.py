"""The Hopper backward of dense HSTU attention: values against the oracle on the machine of `hopper_machine`."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.backends.base import Budget
from attnbench.check.compare import compare, make_truth
from attnbench.kernels.hstu.dense import api as hstu_dense
from attnbench.kernels.hstu.dense import backward as hstu_dense_backward
from attnbench.kernels.hstu.dense.hopper import backward as hstu_hopper_backward
from attnbench.kernels.hstu.dense.hopper import backward_serial as hstu_hopper_backward_serial
from attnbench.kernels.hstu.dense.hopper import backward_wide as hstu_hopper_backward_wide
from attnbench.kernels.shared import noting
from attnbench.workloads.base import Draw
from attnbench.workloads.hstu import WORKLOAD
from attnbench.workloads.hstu.inputs import make_inputs, torch_dtype

from .hopper_machine import machine_runs
from .test_hstu_dense import case_of, problem_of

WS = hstu_dense.ColumnConfig(block_m=64, block_n=128, warps=8, stages=2, atomic=True, order="ws", silu="exp")
CASES = {
    "one-of-each-length": {"batch": 4, "seqlen": 129, "lengths": "0:1:63:129", "nheads": 2},
    "many-tiles": {"batch": 1, "seqlen": 400, "attn_dim": 128, "linear_dim": 128},
    "not-causal": {"seqlen": 200, "lengths": "200:65", "causal": False},
    "prefix": {"seqlen": 260, "lengths": "260:9", "contextual_len": 100},
    "prefix-not-causal": {"seqlen": 150, "lengths": "150:20", "contextual_len": 5, "causal": False},
    "targets": {"batch": 3, "seqlen": 200, "lengths": "200:130:3", "num_targets": "70:130:1"},
    "targets-not-causal": {"seqlen": 150, "lengths": "150:7", "num_targets": "9:7", "causal": False},
    "window": {"batch": 1, "seqlen": 450, "max_attn_len": 90},
    "narrow-window": {"batch": 1, "seqlen": 300, "max_attn_len": 1, "num_targets": "3"},
    "window-both-ways": {"batch": 1, "seqlen": 400, "max_attn_len": 30, "causal": False},
    "window-prefix-targets": {
        "seqlen": 330,
        "lengths": "330:90",
        "max_attn_len": 70,
        "contextual_len": 66,
        "num_targets": "80:5",
    },
    "cached": {"batch": 3, "seqlen": 265, "lengths": "265:3:140", "delta_q": 18, "num_targets": "5:0:2"},
    "cached-all": {
        "seqlen": 260,
        "lengths": "260:121",
        "delta_q": 140,
        "num_targets": "5:1",
        "contextual_len": 130,
        "max_attn_len": 52,
    },
    "odd-dims": {"batch": 1, "seqlen": 140, "attn_dim": 24, "linear_dim": 40},
    "narrow": {"batch": 1, "seqlen": 140, "attn_dim": 8, "linear_dim": 128},
    "wide-keys": {"batch": 1, "seqlen": 140, "attn_dim": 128, "linear_dim": 32},
    "factors": {"batch": 1, "seqlen": 133, "alpha": 1.3, "scaling_seqlen": 7},
}


DIMS_OVER_128 = ((256, 256), (192, 136), (136, 256), (256, 96), (32, 160))
"Attention and linear dims; with 32 each warpgroup has 64 columns of dQ."


def make(name="", seed=3, **values):
    """A case in 16 bits of 64 dims, and its inputs."""
    case = case_of(**{"dtype": "bf16", "attn_dim": 64, "linear_dim": 64} | CASES.get(name, {}) | values)
    return case, make_inputs(case, seed=seed, kind="normal", device="cpu")


def gradients(case, inputs, problem=None, seed=0, **cut):
    """All gradients, written over NaN; the seed is of the order in which the warps of a program get on."""
    dq, dk, dv = (torch.full(x.shape, torch.nan, dtype=x.dtype) for x in (inputs.q, inputs.k, inputs.v))
    cut = {"lag": max(case.attn_dim, case.linear_dim) <= 128} | cut
    config = hstu_dense.BackwardConfig(columns=replace(WS, **cut), rows=None)
    problem = problem or problem_of(hstu_dense, case, inputs)
    with (
        machine_runs(hstu_hopper_backward, "hstu_hopper_backward", seed=seed),
        machine_runs(hstu_hopper_backward_wide, "hstu_hopper_backward_wide", seed=seed),
        machine_runs(hstu_hopper_backward_serial, "hstu_hopper_backward_serial", seed=seed),
        machine_runs(hstu_dense_backward, "hstu_dense_backward_round", "hstu_dense_backward_round_tiles", seed=seed),
    ):
        hstu_dense.launch_backward(
            inputs.q,
            inputs.k,
            inputs.v,
            inputs.dout,
            dq,
            dk,
            dv,
            problem,
            config,
            torch.full(hstu_dense.workspace_shape(inputs.q, problem, config), torch.nan),
        )
    return {"dq": dq, "dk": dk, "dv": dv}


def held(case, inputs, found):
    assert all(x.isfinite().all() for x in found.values())
    truth, plain = (
        WORKLOAD.oracle("hstu", case, inputs, dtype=dtype, draw=Draw()) for dtype in (torch.float64, torch_dtype(case))
    )
    expected = WORKLOAD.expected_errors("hstu", case, inputs, draw=Draw())
    truth, plain = ({name: x[name] for name in found} for x in (truth, plain))
    whole = make_truth(truth, plain, expected, torch_dtype(case), WORKLOAD.outputs("hstu"))
    outcome = compare(found, whole, Budget())
    assert outcome.ok, outcome.faults


@pytest.mark.parametrize("lag", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_right_for_every_mask(name, lag):
    case, inputs = make(name)
    held(case, inputs, gradients(case, inputs, seed=list(CASES).index(name), stages=2 + len(name) % 2, lag=lag))


@pytest.mark.parametrize("lag", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_right_for_every_mask_with_a_serial_reduction(name, lag):
    case, inputs = make(name)
    seed = list(CASES).index(name)
    held(case, inputs, gradients(case, inputs, seed=seed, stages=2 + len(name) % 2, lag=lag, serial=True))


@pytest.mark.parametrize(
    ("dtype", "attn_dim", "linear_dim", "values"),
    [
        ("bf16", 32, 32, {"lengths": "1000:0:1:63:127:129"}),
        ("fp16", 64, 64, {"lengths": "129:1000:0:127:63:1", "num_targets": "20:300:0:127:0:1", "contextual_len": 3}),
        ("bf16", 128, 128, {"lengths": "1:0:129:1000:63:127", "delta_q": 150}),
        ("fp16", 128, 64, {"lengths": "127:63:0:129:1:513", "max_attn_len": 128, "num_targets": "0:2:0:129:1:140"}),
    ],
)
def test_right_for_uneven_lengths_with_a_serial_reduction(dtype, attn_dim, linear_dim, values):
    case, inputs = make(batch=6, seqlen=1000, dtype=dtype, attn_dim=attn_dim, linear_dim=linear_dim, **values)
    held(case, inputs, gradients(case, inputs, seed=attn_dim, lag=linear_dim < 128, serial=True))


@pytest.mark.parametrize(("seqlen", "dim"), [(128, 128), (300, 32)])
def test_a_serial_reduction_has_one_order_of_sums(seqlen, dim):
    """dK and dV are sums in the usual order; so is dQ of rows with one key tile, which is rounded in the same way."""
    case, inputs = make(batch=3, seqlen=seqlen, attn_dim=dim, linear_dim=dim)
    usual = gradients(case, inputs)
    found = [gradients(case, inputs, seed=seed, serial=True, lag=lag) for seed, lag in ((1, True), (2, False))]
    for one in found:
        assert torch.equal(one["dq"], found[0]["dq"])
        assert all(torch.equal(one[name], usual[name]) for name in ("dk", "dv"))
        if seqlen <= 128:
            assert torch.equal(one["dq"], usual["dq"])


@pytest.mark.parametrize(("pairs", "cleared"), [(2, []), (3, [1])])
def test_a_serial_reduction_is_one_launch(pairs, cleared, monkeypatch):
    """Nothing is cleared but the tile counter, where programs (here there are two) have several pairs."""
    case, inputs = make(batch=pairs, seqlen=140)
    found = []
    monkeypatch.setattr(noting, "clear", lambda x: found.append(x.zero_().numel()))
    for name in ("clear", "_round", "_round_tiles"):
        monkeypatch.setattr(hstu_dense_backward, name, None)
    held(case, inputs, gradients(case, inputs, serial=True))
    assert found == cleared
    config = hstu_dense.BackwardConfig(columns=replace(WS, serial=True), rows=None)
    assert hstu_dense.workspace_shape(inputs.q, problem_of(hstu_dense, case, inputs), config) == (2 * 192, 1, 64)


@pytest.mark.parametrize(
    ("name", "attn_dim", "linear_dim"),
    [
        ("one-of-each-length", 256, 256),
        ("window-prefix-targets", 136, 256),
        ("cached-all", 256, 96),
        ("targets-not-causal", 32, 160),
        ("window", 136, 32),
    ],
)
def test_right_over_128_dims(name, attn_dim, linear_dim):
    case, inputs = make(name, attn_dim=attn_dim, linear_dim=linear_dim)
    held(case, inputs, gradients(case, inputs, seed=attn_dim + linear_dim, block_n=64))


@pytest.mark.parametrize(
    ("name", "attn_dim", "linear_dim"),
    [(name, *DIMS_OVER_128[number % len(DIMS_OVER_128)]) for number, name in enumerate(CASES)],
)
def test_right_with_dq_added_from_registers(name, attn_dim, linear_dim):
    case, inputs = make(name, attn_dim=attn_dim, linear_dim=linear_dim)
    stages = 1 + len(name) % 2
    held(case, inputs, gradients(case, inputs, seed=len(name), block_n=64, stages=stages, sums="carried"))


def test_the_bits_of_dk_and_dv_with_dq_added_from_registers_are_those_with_dq_staged():
    case, inputs = make("targets", attn_dim=256, linear_dim=256)
    staged, *others = [gradients(case, inputs, seed=seed, block_n=64) for seed in range(2)]
    others += [gradients(case, inputs, seed=seed, block_n=64, sums="carried") for seed in range(2)]
    assert all(torch.equal(one[name], staged[name]) for one in others for name in ("dk", "dv"))


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("window-prefix-targets", {}),
        ("cached", {}),
        ("cached", {"attn_dim": 160, "linear_dim": 200, "block_n": 64, "sums": "carried"}),
    ],
)
def test_right_in_half_precision(name, cut):
    dims = {key: value for key, value in cut.items() if key.endswith("dim")}
    case, inputs = make(name, seed=4, dtype="fp16", **dims)
    held(case, inputs, gradients(case, inputs, **{key: value for key, value in cut.items() if key not in dims}))


@pytest.mark.parametrize("seed", range(3))
def test_right_in_whatever_order_the_warps_get_on(seed):
    case, inputs = make(
        seed=5, batch=1, seqlen=260, nheads=2, contextual_len=3, num_targets="30", attn_dim=128, linear_dim=32
    )
    held(case, inputs, gradients(case, inputs, seed=10 + seed))


def test_the_sign_of_alpha_is_that_of_the_queries_and_without_alpha_there_are_no_gradients():
    case, inputs = make("targets")
    problem = problem_of(hstu_dense, case, inputs)
    found = gradients(case, inputs)
    turned = gradients(case, replace(inputs, q=-inputs.q), replace(problem, alpha=-problem.alpha))
    assert torch.equal(turned["dq"], -found["dq"])
    assert all(torch.equal(turned[name], found[name]) for name in ("dk", "dv"))
    assert all(x.abs().max() == 0 for x in gradients(case, inputs, replace(problem, alpha=0.0)).values())


def test_slices_of_one_tensor_need_no_copy():
    case, inputs = make(seqlen=65, linear_dim=32, nheads=2)
    whole = torch.cat([inputs.q, inputs.k, inputs.v], dim=2)
    q, k, v = whole.split([64, 64, 32], dim=2)
    want, found = gradients(case, inputs), gradients(case, replace(inputs, q=q, k=k, v=v))
    assert all(torch.equal(found[name], want[name]) for name in want)


@pytest.mark.parametrize(("dim", "cut"), [(64, {}), (64, {"serial": True}), (256, {"block_n": 64, "sums": "carried"})])
def test_a_sequence_of_nan_leaves_its_neighbours_alone(dim, cut):
    case, inputs = make(batch=3, seqlen=70, lengths="70:37:70", attn_dim=dim, linear_dim=dim)
    before = gradients(case, inputs, **cut)
    bad = {}
    for name in ("q", "k", "v", "dout"):
        bad[name] = getattr(inputs, name).clone()
        bad[name][70:107] = torch.nan
    after = gradients(case, replace(inputs, **bad), **cut)
    for name, x in before.items():
        for rows in (slice(0, 70), slice(107, None)):
            assert torch.equal(after[name][rows], x[rows])
        assert after[name][70:107].isnan().any()


@pytest.mark.parametrize(("dim", "cut"), [(64, {}), (64, {"serial": True}), (256, {"block_n": 64, "sums": "carried"})])
@pytest.mark.parametrize("queries", [0, 1])
def test_keys_that_no_query_sees_get_nothing(queries, dim, cut):
    case, inputs = make(batch=1, seqlen=200, num_targets="150", attn_dim=dim, linear_dim=dim)
    some = replace(inputs, q=inputs.q[:queries], dout=inputs.dout[:queries])
    problem = replace(problem_of(hstu_dense, case, inputs), offsets_q=torch.tensor([0, queries]), max_seqlen_q=queries)
    found = gradients(case, some, problem, **cut)
    seen = torch.zeros(200, dtype=torch.bool)
    seen[:50] = queries  # the one query is the last target
    seen[199] = queries
    for name in ("dk", "dv"):
        assert (found[name].abs().amax((1, 2)) > 0).equal(seen)


@pytest.mark.parametrize(
    ("values", "cut", "said"),
    [
        ({"dtype": "fp32"}, {}, "columns.order=ws needs 16-bit inputs; bf16 or fp16; another order"),
        ({"attn_dim": 136}, {}, "columns.order=ws has 64x128 tiles and 8 warps; 64x64 and 8; another order"),
        (
            {"linear_dim": 20},
            {},
            "columns.order=ws loads by tensor maps; rows of 20 dims are not a multiple of 16 bytes",
        ),
        ({}, {"block_m": 32}, "columns.order=ws has 32x128 tiles and 8 warps; 64x128 and 8; another order"),
        (
            {},
            {"registers": 128},
            "columns.order=ws does not support registers and masked_stages; without both; another",
        ),
        (
            {},
            {"split": True},
            "columns.order=ws computes dQ together with dK and dV; atomic and no split; another order",
        ),
        (
            {"attn_dim": 128, "linear_dim": 128},
            {"stages": 4},
            "columns.order=ws takes 256 KiB of shared memory; at most",
        ),
        ({}, {"sums": "carried"}, "columns.order=ws adds dQ by TMA up to 128 dims; without carried; another order"),
        (
            {"attn_dim": 256, "linear_dim": 256},
            {"block_n": 64, "sums": "carried", "stages": 3},
            "columns.order=ws takes 288 KiB of shared memory; at most",
        ),
        (
            {"attn_dim": 256, "linear_dim": 256},
            {"block_n": 64, "sums": "carried", "order": "plain"},
            "columns.sums=carried requires order=ws and over 128 dims; staged",
        ),
        (
            {"attn_dim": 256, "linear_dim": 256},
            {"block_n": 64, "serial": True},
            "columns.order=ws has one key tile a program over 128 dims; without serial; another order",
        ),
        (
            {"attn_dim": 128, "linear_dim": 128},
            {"serial": True, "stages": 3},
            "columns.order=ws takes 240 KiB of shared memory; at most",
        ),
        ({}, {"serial": True, "order": "plain"}, "columns.serial=True requires order=ws and atomic=True; serial=False"),
        ({"alpha": 1e-31}, {}, "alpha=1e-31 is too small for order=ws; at least 1e-30, 0, or another order"),
    ],
)
def test_what_it_cannot_run_is_refused_in_one_line(values, cut, said):
    case, inputs = make(**{"seqlen": 40, **values})
    with pytest.raises(ValueError, match=re.escape("hstu_attention: " + said)) as caught:
        gradients(case, inputs, **cut)
    assert "\n" not in str(caught.value)


def test_no_other_kernel_runs_in_its_place():
    with pytest.raises(ValueError, match=r"^order=wss is not known; one of plain, ws$"):
        replace(WS, order="wss")
    x = torch.zeros(40, 1, 16, dtype=torch.bfloat16)
    given = hstu_dense.Problem(
        offsets=torch.tensor([0, 40]),
        offsets_q=None,
        num_targets=None,
        max_seqlen=40,
        max_seqlen_q=40,
        alpha=1.0,
        scaling_seqlen=40,
        causal=True,
        contextual_len=0,
        max_attn_len=None,
    )
    rows = hstu_dense.RowConfig(block_m=32, block_n=32, warps=4, stages=1)
    config = hstu_dense.BackwardConfig(columns=replace(WS, atomic=False), rows=rows)
    with pytest.raises(
        ValueError, match=r"columns\.order=ws accumulates dQ by atomics; atomic=True, or another order$"
    ):
        hstu_dense.launch_backward(x, x, x, x, x, x, x, given, config, None)


def test_a_tensor_out_of_line_is_refused():
    case, inputs = make(seqlen=40)
    off = torch.cat([inputs.k[:, :, :1], inputs.k], dim=2)[:, :, 1:]
    with pytest.raises(ValueError, match=r"hstu_attention: k.stride=\(65, 65, 1\) is not a multiple of 16 bytes"):
        gradients(case, replace(inputs, k=off))


def test_another_card_is_refused(monkeypatch):
    case, inputs = make(seqlen=40)
    monkeypatch.setattr(hstu_hopper_backward, "capability_of", lambda x: (10, 0))
    with pytest.raises(ValueError, match=r"columns.order=ws is for sm_90 alone, not sm_100; another order"):
        gradients(case, inputs)
