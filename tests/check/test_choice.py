"""A launch that makes a choice: the check of the choice, then of its result; the blocks of block-sparse HSTU."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from attnbench.backends.base import Budget, Launch
from attnbench.check.examine import examine, recheck
from attnbench.check.reference import References
from attnbench.workloads.base import Draw
from attnbench.workloads.hstu import WORKLOAD
from attnbench.workloads.hstu.choice import BlockChoice
from attnbench.workloads.hstu.inputs import make_inputs, torch_dtype
from attnbench.workloads.hstu.oracle_bsa import evaluate, select_blocks

pytestmark = pytest.mark.usefixtures("at_once")


def of(**values):
    return WORKLOAD.case(
        {
            "batch": 2,
            "seqlen": 61,
            "nheads": 2,
            "attn_dim": 8,
            "linear_dim": 4,
            "dtype": "fp32",
            "mode": "fwd-bwd",
            "block_size": 4,
            "block_counts": 3,
        }
        | values
    )


class Session:
    """Computes what follows from the right blocks; the misbehaving ones select, use or say others."""

    def __init__(self, case, inputs):
        self.case, self.inputs, self.result = case, inputs, {}

    def used(self):
        return select_blocks(self.case, self.inputs)

    def said(self, used):
        return used

    def forward(self):
        used = self.used()
        answer = evaluate(self.case, self.inputs, dtype=torch.float64, draw=Draw(), blocks=used)
        self.result = {name: tensor.to(torch_dtype(self.case)) for name, tensor in answer.items()}
        self.result["blocks"] = self.said(used)

    def reload(self, inputs):
        self.inputs = inputs

    def launch(self):
        return Launch(forward=self.forward, backward=lambda: None, outputs=lambda: self.result, reload=self.reload)


def other_blocks(case, blocks):
    """Every query's lowest block given up for another earlier one, where there is one."""
    changed = blocks.clone()
    for row in changed.flatten(0, 1):
        held = set(row.tolist())
        free = [block for block in range(max(held)) if block not in held]
        if free and len(held) > 1:
            row[0] = free[0]
    return changed


class NearTie(Session):
    """Ranks keys that are off by half a rounding step; hands its blocks over in another order."""

    def used(self):
        k = self.inputs.k.double()
        signs = torch.randint(2, k.shape, generator=torch.Generator().manual_seed(0)) - 0.5
        rounded = k * (1 + torch.finfo(self.inputs.k.dtype).eps * signs)
        return select_blocks(self.case, replace(self.inputs, k=rounded)).flip(2)


class SetsPrecision(NearTie):
    def forward(self):
        super().forward()
        torch.set_float32_matmul_precision("medium")


class WrongByScore(Session):
    def used(self):
        return other_blocks(self.case, super().used())


class SaysAnother(Session):
    """Hands over a good selection and uses another."""

    def used(self):
        return other_blocks(self.case, super().used())

    def said(self, used):
        return select_blocks(self.case, self.inputs)


class SaysNothing(Session):
    def forward(self):
        super().forward()
        del self.result["blocks"]


class SaysNothingWrong(WrongByScore, SaysNothing):
    pass


class Cached(Session):
    def forward(self):
        if not self.result:
            super().forward()
            self.kept = {name: tensor.clone() for name, tensor in self.result.items()}
        self.result = {name: tensor.clone() for name, tensor in self.kept.items()}


class Unwritten(Session):
    """Writes its blocks on the first call after a reload only."""

    kept = None

    def said(self, used):
        if self.kept is None:
            self.kept = used.clone()
        return self.kept

    def reload(self, inputs):
        super().reload(inputs)
        self.kept = None


class AsFloat(Session):
    def said(self, used):
        return used.float()


class Late(Session):
    """Right until it was called four times."""

    calls = 0

    def used(self):
        self.calls += 1
        right = super().used()
        return right if self.calls <= 4 else other_blocks(self.case, right)


def group_of(case):
    return References(WORKLOAD, case, *(make_inputs(case, seed=seed, kind="normal", device="cpu") for seed in (1, 2)))


