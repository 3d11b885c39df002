"""Steps of our kernels, in Triton's interpreter: SiLU joined with the append, the sum of split keys with the gate."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.backends.serving_session import ServingSession
from attnbench.models.hstu_ranking import attention
from attnbench.models.hstu_ranking.config import config_of
from attnbench.models.hstu_ranking.graphs import StepGraphs
from attnbench.models.hstu_ranking.model import HstuRanking
from attnbench.models.hstu_ranking.operations import FUSED, PLAIN
from attnbench.workloads.base import load_workload
from kernels.interpreter import interpreted

from .test_hstu_ranking import held, request

SMALL = replace(config_of("tiny"), head=(4, 1))
APIS = "attnbench.kernels.hstu.paged.api", "attnbench.kernels.hstu.layer.api"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of rows that nobody has written, which become 0
@pytest.mark.parametrize(("variant", "cached"), [("hstu", True), ("stu", True), ("hstu", False)])
def test_joined_kernels_give_the_scores_of_each_request(variant, cached):
    """Step by step and from the fixed buffers of a graph; of a layer without SiLU on keys too, and without a cache."""
    model = HstuRanking(replace(SMALL, variant=variant), seed=4, dtype=torch.float32)
    joined = []
    with interpreted(*APIS) as (_, layer), pytest.MonkeyPatch.context() as patch:
        calls = sys.modules["attnbench.kernels.hstu.paged.calls"]
        patch.setattr(calls, "splits_of", lambda q, step, config: 3)
        launch_append, run_gate = calls.launch_append, layer._run_gate
        patch.setattr(
            calls,
            "launch_append",
            lambda *given, silu_with=None: (
                joined.append("silu" * (silu_with is not None)),
                launch_append(*given, silu_with=silu_with),
            ),
        )
        patch.setattr(layer, "_run_gate", lambda *given: (joined.append(given[5].dim()), run_gate(*given))[1])
        for fixed in (False, True):
            cache = model.make_cache(pages=12, page_size=32, poison=True) if cached else None
            graphs = StepGraphs(model, cache=cache, capture=False)
            for users in ([(1, 14, 3), (2, 3, 2)], [(1, 16, 1)]):
                requests = [request(*one) for one in users]
                model.operations = FUSED
                found = graphs(requests) if fixed else model(requests, cache=cache, attention="paged")
                model.operations = PLAIN
                held(model, found, requests)
    launches = 2 * 2 * SMALL.layers
    assert joined.count("silu") == (launches if cached and variant == "hstu" else 0)
    assert joined.count("") == (launches if cached and variant == "stu" else 0)
    assert joined.count(4) == launches


class Stream:
    """Notes who waits for it, and what is launched on it."""

    def __init__(self, name, called):
        self.name, self.called = name, called

    def wait_stream(self, other):
        self.called.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def current(self):
        self.called.append(f"on {self.name}")
        yield
        self.called.append("on main")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("variant", ["hstu", "stu"])
def test_a_step_to_be_captured_appends_beside_attention(variant, branches, monkeypatch):
    """The append follows keys and values, attention does not follow it, and the output follows both."""
    model = HstuRanking(replace(SMALL, variant=variant), seed=4, dtype=torch.float32)
    called = []

    def note(owner, name):
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, **named: (called.append(name), function(*given, **named))[1])

    with interpreted(*APIS) as (paged, layer):
        for name in ("hstu_paged_append", "hstu_paged_silu_append", "hstu_paged_parts"):
            note(paged, name)
        for name in ("silu", "gate"):
            note(layer, name)
        if branches:
            main, beside = Stream("main", called), Stream("beside", called)
            monkeypatch.setattr(attention, "_branch", lambda x: beside)
            monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
            monkeypatch.setattr(torch.cuda, "stream", Stream.current)
        cache = model.make_cache(pages=12, page_size=32, poison=True)
        for users in ([(1, 14, 3), (2, 3, 2)], [(1, 16, 1)], [(1, 20, 0), (2, 3, 4)]):
            requests = [request(*one) for one in users]
            histories = model.histories(requests, cache)
            model.operations = FUSED
            with cache.step([user for user, *_ in users], histories, [count for *_, count in users]) as step:
                found = model.run(model.prepare(requests, histories, step, "paged", cache).in_graph(waits=False))
            model.operations = PLAIN
            held(model, found, requests)
    fork, join = ["beside waits for main", "on beside"], ["main waits for beside"]
    silu = ["silu"] * (variant == "hstu")
    one_stream = [*silu, "hstu_paged_append", "hstu_paged_parts", "gate"]
    two_streams = [*silu, *fork, "hstu_paged_append", "on main", "hstu_paged_parts", *join, "gate"]
    assert called == (two_streams if branches else one_stream) * (3 * SMALL.layers)


def test_a_step_without_a_cache_is_captured_as_it_is():
    model = HstuRanking(SMALL, dtype=torch.float32)
    model.operations = FUSED
    requests = [request(1, 14, 3)]
    histories = model.histories(requests)
    prepared = model.prepare(requests, histories, model.uncached(requests, histories), "paged")
    assert prepared.in_graph(waits=True) is prepared


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("cached", [True, False])
def test_phases_of_joined_kernels_may_be_called_again(cached, monkeypatch):
    """The append changes queries, keys and values each time: those that attention is timed with stay as they were."""
    workload = load_workload("hstu-serving")
    numbers = {"model": "tiny", "batch": 1, "num_candidates": 2, "cached": 16, "new_tokens": 4, "page_size": 32}
    case = workload.case(numbers | {"dtype": "fp32"})
    inputs = workload.inputs(case, seed=1, kind="normal", device="cpu")
    # Other tests may be given the same model.
    monkeypatch.setattr(inputs.model, "operations", FUSED)
    with interpreted(*APIS):
        monkeypatch.setattr(sys.modules["attnbench.kernels.hstu.paged.calls"], "splits_of", lambda q, step, config: 2)
        session = ServingSession(case, inputs, "paged", cached=cached)
        session.forward()
        before = session.outputs()["out"].clone()
        phases = session.phases()
        phases["projection"]()
        found = [phases["attention"]().sums.clone()]
        for name in ("append", "projection", "append") if cached else ("projection",):
            phases[name]()
        found.append(phases["attention"]().sums)
        rows = int(session.part.prepared.count)
        assert torch.equal(found[0][:rows], found[1][:rows])
        assert ("append" in phases) == cached
        for name in ("output", "head"):
            phases[name]()
        if cached:
            session.reset()
        session.forward()
        assert torch.equal(session.outputs()["out"], before)
