"""Steps of our kernels, in Triton's interpreter: SiLU joined with the append, the sum of split keys with the gate."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.backends.serving_session import ServingSession
from attnbench.models.hstu_ranking.attention import MOST_EPILOGUE_ROWS
from attnbench.models.hstu_ranking.config import config_of
from attnbench.models.hstu_ranking.graphs import StepGraphs
from attnbench.models.hstu_ranking.model import HstuRanking
from attnbench.models.hstu_ranking.operations import FUSED, PLAIN
from attnbench.workloads.base import load_workload
from kernels.interpreter import interpreted

from .test_hstu_ranking import held, request

SMALL = replace(config_of("tiny"), head=(4, 1))
PRODUCT = "attnbench.kernels.hstu.projection.api"
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


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("form", "variant", "cached"),
    [
        ("epilogue", "hstu", True),
        ("epilogue", "stu", True),
        ("epilogue", "hstu", False),
        ("epilogue+early", "hstu", True),
        ("aside", "hstu", True),
        ("epilogue+aside", "hstu", True),
    ],
)
def test_other_forms_give_the_scores_of_each_request(form, variant, cached):
    """SiLU and append as the product's epilogue, or the append by itself; what else launches them is not called."""
    model = HstuRanking(replace(SMALL, variant=variant), seed=4, dtype=torch.float32)
    calls = []

    def noting(name, function):
        def noted(*given, **named):
            calls.append(f"{name} {'pages' * (name == 'project' and named['pool'] is not None)}".strip())
            return function(*given, **named)

        return noted

    with interpreted(*APIS, PRODUCT) as (paged, layer, product), pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (paged, "hstu_paged_append"),
            (paged, "hstu_paged_silu_append"),
            (layer, "silu"),
            (product, "project"),
        ):
            patch.setattr(module, name, noting(name, getattr(module, name)))
        for fixed in (False, True):
            cache = model.make_cache(pages=12, page_size=32, poison=True) if cached else None
            graphs = StepGraphs(model, cache=cache, capture=False, attention=f"paged+{form}")
            for users in ([(1, 14, 3), (2, 3, 2)], [(1, 16, 1)], [(1, 20, 0), (2, 3, 4)]):
                requests = [request(*one) for one in users]
                model.operations = FUSED
                found = graphs(requests) if fixed else model(requests, cache=cache, attention=f"paged+{form}")
                model.operations = PLAIN
                held(model, found, requests)
    wanted = {
        "epilogue": ["project pages"] if cached else ["project"],
        "epilogue+early": ["project pages"],
        "aside": ["silu", "hstu_paged_append"],
        "epilogue+aside": ["project", "hstu_paged_append"],
    }
    assert calls == wanted[form] * (6 * SMALL.layers)


def test_an_epilogue_is_for_few_rows_and_for_kernels():
    """More rows take the product of torch, and so do models without kernels: both by the same rule as the phases."""
    model = HstuRanking(SMALL, dtype=torch.float32)
    assert not model.has_epilogue("paged+epilogue", 1)
    model.operations = FUSED
    for name in ("paged+epilogue", "paged+epilogue+aside"):
        assert model.has_epilogue(name, MOST_EPILOGUE_ROWS)
        assert not model.has_epilogue(name, MOST_EPILOGUE_ROWS + 1)
    assert not model.has_epilogue("paged", 1)
    assert [model.launches_append(name, 1) for name in ("paged", "paged+epilogue", "paged+epilogue+aside")] == [
        True,
        False,
        True,
    ]
    assert model.launches_append("paged+epilogue", MOST_EPILOGUE_ROWS + 1)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("form", ["epilogue", "aside", "epilogue+aside"])
def test_phases_of_other_forms(form):
    """An append in the epilogue is no phase; one aside is timed by itself, and the cache is left as it was found."""
    workload = load_workload("hstu-serving")
    numbers = {"model": "tiny", "batch": 1, "num_candidates": 2, "cached": 16, "new_tokens": 4, "page_size": 32}
    case = workload.case(numbers | {"dtype": "fp32"})
    inputs = workload.inputs(case, seed=1, kind="normal", device="cpu")
    inputs.model.operations = FUSED
    with interpreted(*APIS, PRODUCT):
        session = ServingSession(case, inputs, f"paged+{form}", cached=True)
        session.forward()
        before = session.outputs()["out"].clone()
        session.reset()
        phases = session.phases()
        assert ("append" in phases) == (form != "epilogue")
        for phase in phases.values():
            phase()
        session.reset()
        session.forward()
        assert torch.equal(session.outputs()["out"], before)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("cached", [True, False])
def test_phases_of_joined_kernels_may_be_called_again(cached, monkeypatch):
    """The append changes queries, keys and values each time: those that attention is timed with stay as they were."""
    workload = load_workload("hstu-serving")
    numbers = {"model": "tiny", "batch": 1, "num_candidates": 2, "cached": 16, "new_tokens": 4, "page_size": 32}
    case = workload.case(numbers | {"dtype": "fp32"})
    inputs = workload.inputs(case, seed=1, kind="normal", device="cpu")
    inputs.model.operations = FUSED
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
