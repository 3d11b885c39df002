"""Video rows on a GPU: our kernels in a model, the launches of a step, a compiled step."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from attnbench.backends.registry import resolve
from attnbench.check.examine import examine
from attnbench.check.reference import References
from attnbench.profile.categories import ADD, COPY, load
from attnbench.workloads.base import load_workload

pytestmark = pytest.mark.gpu

pytest.importorskip("diffusers", reason="diffusers is not installed; pip install attnbench[video]")

WORKLOAD = load_workload("video")
OURS = ("flash-triton", "flash-sparse", "flash-quant", "flash-sparse-quant")
MAP = {"height": 128, "width": 128, "block": "64x64", "density": 0.5}
"A video whose attention has several blocks, for a sparse row."


def case(**values):
    return WORKLOAD.case({"model": "tiny", "dtype": "bf16", "steps": 3, "warm_ups": 0} | values)


def inputs(one, seed=1):
    return WORKLOAD.inputs(one, seed=seed, kind="normal", device="cuda")


@pytest.mark.parametrize("name", ["sdpa", "sdpa-flash", *OURS])
def test_a_step_and_a_generation_are_right_on_a_card(name):
    one = case(**MAP)
    group = References(WORKLOAD, one, inputs(one, 1), inputs(one, 2))
    backend = resolve(f"video[{name}]", one)
    with backend.session(one, group.first.inputs) as launch:
        outcome = examine(launch, group, variant=backend.variant_of(one), budget=backend.budget(one))
        assert outcome.ok, outcome.reason
        found = launch.whole()
        latents = [launch.at_length() for _ in range(2)]
    assert torch.equal(*latents)
    assert found["attention_calls"] == 2 * 3
    assert found["generation_peak_mb"] > 0


def kernels(name, one, found):
    """Launches of one step by category."""
    from torch.profiler import ProfilerActivity, profile

    with resolve(f"video[{name}]", one).session(one, found) as launch:
        for _ in range(2):
            launch.reset()
            launch.forward()
        launch.reset()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as taken:
            launch.forward()
            torch.cuda.synchronize()
    rules, counts = load(), Counter()
    for event in taken.key_averages():
        if event.self_device_time_total > 0:
            counts[rules.of(event.key)] += event.count
    return counts


@pytest.mark.parametrize("name", OURS)
def test_no_backend_of_ours_adds_a_copy_or_an_addition_to_those_of_sdpa(name):
    one = case(**MAP)
    found = inputs(one)
    theirs, mine = kernels("sdpa", one, found), kernels(name, one, found)
    assert sum(theirs.values()) > 0
    assert mine[COPY] <= theirs[COPY]
    assert mine[ADD] <= theirs[ADD]


@pytest.mark.parametrize("name", ["sdpa", *OURS])
def test_a_compiled_step_is_right_and_has_no_graph_break(name):
    one = case(compile="default", **MAP)
    group = References(WORKLOAD, one, inputs(one, 1), inputs(one, 2))
    backend = resolve(f"video[{name}]", one)
    with backend.session(one, group.first.inputs) as launch:
        outcome = examine(launch, group, variant=backend.variant_of(one), budget=backend.budget(one))
        assert outcome.ok, outcome.reason
        found = launch.whole()
    assert (found["graph_breaks"], found["recompiles"]) == (0, 0)
