"""Means of blocks made beside `select` for Hopper, on a machine that executes several programs at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from triton.experimental import gluon

from attnbench.kernels import hstu_bsa_forward, hstu_bsa_hopper_means
from attnbench.kernels import hstu_bsa_hopper_select as hopper
from attnbench.kernels.hstu_bsa_hopper_cut import APART, SelectCut, select_fault, select_shapes
from attnbench.kernels.hstu_bsa_plan import BsaConfig, forward_shapes
from attnbench.workloads.hstu.inputs import make_inputs

from .hopper_machine import Deadlock, MissingFence, Race, machine_runs
from .test_hstu_bsa_hopper_select import call_of, case_of, held

CUT = SelectCut(groups=2, blocks=32, stages=2, pools=True, jobs=1, ahead_mib=0)
CASES = {
    "two-sequences": ({"lengths": "300:90"}, CUT, 2),
    "a-program-alone": ({"lengths": "300:90"}, replace(CUT, jobs=1000), 1),
    "several-heads": ({"batch": 3, "lengths": "260:140:200", "nheads": 3}, replace(CUT, jobs=3), 3),
    "one-of-each-length": ({"batch": 8, "lengths": "0:1:31:33:0:32:200:5"}, CUT, 2),
    "more-sequences-than-lanes": ({"batch": 40, "seqlen": 70, "lengths": ":".join(["70", "0", "3", "40"] * 10),
                                   "block_counts": 3}, replace(CUT, jobs=4), 3),
    "no-whole-block": ({"batch": 3, "seqlen": 31, "lengths": "31:0:7", "block_counts": 1}, CUT, 2),
    "one-block-and-no-more": ({"seqlen": 64, "lengths": "32:64", "block_counts": 2}, CUT, 2),
    "cached": ({"batch": 4, "lengths": "300:6:141:160", "delta_q": 5}, CUT, 2),
    "cached-window": ({"batch": 3, "lengths": "290:210:141", "delta_q": 140, "local_window": 40}, CUT, 1),
    "three-warpgroups": ({"seqlen": 430, "lengths": "430:300"}, replace(CUT, groups=3), 2),
    "stripes": ({"seqlen": 430, "lengths": "430:300", "local_window": 70}, replace(CUT, rows=128, pool_stages=1), 2),
    "joint": ({"seqlen": 430, "lengths": "430:300"}, replace(CUT, joint=True, sharing=2), 2),
    "blocks-of-16": ({"lengths": "300:129", "block_size": 16}, CUT, 2),
    "blocks-of-64": ({"lengths": "300:129", "block_size": 64}, replace(CUT, pool_stages=3), 2),
    "blocks-of-128": ({"lengths": "300:129", "block_size": 128, "block_counts": 3}, CUT, 2),
    "odd-dims": ({"attn_dim": 24, "linear_dim": 40, "lengths": "300:100", "dtype": "fp16"}, CUT, 2),
    "other-dims": ({"attn_dim": 32, "linear_dim": 128, "lengths": "200:100"}, CUT, 2),
    "bar-64": ({"attn_dim": 64, "linear_dim": 64, "lengths": "300:0"}, CUT, 2),
    "far-ahead": ({"batch": 3, "lengths": "300:140:200"}, replace(CUT, ahead_mib=1.0), 3),
}


def made(values):
    case = case_of(**values)
    inputs = make_inputs(case, seed=3, kind="normal", device="cpu")
    call = call_of(case, inputs)
    for name in ("means_k", "means_v"):
        call.workspace[name].fill_(torch.nan)
    return case, inputs, call


def ran(call, cut, *, seed=0, at_once=2):
    with machine_runs(hopper, "hstu_bsa_hopper_select", seed=seed, at_once=at_once):
        hopper.select_hopper(call, cut)
    return call


def means_held(case, inputs, call):
    """Means are rounded once, and what is no mean is left alone."""
    for name, x in (("means_k", inputs.k), ("means_v", inputs.v)):
        found = call.workspace[name].double()
        for start, end in zip(inputs.seq_offsets[:-1].tolist(), inputs.seq_offsets[1:].tolist(), strict=True):
            whole, first = (end - start) // case.block_size, start // case.block_size
            blocks = x[start:start + whole * case.block_size].double().unflatten(0, (whole, case.block_size))
            right, mine = blocks.mean(1).transpose(0, 1), found[:, first:first + whole]
            # Half a step, and what the sums in fp32 lose.
            allowed = right.abs() * torch.finfo(x.dtype).eps / 2 + 2.0**-20
            assert bool(((mine - right).abs() <= allowed).all())
            found[:, first:first + whole] = torch.nan
        assert bool(found.isnan().all())


@pytest.mark.parametrize("name", CASES)
def test_means_output_and_selection_are_right(name):
    values, cut, at_once = CASES[name]
    case, inputs, call = made(values)
    ran(call, cut, seed=len(name), at_once=at_once)
    held(case, inputs, call.out, call.blocks)
    means_held(case, inputs, call)


def test_the_same_bits_however_many_programs_there_is_room_for():
    """Programs that have not started are waited for by nobody, whoever comes first."""
    found = []
    for seed, (at_once, jobs, ahead) in enumerate([(1, 1, 0.0), (2, 1, 0.0), (5, 1, 0.01), (3, 2, 1.0), (2, 9, 0.0)]):
        _, _, call = made({"batch": 3, "lengths": "200:0:290", "nheads": 2})
        ran(call, replace(CUT, jobs=jobs, ahead_mib=ahead), seed=seed, at_once=at_once)
        found.append((call.out, call.blocks, *(call.workspace[name].nan_to_num() for name in ("means_k", "means_v"))))
    for other in found[1:]:
        assert all(torch.equal(mine, its) for mine, its in zip(found[0], other, strict=True))


def test_calls_one_after_another_begin_anew():
    case, inputs, call = made({"lengths": "200:150"})
    for seed in range(2):
        call.out.fill_(torch.nan)
        ran(call, CUT, seed=seed)
        held(case, inputs, call.out, call.blocks)


@gluon.jit
def impatient(drawn_ptr, number, key_start, seen, visible, heads, BLOCK_SIZE):
    return seen


@gluon.jit
def unfenced():
    pass


BROKEN = {"a-job-that-does-not-wait": (hopper, "wait_made", impatient, Race),
          "no-fence": (hstu_bsa_hopper_means, "fence_global", unfenced, MissingFence)}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_caught(name, monkeypatch):
    module, function, broken, mistake = BROKEN[name]
    monkeypatch.setattr(module, function, broken)
    with pytest.raises(mistake):
        ran(made({"lengths": "300:140"})[2], CUT)


def test_means_are_made_when_selection_comes_near(monkeypatch):
    """If never enough jobs have been drawn, no mean is made, and the jobs wait for ever."""
    monkeypatch.setattr(SelectCut, "ahead", lambda self, problem: -1000)
    with pytest.raises(Deadlock, match=r"fetch.*global memory to change"):
        ran(made({"lengths": "300:140"})[2], CUT)


def test_who_pools_needs_no_pool(monkeypatch):
    _, _, call = made({"lengths": "200:100"})
    for pools, phases in ((False, ["pool", "select", "lists", "attend"]), (True, ["select", "lists", "attend"])):
        said = []
        for name in ("pool", "select", "lists", "attend"):
            monkeypatch.setattr(hstu_bsa_forward, name, lambda call, name=name, said=said: said.append(name))
        hstu_bsa_forward.forward(replace(call, config=BsaConfig(select=SelectCut(pools=pools))))
        assert said == phases


def test_counters_are_workspace_with_and_without_lists():
    problem = made({"lengths": "200:100"})[2].problem
    for counts in (1, 4):
        p = replace(problem, block_counts=counts)
        shapes = forward_shapes(p, BsaConfig(select=CUT))
        assert shapes["drawn"] == select_shapes(p, CUT)["drawn"] == ((2 * APART + 300 // 128 + 2,), torch.int32)
        assert "drawn" not in forward_shapes(p, BsaConfig())


def test_a_cut_that_pools_counts_its_shared_memory():
    problem = replace(made({"lengths": "200:100"})[2].problem, attn_dim=128, linear_dim=128)
    cut = SelectCut(blocks=32, stages=8)
    assert select_fault(problem, cut, capability=(9, 0)) is None
    assert "KiB of shared memory" in (select_fault(problem, replace(cut, pools=True), capability=(9, 0)) or "")
    assert select_fault(problem, replace(cut, pools=True, stages=6), capability=(9, 0)) is None
    assert "0 or more" in (select_fault(problem, replace(cut, ahead_mib=-1.0), capability=(9, 0)) or "")
    assert "no stage" in (select_fault(problem, replace(cut, pool_stages=0), capability=(9, 0)) or "")