def outcome_of(make, case=None):
    case = case or of()
    group = group_of(case)
    launch = make(case, group.first.inputs).launch()
    return examine(launch, group, variant="hstu-bsa", budget=Budget()), launch, group


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"selection": "shared"},
        {"pairs": True, "num_targets": 2},
        {"gates": False, "mode": "fwd"},
        {"lengths": "61:7", "local_window": 5},
        {"lengths": "0:0"},
    ],
)
@pytest.mark.parametrize("make", [Session, SaysNothing])
def test_the_honest_pass(make, values):
    case = of(**values)
    outcome, launch, group = outcome_of(make, case)
    assert (outcome.ok, outcome.reason, outcome.notes) == (True, None, ())
    assert set(outcome.errors) == ({"out"} if case.mode == "fwd" else {"out", "dq", "dk", "dv", "dgates"})
    assert recheck(launch, group, variant="hstu-bsa", budget=Budget()).ok


def test_a_tie_broken_otherwise_passes_and_its_gradients_follow():
    case = of(dtype="bf16", seqlen=128, attn_dim=16)
    outcome, launch, group = outcome_of(NearTie, case)
    assert (outcome.ok, outcome.reason, outcome.notes) == (True, None, (BlockChoice.followed,))
    assert set(outcome.errors) == {"out", "dq", "dk", "dv", "dgates"}
    own = select_blocks(case, group.first.inputs)
    blocks = launch.outputs()["blocks"]
    assert not torch.equal(blocks.sort(2).values, own.sort(2).values)
    # Held against the oracle's own blocks it would be wrong.
    plain = {name: tensor for name, tensor in launch.outputs().items() if name != "blocks"}
    launch.outputs = lambda: plain
    assert not recheck(launch, group, variant="hstu-bsa", budget=Budget()).ok


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (WrongByScore, r"^blocks: sequence 0: a block chosen over one that scores higher; sequence 1: a block chosen"),
        (SaysAnother, r"^out: wrong values"),
        (SaysNothingWrong, r"^out: wrong values"),
        (
            Cached,
            r"^cached answer: after new inputs the outputs are still those of the old ones: out, dq, dk, dv, dgates",
        ),
        (Unwritten, r"^wrong on a second call with the same inputs: blocks: sequence 0: .*the local block left out"),
        (AsFloat, r"^blocks: dtype=torch.float32 is wrong; torch.int32$"),
    ],
)
def test_who_cheats_is_told_with_words(make, words):
    outcome, _, _ = outcome_of(make)
    assert not outcome.ok
    assert re.search(words, outcome.reason), outcome.reason


def test_wrong_only_after_timing():
    outcome, launch, group = outcome_of(Late)
    assert outcome.ok
    after = recheck(launch, group, variant="hstu-bsa", budget=Budget())
    assert after.reason.startswith("right before and wrong after timing: blocks: sequence 0: a block chosen over one")


def test_the_oracle_is_computed_again_only_for_another_choice(monkeypatch):
    calls = []
    right = BlockChoice.follow
    monkeypatch.setattr(BlockChoice, "follow", lambda self, *a, **k: calls.append(k["dtype"]) or right(self, *a, **k))
    assert outcome_of(Session)[0].ok
    assert not calls
    outcome, _, group = outcome_of(NearTie, of(dtype="bf16", seqlen=128, attn_dim=16))
    assert outcome.ok
    # Twice for each set of inputs, the truth and the plain evaluation, whatever number of launches.
    assert calls == [torch.float64, torch.bfloat16] * 2
    assert not group.first._followed
    assert not group.second._followed


def test_the_plain_evaluation_is_not_made_under_settings_a_launch_left(monkeypatch):
    seen, right = [], BlockChoice.follow
    monkeypatch.setattr(
        BlockChoice,
        "follow",
        lambda self, *a, **k: seen.append(torch.get_float32_matmul_precision()) or right(self, *a, **k),
    )
    outcome, _, _ = outcome_of(SetsPrecision, of(dtype="bf16", seqlen=128, attn_dim=16))
    assert outcome.ok
    assert set(seen) == {"highest"}
    assert any("float32 matmul precision" in note for note in outcome.notes)
