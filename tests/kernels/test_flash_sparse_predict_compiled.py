"""Prediction of block maps compiled ahead of time, by both Tritons; and what a second call launches, on no card."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.backends.predict import Predictor
from attnbench.kernels import Card
from attnbench.kernels.flash.sparse import lists, predict
from attnbench.kernels.flash.sparse.hopper import predict as hopper_predict
from attnbench.kernels.flash.sparse.problem import sparse_problem_of
from attnbench.kernels.shared.card import stood_in_for
from attnbench.kernels.shared.kept import Kept
from attnbench.workloads.sparse import WORKLOAD

from .aot import EVERY, compile_with, recorded, tritons
from .launches import on_no_card

bf16 = torch.bfloat16
NAMES = ("pool_blocks", "multiply_parts", "select_blocks", "multiply_parts_hopper")


def jobs_to_hold():
    """16 bits at 64 and 128 dims, strides of all kinds, and rows of as many columns as 32,768 and 262,144 keys have."""
    with (
        stood_in_for(Card((9, 0), 132)),
        recorded(predict, "pool_blocks", "multiply_parts", "select_blocks", capability=90) as jobs,
        recorded(hopper_predict, "multiply_parts_hopper", capability=90) as hopper_jobs,
    ):
        for seqlen, dim, dtype, rule in (
            (512, 64, bf16, predict.Rule(block=(64, 128), share=0.5, by_number=True, scale=0.1, parts=4)),
            (
                512,
                128,
                bf16,
                predict.Rule(block=(128, 64), share=0.5, by_number=False, scale=0.1, gate=0.1, causal=True),
            ),
            (16384, 128, bf16, predict.Rule(block=(64, 64), share=0.5, by_number=False, scale=0.1, stride=16)),
            (1000, 128, bf16, predict.Rule(block=(64, 64), share=0.5, by_number=False, scale=0.1, stride=16)),
            (1000, 80, torch.float16, predict.Rule(block=(128, 128), share=0.5, by_number=False, scale=0.1, stride=16)),
            (1000, 80, torch.float32, predict.Rule(block=(128, 128), share=0.5, by_number=False, scale=0.1, stride=16)),
        ):
            q, k = (torch.empty(1, seqlen, heads, dim, dtype=dtype, device="meta") for heads in (4, 2))
            predict.predict_blocks(q.transpose(1, 2), k.transpose(1, 2), rule)
        for columns, by_number in ((512, True), (512, False), (4096, False)):
            rule = predict.Rule(block=(64, 64), share=0.5, by_number=by_number, scale=0.1)
            scores = predict.Scores(torch.empty(1, 4, 4, columns, device="meta"))
            predict._selected(rule, scores, 4, (256, 64 * columns))
    with stood_in_for(Card((8, 0), 108)), recorded(predict, "multiply_parts", capability=90) as wide:
        q, k = (torch.empty(1, heads, 4096, 128, dtype=bf16, device="meta") for heads in (4, 2))
        predict._products(
            predict.Rule(block=(64, 64), share=0.5, by_number=False, scale=0.1, parts=4), q, k, (32768, 32768)
        )
    return [replace(job, label=f"{job.label} {number}") for number, job in enumerate([*jobs, *wide, *hopper_jobs])]


def test_it_compiles_for_hopper_without_spills():
    jobs = jobs_to_hold()
    named = {name: [job for job in jobs if job.label.startswith(f"{name} ")] for name in NAMES}
    assert {name: len(found) for name, found in named.items()} == {
        "pool_blocks": 2,
        "multiply_parts": 5,
        "select_blocks": 9,
        "multiply_parts_hopper": 2,
    }
    *_, means = named["multiply_parts"]
    of_means, of_strides = named["multiply_parts_hopper"]
    # What a Triton breaks is seen at one shape of each kernel and at the longest rows.
    few = jobs if EVERY else [jobs[0], means, of_means, of_strides, named["select_blocks"][-1]]
    for version, folder in tritons().items():
        found = compile_with({version: folder}, jobs if version == "pinned" else few)[version]
        assert not [label for label, code in found.items() if code.spills]
        assert all(code.tensor_core for label, code in found.items() if label.startswith("multiply_parts"))
        # The selection is launched early; it accesses nothing before the products have ended.
        assert all(code.sass["ACQBULK"] for label, code in found.items() if label.startswith("select_blocks"))
        assert not [label for label, code in found.items() if code.before_wait]
        # Two tiles of means on an SM: the exponentials of one run beside the products of the other.
        assert found[means.label].registers <= 128
        for job in (of_means, of_strides):
            code = found[job.label]
            assert code.early == 0
            assert len(code.loops) == 2  # one for each warpgroup
            # In it a stage is awaited and one released while a product is in flight, and one product is waited for.
            for loop in code.loops:
                assert loop["beside"]["SYNCS"] == 2
                assert loop["sass"]["WARPGROUP.DEPBAR"] == 1
        # Where strides are no whole ones: while a product is in flight, operands of later ones are copied.
        if version == "pinned" or EVERY:
            for job in named["multiply_parts"][1:3]:
                (loop,) = found[job.label].loops
                assert loop["beside"]["LDGSTS"]


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("text", ["topk0.3", "cdf0.5-sim0.1", "sub0.5", "anti0.5"])
def test_a_second_call_repeats_the_launches_of_the_first_on_its_own_tensors(monkeypatch, text, nested):
    monkeypatch.setattr(predict, "_calls", Kept())
    monkeypatch.setattr(lists, "_calls", Kept())
    case = WORKLOAD.case({"batch": 1, "seqlen": 300, "nheads": 4, "nheads_kv": 2, "headdim": 64, "block": "64x64"})
    rule = Predictor.read("who", text)
    seen = []
    with on_no_card(nested=nested) as card:
        for _ in range(2):
            q, k = (torch.zeros(1, 300, heads, 64, dtype=torch.bfloat16) for heads in (4, 2))
            card.launched.clear()
            card.held.clear()
            blocks = rule._by_kernels(case, q.transpose(1, 2), k.transpose(1, 2))
            problem = sparse_problem_of(q, k, k, block=(64, 64))
            made = lists.lists_of(blocks, q, k, problem)
            assert blocks.shape == problem.map_shape
            assert made.items.shape == (20, 3)
            assert card.through_triton == (4 if text == "anti0.5" else 5)
            # Tensors by the order in which they are first given: workspaces of the second call share an allocation.
            names: dict[int, str] = {x.data_ptr(): name for name, x in (("q", q), ("k", k))}
            for (_, *specialised), _, arguments in card.launched:
                for kind, value in zip(specialised, arguments, strict=True):
                    if isinstance(kind, tuple) and isinstance(kind[0], torch.dtype):
                        names.setdefault(value, f"made {len(names)}")
            assert len(names) > 5
            seen.append(
                [(*what, [names.get(value, value) for value in arguments]) for *what, arguments in card.launched]
            )
    assert len(seen[0]) == card.through_triton
    assert seen[0] == seen[1]
