"""Block-sparse HSTU kernels in Triton's interpreter, against the oracle: outputs, gradients, selection, order."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import pytest
import torch

from attnbench.workloads.base import Draw
from attnbench.workloads.hstu import WORKLOAD, oracle, oracle_bsa
from attnbench.workloads.hstu.inputs import make_inputs

from .interpreter import interpreted

CUT = {
    "pool_rows": 8,
    "select_rows": 32,
    "select_blocks": 16,
    "near_keys": 16,
    "chunk": 32,
    "order_chunk": 16,
    "attend_rows": 16,
    "tiles_each": 2,
    "combine_rows": 16,
    "programs_ahead": 4,
    "means_rows": 16,
    "means_blocks": 16,
    "keys_rows": 16,
    "rows_rows": 32,
    "rows_blocks": 16,
}
"Small, so that a short sequence has several tiles on every axis."

CASES = {
    "plain": {},
    "fp16": {"dtype": "fp16", "nheads": 1},
    "passes": {"nheads": 1, "config": {"schedule": "passes", "pass_mib": 0}},
    "jagged": {
        "batch": 6,
        "nheads": 1,
        "lengths": "70:0:1:15:16:33",
        "num_targets": "5:0:1:2:16:0",
        "local_window": 21,
    },
    "cached": {
        "batch": 3,
        "lengths": "70:6:41",
        "num_targets": "3:6:0",
        "delta_q": 5,
        "local_window": 1,
        "gates": False,
    },
    "shared": {"selection": "shared", "num_targets": 3, "pairs": True, "batch": 1},
    "pairs": {"pairs": True, "lengths": "70:57", "delta_q": 40, "num_targets": "3:0"},
    "local-alone": {"block_counts": 1, "nheads": 1},
    "wide-parts": {
        "block_size": 64,
        "seqlen": 135,
        "nheads": 1,
        "batch": 1,
        "attn_dim": 130,
        "linear_dim": 5,
        "config": {"keys_rows": 32, "select_rows": 64},
    },
    "factors": {"alpha": 1.3, "scaling_seqlen": 7, "attn_dim": 16, "linear_dim": 33, "batch": 1, "nheads": 1},
}


@pytest.fixture(scope="module")
def bsa():
    with interpreted("attnbench.kernels.hstu.bsa.api") as (module,):
        yield module


def of(**values):
    values.pop("config", None)
    return WORKLOAD.case(
        {
            "batch": 2,
            "seqlen": 70,
            "nheads": 2,
            "attn_dim": 24,
            "linear_dim": 16,
            "dtype": "fp32",
            "mode": "bwd",
            "block_size": 16,
            "block_counts": 3,
        }
        | values
    )


def tensors_of(bsa, case, inputs):
    return bsa.BsaTensors(
        q=inputs.q,
        k=inputs.k,
        v=inputs.v,
        gates=inputs.gates,
        offsets=inputs.seq_offsets,
        offsets_q=inputs.seq_offsets_q if case.delta_q else None,
        num_targets=inputs.num_targets,
    )


def run(bsa, case, inputs, backward=True, **cut):
    """Every result of a call on poisoned buffers."""
    tensors = tensors_of(bsa, case, inputs)
    problem = bsa.problem_of(
        tensors,
        max_seqlen=inputs.max_seqlen,
        max_seqlen_q=inputs.max_seqlen_q,
        block_size=case.block_size,
        block_counts=case.block_counts,
        alpha=case.alpha,
        scaling_seqlen=case.scaling_seqlen,
        local_window=case.local_window,
        selection=case.selection,
        pairs=case.pairs,
    )
    config = replace(bsa.default_config(problem, (0, 0)), **CUT | cut)
    device = torch.device("cpu")
    out = torch.full((problem.queries, problem.heads, problem.linear_dim), torch.nan, dtype=problem.dtype)
    blocks = torch.full((problem.queries, problem.list_heads, problem.block_counts), -9, dtype=torch.int32)
    call = tensors.call(problem, config, out, blocks, poisoned(bsa.forward_workspace(problem, config, device)))
    bsa.forward(call)
    found = {"out": out, "blocks": blocks}
    if backward:
        own = {
            f"d{name}": torch.full_like(x, torch.nan)
            for name in ("q", "k", "v", "gates")
            if (x := getattr(tensors, name)) is not None
        }
        shapes = bsa.backward_shapes(problem, config)
        bsa.backward(
            bsa.BsaGradients(
                call=call, dout=inputs.dout, workspace=poisoned(bsa.allocate(shapes, device)), **{"dgates": None} | own
            )
        )
        found |= own
    return found


def poisoned(workspace):
    for tensor in workspace.values():
        tensor.fill_(torch.nan if tensor.is_floating_point() else -7)
    return workspace


@pytest.mark.parametrize("name", CASES)
def test_output_gradients_and_selection_are_the_oracles(bsa, name):
    case = of(**CASES[name])
    inputs = make_inputs(case, seed=3, kind="normal", device="cpu")
    found = run(bsa, case, inputs, **CASES[name].get("config", {}))
    blocks = found.pop("blocks")
    assert not oracle_bsa.selection_faults(case, inputs, blocks)
    if case.dtype == "fp32":
        assert torch.equal(blocks, oracle_bsa.select_blocks(case, inputs))
    truth = oracle_bsa.evaluate(case, inputs, dtype=torch.float64, draw=Draw(), blocks=blocks)
    plain = oracle_bsa.evaluate(case, inputs, dtype=inputs.q.dtype, draw=Draw(), blocks=blocks)
    assert found.keys() == truth.keys()
    for tensor, right in truth.items():
        step = torch.finfo(inputs.q.dtype).eps * float(right.abs().max()) * (4 if case.dtype == "fp32" else 1)
        allowed = 2 * float((plain[tensor].double() - right).abs().max()) + step
        assert float((found[tensor].double() - right).abs().max()) <= allowed, tensor


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_ties_go_to_the_lower_block(bsa, dtype):
    case = of(dtype=dtype, batch=1, nheads=1, mode="fwd")
    found = run(bsa, case, make_inputs(case, seed=1, kind="zeros", device="cpu"), backward=False)
    assert found["blocks"][69, 0].tolist() == [0, 1, 4]
    assert found["blocks"][17, 0].tolist() == [0, 1, -1]
    assert not found["out"].any()


def test_ranked_by_score_and_not_by_its_silu(bsa):
    case = of(batch=1, nheads=1, attn_dim=16, alpha=1.0, mode="fwd", block_counts=2)
    inputs = make_inputs(case, seed=1, kind="zeros", device="cpu")
    inputs.q[:, 0, 0] = 1.0
    inputs.k[:16, 0, 0], inputs.k[16:32, 0, 0], inputs.k[32:48, 0, 0] = -9.0, -1.0, -5.0
    assert run(bsa, case, inputs, backward=False)["blocks"][50, 0].tolist() == [1, 3]


def test_all_blocks_selected_is_dense(bsa):
    case = of(block_counts=5, gates=False, lengths="70:39", num_targets="3:0", nheads=1)
    inputs = make_inputs(case, seed=2, kind="normal", device="cpu")
    gates = torch.zeros(*inputs.q.shape[:2], 2)
    gates[..., 1] = 1.0
    found = run(bsa, replace(case, gates=True), replace(inputs, gates=gates))
    truth = oracle.evaluate(case, inputs, dtype=torch.float64, draw=Draw())
    for name, right in truth.items():
        assert torch.allclose(found[name].double(), right, atol=1e-6), name


def test_order_of_every_sum_is_the_same_whatever_runs_beside(bsa):
    """The same bits in another schedule, another cut of the lists, and with another sequence before."""
    case = of(block_counts=4, nheads=1)
    inputs = make_inputs(case, seed=5, kind="normal", device="cpu")
    found = run(bsa, case, inputs)
    again = run(bsa, case, inputs, schedule="passes", chunk=64, order_chunk=32, tiles_each=3)
    assert all(torch.equal(found[name], again[name]) for name in found)
    alone = of(block_counts=4, nheads=1, batch=1)
    half = replace(
        inputs,
        seq_offsets=inputs.seq_offsets[:2],
        seq_offsets_q=inputs.seq_offsets_q[:2],
        **{name: getattr(inputs, name)[70:] for name in ("q", "k", "v", "gates", "dout")},
    )
    second = run(bsa, alone, half)
    assert all(torch.equal(found[name][70:], second[name]) for name in found)


def test_places_in_the_ring_are_used_again_and_nobody_waits_for_ever(bsa):
    """The interpreter runs one program at a time: one that waited for a later one would never end."""
    case = of(batch=5, seqlen=40, lengths="40:33:0:40:18", nheads=1, mode="fwd")
    inputs = make_inputs(case, seed=7, kind="normal", device="cpu")
    found = run(bsa, case, inputs, backward=False, schedule="passes")
    for spare in (0, 1):
        again = run(bsa, case, inputs, backward=False, programs_ahead=1, spare_pairs=spare)
        assert all(torch.equal(found[name], again[name]) for name in found), spare


class Handovers:
    """Who must have ended before whom, by what the programs of the ticket schedule wait for and say is done.

    On a card programs run side by side and the order that the interpreter runs them in proves nothing.
    """

    def __init__(self, module, patch):
        self.ended: dict[int, list[tuple]] = {}
        "programs that arrived, by counter"
        self.before: dict[tuple, set[tuple]] = {}
        self.known: set[tuple] = set()
        "programs that the one that runs has waited for"
        self.touched: dict[int, list[tuple]] = {}
        "programs that wrote or read partial rows, by where a pair's start"
        self.waited: list[tuple[int, int]] = []
        self.races: list[tuple] = []
        for name in ("attend_part", "combine_part", "wait_for", "arrive", "scatter_rows", "gather_rows"):
            kernel = getattr(module, name)
            patch.setattr(module, name, partial(getattr(self, name, self._touch), kernel))

    def _begin(self, kernel, *values, **given):
        named = dict(zip(kernel.arg_names, values, strict=False)) | given
        self.place = named["partial_ptr"].handle.data.item()
        self.program = kernel.__name__, number(named["unit"]), number(named["part"])
        self.before[self.program] = self.known
        kernel(*values, **given)

    attend_part = combine_part = _begin

    def wait_for(self, kernel, counter, count):
        counter, count = counter.handle.data.item(), number(count)
        self.waited.append((counter, count))
        if count:
            ended = self.ended[counter]
            self.known.update(ended, *(self.before[program] for program in ended))

    def arrive(self, kernel, counter):
        kernel(counter)
        self.ended.setdefault(counter.handle.data.item(), []).append(self.program)
        self.known = set()

    def _touch(self, kernel, *values, **given):
        base = values[0] if values else given[kernel.arg_names[0]]
        if base.handle.data.item() == self.place:
            others = self.touched.setdefault(self.place, [])
            self.races += [
                (other, self.program)
                for other in others
                if other[:2] != self.program[:2] and other not in self.before[self.program]
            ]
            others.append(self.program)
        return kernel(*values, **given)


def number(value):
    return int(value.handle.data.item()) if hasattr(value, "handle") else int(value)


def test_a_place_in_the_ring_is_taken_when_all_before_in_it_are_done(bsa):
    """Sequences without other blocks, or without queries, lie between those that take a place in turn."""
    case = of(batch=10, seqlen=40, lengths="40:33:5:9:40:40:0:3:0:36", nheads=1, mode="fwd")
    inputs = make_inputs(case, seed=7, kind="normal", device="cpu")
    module = sys.modules["attnbench.kernels.hstu.bsa.portable.attend"]
    for spare in (0, 1):
        with pytest.MonkeyPatch.context() as patch:
            seen = Handovers(module, patch)
            run(bsa, case, inputs, backward=False, programs_ahead=1, spare_pairs=spare)
        assert len(seen.touched) == 2 + spare
        assert {"attend_part", "combine_part"} == {kind for touched in seen.touched.values() for kind, _, _ in touched}
        assert all(count in (0, len(seen.ended[counter])) for counter, count in seen.waited if counter in seen.ended)
        assert not seen.races


def test_a_future_key_changes_nothing(bsa):
    case = of(mode="fwd", local_window=9, nheads=1)
    inputs = make_inputs(case, seed=4, kind="normal", device="cpu")
    before = run(bsa, case, inputs, backward=False)
    inputs.k[45:70].mul_(-3)
    inputs.v[45:70] += 7
    after = run(bsa, case, inputs, backward=False)
    for name in before:
        assert torch.equal(before[name][:45], after[name][:45])
        assert torch.equal(before[name][70:], after[name][70:])
    assert not torch.equal(before["out"][45:70], after["out"][45:70])


@pytest.mark.parametrize("selection", ["head", "shared"])
def test_lists_hold_for_each_block_its_queries_and_are_ordered_for_a_backward(bsa, selection):
    case = of(batch=3, lengths="70:0:47", block_counts=4, selection=selection)
    inputs = make_inputs(case, seed=6, kind="normal", device="cpu")
    tensors = tensors_of(bsa, case, inputs)
    problem = bsa.problem_of(
        tensors,
        max_seqlen=70,
        max_seqlen_q=70,
        block_size=16,
        block_counts=4,
        alpha=1.0,
        scaling_seqlen=1,
        local_window=None,
        selection=selection,
        pairs=False,
    )
    config = replace(bsa.default_config(problem, (0, 0)), **CUT | {"chunk": 128, "order_chunk": 64})
    heads, cpu = problem.list_heads, torch.device("cpu")
    blocks = torch.empty(117, heads, 4, dtype=torch.int32)
    workspace = poisoned(bsa.forward_workspace(problem, config, cpu))
    call = tensors.call(problem, config, torch.empty(117, 2, 16), blocks, workspace)
    bsa.forward(call)
    listed = {}
    for head in range(heads):
        for number, (first, length) in enumerate(((0, 70), (70, 0), (70, 47))):
            expected = []
            starts = workspace["starts"][head, first // 16 + number :][: length // 16 + 1].tolist()
            for block in range(length // 16):
                assert starts[block] == len(expected)
                mine = [
                    t * 3 + s for t in range(length) for s in range(3) if blocks[first + t, head, s] == block < t // 16
                ]
                place = slice(first * 3 + len(expected), first * 3 + len(expected) + len(mine))
                assert sorted(workspace["entries"][head, place].tolist()) == mine
                # A card's atomics leave any order.
                workspace["entries"][head, place] = torch.tensor(mine, dtype=torch.int32).flip(0)
                expected += mine
            assert starts[-1] == len(expected)
            listed[head, first, len(expected)] = expected
    found = poisoned(bsa.allocate(bsa.backward_shapes(problem, config), cpu))
    like = {f"d{name}": torch.empty_like(getattr(inputs, name)) for name in ("q", "k", "v", "gates")}
    bsa.backward(bsa.BsaGradients(call=call, dout=inputs.dout, workspace=found, **like))
    for (head, first, count), expected in listed.items():
        assert found["ordered"][head, first * 3 :][:count].tolist() == expected


def test_gradients_reach_every_leaf_of_the_public_function(bsa):
    case = of(num_targets=3, local_window=5, batch=1, nheads=1)
    inputs = make_inputs(case, seed=2, kind="normal", device="cpu")
    # Rows and heads of a wider tensor: only the last stride has to be 1.
    wide = torch.cat([inputs.q, inputs.k, inputs.v], 2).repeat(1, 2, 1)[:, ::2]
    q, k, v = (x.requires_grad_() for x in wide.split([24, 24, 16], 2))
    gates = inputs.gates.clone().requires_grad_()
    out, blocks = bsa.hstu_bsa_attention(
        q,
        k,
        v,
        inputs.seq_offsets,
        70,
        gates=gates,
        block_size=16,
        block_counts=3,
        local_window=5,
        num_targets=inputs.num_targets,
        scaling_seqlen=case.scaling_seqlen,
        validate=True,
    )
    assert not blocks.requires_grad
    grads = torch.autograd.grad(out, (q, k, v, gates), inputs.dout)
    truth = oracle_bsa.evaluate(case, inputs, dtype=torch.float64, draw=Draw())
    for name, found in zip(("out", "dq", "dk", "dv", "dgates"), (out, *grads), strict=True):
        assert torch.allclose(found.double(), truth[name], atol=1e-6), name
    out, _ = bsa.hstu_bsa_attention(q, k, v, inputs.seq_offsets, 70, block_size=16, block_counts=3)
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiable once"):
        grad.square().sum().backward()


def test_keys_without_a_query_have_no_gradient_and_nothing_reads_lists_that_nobody_made(bsa, monkeypatch):
    q, keys = torch.ones(0, 2, 16, requires_grad=True), torch.ones(100, 2, 16, requires_grad=True)
    offsets, none = torch.tensor([0, 60, 100]), {"offsets_q": torch.zeros(3, dtype=torch.int64), "max_seqlen_q": 0}
    out, _ = bsa.hstu_bsa_attention(q, keys, keys, offsets, 60, **none, block_size=16, block_counts=3)
    launched = []
    monkeypatch.setattr(
        sys.modules["attnbench.kernels.hstu.bsa.backward"], "launch", lambda *x, **_: launched.append(x)
    )
    assert not torch.autograd.grad(out.sum(), keys)[0].any()
    assert not launched


def test_a_session_of_the_backend_passes_the_examination_of_a_run(bsa, monkeypatch):
    from attnbench.backends.base import Config, Machine
    from attnbench.backends.hstu_bsa_triton import HstuBsaTriton
    from attnbench.check import examine as examination
    from attnbench.check.reference import References
    from attnbench.errors import Unsupported
    from attnbench.workloads.hstu.work import sparse_work

    # Nothing is late on a CPU.
    monkeypatch.setattr(examination, "SETTLE_S", 0.0)
    case = of(batch=1, nheads=1, seqlen=50, mode="fwd-bwd", dtype="fp16")
    inputs = [make_inputs(case, seed=seed, kind="normal", device="cpu") for seed in (1, 2)]
    backend = HstuBsaTriton(Config("small", CUT))
    backend.check(case, Machine("cuda", (9, 0)))
    with pytest.raises(Unsupported, match="hstu-bsa-triton: block_size=8 is not supported; one of 16, 32, 64, 128"):
        backend.check(of(block_size=8), Machine("cuda", (9, 0)))
    references = References(WORKLOAD, case, *inputs)
    with backend.session(case, inputs[0]) as launch:
        outcome = examination.examine(launch, references, variant=backend.variant, budget=backend.budget(case))
        assert (outcome.ok, outcome.reason) == (True, None)
        assert launch.executed_flops == sparse_work(case).flops
        assert list(launch.phases) == ["pool", "select", "lists", "attend"]
    hopper = HstuBsaTriton(Config("ws", {"select": {}, "attend": {}})).session(case, inputs[0])
    with pytest.raises(Unsupported, match=r"^hstu-bsa-triton: select is for sm_90 alone, .*; another conf"), hopper:
        pass
    shorts = [config.short for config in backend.configs(case)]
    assert len({*shorts}) == len(shorts)
    assert not any(mark in short for short in shorts for mark in ",[] ")


WRONG = {
    "block_size=24 is not a power of two; one of 16, 32, 64, 128": {"block_size": 24},
    "block_size=8 is not supported; one of 16, 32, 64, 128": {"block_size": 8},
    "block_size=16.0 is not a whole number; one of 16, 32, 64, 128": {"block_size": 16.0},
    "alpha='1' is of type str; a number, or None": {"alpha": "1"},
    "offsets=[0, 70, 140] is of type list; a tensor": {"offsets": [0, 70, 140]},
    "gates=1 is of type int; a tensor": {"gates": 1},
    "config='passes' is of type str; a BsaConfig, or None": {"config": "passes"},
    "block_counts=17 is out of range; a whole number from 1 to 16": {"block_counts": 17},
    "block_counts=6 is over the 5 blocks of 16 in 70 rows; at most 5": {"block_counts": 6},
    "selection=all is not known; head or shared": {"selection": "all"},
    "alpha=-1.0 would reverse the ranking; a finite number above 0": {"alpha": -1.0},
    "local_window=0 cannot be used; a whole number from 1 to 16777216, or None": {"local_window": 0},
    "local_window=2147483647 cannot be used; a whole number from 1 to 16777216, or None": {"local_window": 2**31 - 1},
    "q.shape=() is not packed; [rows, heads, dims]": {"q": torch.tensor(1.0)},
    "max_seqlen=None cannot be used; a whole number from 0 to 16777216": {"max_seqlen": None},
    "gates.shape=(140, 2, 3) does not fit; (140, 2, 2)": {"gates": torch.ones(140, 2, 3)},
    "gates.dtype=torch.float16 does not fit; torch.float32": {"gates": torch.ones(140, 2, 2).half()},
    "k.dtype=torch.float16 does not fit; torch.float32, q's": {"k": torch.ones(140, 2, 24).half()},
    "offsets[0]=1 is not the start; 0": {"offsets": torch.tensor([1, 70, 140])},
    "offsets[2]=60 falls from 70; offsets that never decrease": {"offsets": torch.tensor([0, 70, 60])},
    "offsets[2]=139 is not the end of k; its 140 rows": {"offsets": torch.tensor([0, 70, 139])},
    "max_seqlen=69 is below the 70 rows of sequence 0; at least 70": {"max_seqlen": 69},
    "num_targets[1]=71 is out of range; from 0 to its 70 rows": {"num_targets": torch.tensor([0, 71])},
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_arguments_are_named_in_one_line(bsa, line):
    inputs = make_inputs(of(), seed=1, kind="normal", device="cpu")
    values = {
        "q": inputs.q,
        "k": inputs.k,
        "v": inputs.v,
        "offsets": inputs.seq_offsets,
        "max_seqlen": 70,
        "block_size": 16,
        "validate": True,
    } | WRONG[line]
    with pytest.raises(ValueError) as caught:
        bsa.hstu_bsa_attention(values.pop("q"), values.pop("k"), values.pop("v"), **values)
    assert str(caught.value) == f"hstu_bsa_attention: {line}"


def test_every_knob_is_a_constant_of_some_launch():
    """A field of the configuration that no launcher reads would tune nothing."""
    from attnbench.kernels.hstu.bsa import backward as hstu_bsa_backward
    from attnbench.kernels.hstu.bsa import forward as hstu_bsa_forward
    from attnbench.kernels.hstu.bsa import plan as hstu_bsa_plan

    modules = (hstu_bsa_forward, hstu_bsa_backward, hstu_bsa_plan)
    sources = "".join(Path(module.__file__).read_text(encoding="utf-8") for module in modules)
    for field in fields(hstu_bsa_plan.BsaConfig):
        assert any(f"{owner}.{field.name}" in sources for owner in ("c", "config")), field.name
