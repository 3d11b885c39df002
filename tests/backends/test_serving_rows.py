"""Serving rows: correct in every cache state, verified to be in it, split by phases, and wrong ones detected."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnbench.backends.base import Machine
from attnbench.backends.registry import all_backends, resolve
from attnbench.backends.serving_session import ServingSession
from attnbench.backends.serving_steps import StepTimes
from attnbench.check.examine import examine, recheck
from attnbench.check.inspection import Inspection
from attnbench.check.reference import References
from attnbench.errors import AttnbenchError, Unsupported, UsageError
from attnbench.machine.device import Device
from attnbench.models.hstu_ranking import attention
from attnbench.models.hstu_ranking.attention import Reference
from attnbench.record import Settings
from attnbench.worker.entry import Entry
from attnbench.worker.phases import timed_phases
from attnbench.workloads.base import Draw, load_workload

WORKLOAD = load_workload("hstu-serving")
TINY = {
    "model": "tiny",
    "batch": 2,
    "num_candidates": 5,
    "cached": 62,
    "new_tokens": 8,
    "dtype": "fp32",
    "page_size": 32,
}


def case(**values):
    return WORKLOAD.case(TINY | values)


def inputs(one, seed=1):
    return WORKLOAD.inputs(one, seed=seed, kind="normal", device="cpu")


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """No thread of these launches works on behind a call: there is nothing to wait for."""
    monkeypatch.setattr("attnbench.check.examine.SETTLE_S", 0.0)


STATES = [
    {"cache": "gpu-hit"},
    {"cache": "host-hit"},
    {"cache": "partial"},
    {"cached": 0},
    {"new_tokens": 0},
    {"cached": 64, "new_tokens": 2},
    {"cached": 32, "new_tokens": 64, "dtype": "bf16"},
    {"cache": "partial", "pool_share": 0.03},
]


@pytest.mark.parametrize("selector", ["serving-eager", "serving-eager[no-cache]", "serving-gathered[hstu-eager]"])
@pytest.mark.parametrize("values", STATES, ids=str)
def test_every_state_of_the_cache_gives_the_logits_of_the_model_without_one(selector, values):
    one = case(**values)
    group = References(WORKLOAD, one, inputs(one, 1), inputs(one, 2))
    backend = resolve(selector, one)
    terms = {"variant": "logits", "budget": backend.budget(one)}
    with backend.session(one, group.first.inputs) as launch:
        outcome = examine(launch, group, **terms)
        assert outcome.ok, outcome.reason
        # A sample that is looked at: nothing may be computed by what is not timed.
        look = Inspection(launch, group, **terms)
        look.prepare()
        launch.forward()
        assert look.finish(1e6, 1e6, 1e6, 1e6, 0.0) is None
        if launch.reset:
            launch.reset()
        launch.forward()
        for phase in launch.phases.values():
            phase()
            if launch.reset:
                launch.reset()
        launch.forward()
        assert recheck(launch, group, **terms).ok
        counts = launch.counters
    hit = one.found * 2 * ("no-cache" not in selector)
    assert counts["missed_tokens"] == one.history * 2 - hit
    assert counts["hit_tokens"] + counts["host_hit_tokens"] == hit
    assert (counts["host_hit_tokens"] > 0) == (one.cache == "host-hit" and hit > 0)
    assert launch.notes == ("model tiny: 2 layers, hidden 32, 2 heads of 16 dims",)
    assert (counts["requests"], counts["tokens"], counts["layers"]) == (2, 2 * (one.history + 5), 2)


SERIES = {"cache": "pool", "cached": 30, "batch": 2}


def least_recently_used(one):
    """Hits of each visit and evicted users of a series, by a plain list of users, the least recently used first."""
    held, hits, evicted = {}, [], 0
    for _ in range(4):
        hits, evicted = [], 0
        held = {user: min(tokens, one.cached) for user, tokens in held.items()}
        for step in one.steps:
            hits.append([held.get(visit.user, 0) for visit in step])
            wanted = {visit.user: one.history_of(visit) for visit in step}
            others = [user for user in held if user not in wanted]

            def pages_of(users):
                return sum(-(-users[user] // one.page_size) for user in users)

            while pages_of({user: held[user] for user in others} | wanted) > one.pool_pages:
                del held[others.pop(0)]
                evicted += 1
            for user, tokens in wanted.items():
                held.pop(user, None)
                held[user] = tokens
    return hits, evicted


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("share", [0.4, 0.7, 1.0])
def test_a_series_over_a_pool_finds_what_the_least_recently_used_have_left(share, graph):
    one = case(**SERIES, pool_share=share)
    group = References(WORKLOAD, one, inputs(one, 1), inputs(one, 2))
    terms = {"variant": "logits", "budget": resolve("serving-eager").budget(one)}
    session = ServingSession(one, group.first.inputs, "reference", cached=True, graph=graph, capture=False)
    launch = session.launch()
    hits, evicted = least_recently_used(one)
    assert session.found == hits
    assert launch.counters["evicted_users"] == evicted
    assert (evicted > 0) == (share < 1)
    assert 0 < launch.counters["hit_tokens"] == sum(map(sum, hits))
    assert (launch.executed_flops is None) == (share == 1)
    outcome = examine(launch, group, **terms)
    assert outcome.ok, outcome.reason
    look = Inspection(launch, group, **terms)
    look.prepare()
    launch.forward()
    assert look.finish(1e6, 1e6, 1e6, 1e6, 0.0) is None
    launch.reset()
    launch.forward()
    assert recheck(launch, group, **terms).ok
    assert launch.phases == {}
    assert launch.notes[1] == "times are of 8 steps, of 2 of 8 users each"


THRICE = Settings(timer="wall", l2="warm", warmup=0, iterations=3)
GROWTH = {"cache": "growth", "cached": 30, "new_tokens": 20, "visits": 4}


@pytest.mark.parametrize("selector", ["serving-eager", "serving-eager[no-cache]", "serving-gathered[hstu-eager]"])
def test_steps_in_which_histories_grow_are_right_and_timed_one_by_one(selector):
    one = case(**GROWTH)
    group = References(WORKLOAD, one, inputs(one, 1), inputs(one, 2))
    backend = resolve(selector, one)
    terms = {"variant": "logits", "budget": backend.budget(one)}
    backend.check(one, Machine("cpu"))
    with backend.session(one, group.first.inputs) as launch:
        outcome = examine(launch, group, **terms)
        assert outcome.ok, outcome.reason
        suspects = dict(WORKLOAD.suspects("logits", one, group.first.inputs, draw=Draw()))
        assert set(suspects) == {"cached tokens that are not read"}
        if launch.reset:
            launch.reset()
        timed = timed_phases(
            Entry(index=0, backend=backend, builder=None, launch=launch),
            "fwd",
            THRICE,
            Device("cpu"),
            lambda text: None,
        )
        assert recheck(launch, group, **terms).ok
    assert list(timed) == ["cached 30", "cached 50", "cached 70", "cached 90"]
    assert all(time.median_ms > 0 and len(time.samples_ms) == 3 for time in timed.values())
    found = 0 if "no-cache" in selector else 2 * (30 + 50 + 70 + 90)
    assert launch.counters["hit_tokens"] == found
    assert launch.counters["missed_tokens"] == 2 * (50 + 70 + 90 + 110) - found
    assert launch.notes[1] == "times are of 4 steps, each with 20 more tokens of all users"


def test_one_series_has_the_times_of_all_its_steps(monkeypatch):
    one = case(**GROWTH)
    session = ServingSession(one, inputs(one), "reference", cached=True)
    steps = []
    monkeypatch.setattr(ServingSession, "step", lambda self, requests, wanted: steps.append(tuple(wanted)))
    phases = session.launch().phases
    for order in ([0, 1, 2, 3], [3, 0, 2, 1], [1, 1, 0, 2]):
        steps.clear()
        for at in order:
            phase = phases[f"cached {30 + 20 * at}"]
            phase.call()
            assert phase.reported_ms() > 0
        series = [(30, 30), (50, 50), (70, 70), (90, 90)]
        assert steps == series * (2 if order == [1, 1, 0, 2] else 1)


def test_a_series_without_a_cache_computes_everything():
    one = case(**SERIES)
    group = References(WORKLOAD, one, inputs(one, 1), inputs(one, 2))
    with resolve("serving-eager[no-cache]", one).session(one, group.first.inputs) as launch:
        assert examine(launch, group, variant="logits", budget=resolve("serving-eager").budget(one)).ok
    assert launch.counters["hit_tokens"] == 0
    assert launch.executed_flops > WORKLOAD.work(one).flops
    with pytest.raises(Unsupported, match="serving-gathered: cache=pool has users of different lengths in a step"):
        resolve("serving-gathered", one).check(one, Machine("cpu"))


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("values", STATES, ids=str)
def test_the_fixed_buffers_of_a_graph_give_the_logits_too(values, cached):
    """As the row [graph] runs, without the capture, which a CPU has not."""
    one = case(**values)
    group = References(WORKLOAD, one, inputs(one, 1), inputs(one, 2))
    terms = {"variant": "logits", "budget": resolve("serving-eager").budget(one)}
    session = ServingSession(one, group.first.inputs, "reference", cached=cached, graph=True, capture=False)
    launch = session.launch()
    outcome = examine(launch, group, **terms)
    assert outcome.ok, outcome.reason
    assert len(session.graphs.sizes) == 1
    if launch.reset:
        launch.reset()
    launch.forward()
    assert recheck(launch, group, **terms).ok


def test_graphs_are_rows_of_what_reads_all_lengths_on_the_device():
    one = case()
    shorts = {
        name: [config.short for config in all_backends()[name].configs(one)]
        for name in ("serving-paged", "serving-eager")
    }
    assert shorts == {"serving-paged": ["no-cache", "graph", "no-cache+graph"], "serving-eager": ["no-cache"]}
    whole = [resolve(f"serving-paged[{short}]", one) for short in shorts["serving-paged"]]
    assert [(found.cached, found.graph) for found in whole] == [(False, False), (True, True), (False, True)]
    with pytest.raises(Unsupported, match="serving-paged: device=cpu has no CUDA graphs; cuda"):
        whole[1].check(one, Machine("cpu"))
    whole[1].check(one, Machine("cuda", (9, 0)))


@pytest.mark.parametrize(
    ("how", "seconds", "found"),
    [("reload", None, 62), ("recompute", None, 0), ("auto", (1.0, 2.0), 62), ("auto", (2.0, 1.0), 0)],
)
@pytest.mark.parametrize("graph", [True, False])
def test_what_lies_in_host_memory_is_brought_back_or_computed_again(how, seconds, found, graph, monkeypatch):
    from attnbench.models.hstu_ranking.host_hits import HostHits

    if seconds:
        made_up = HostHits((512,), *((one,) for one in seconds), token_bytes=10**9, layers=2, least_s=0.0)
        monkeypatch.setattr(HostHits, "measured", lambda *given, **more: made_up)
    one = case(cache="host-hit", on_host_hit=how)
    group = References(WORKLOAD, one, inputs(one, 1), inputs(one, 2))
    terms = {"variant": "logits", "budget": resolve("serving-eager").budget(one)}
    session = ServingSession(one, group.first.inputs, "reference", cached=True, graph=graph, capture=False)
    launch = session.launch()
    outcome = examine(launch, group, **terms)
    assert outcome.ok, outcome.reason
    for phase in launch.phases.values():
        launch.reset()
        phase()
    launch.reset()
    launch.forward()
    assert recheck(launch, group, **terms).ok
    assert (launch.counters["host_hit_tokens"], launch.counters["missed_tokens"]) == (2 * found, 2 * (70 - found))
    assert (launch.executed_flops is None) == (found > 0)
    chosen = "reload" if found else "recompute"
    if seconds:
        assert launch.notes[1] == (
            f"on host hit: of 512 tokens a user in host memory: reload {1e3 * seconds[0]:.3g} ms "
            f"({512 / seconds[0]:.3g} GB/s), recompute {1e3 * seconds[1]:.3g} ms; reload pays from "
            f"{512 / seconds[1]:.3g} GB/s on; {chosen} was chosen"
        )


def test_gathered_attention_serves_one_user_and_several_of_the_same_lengths():
    """To choose what to do with tokens in host memory, steps of one user are timed; the case has two as long."""
    one = case(cached=202, new_tokens=0, cache="host-hit", on_host_hit="auto")
    group = References(WORKLOAD, one, inputs(one, 1), inputs(one, 2))
    backend = resolve("serving-gathered[hstu-eager]", one)
    with backend.session(one, group.first.inputs) as launch:
        outcome = examine(launch, group, variant="logits", budget=backend.budget(one))
        assert outcome.ok, outcome.reason


class Blind(Reference):
    """Takes the cached keys and does not read them, as NVIDIA's operator on Hopper."""

    def attend(self, pool, q, k, v):
        given = self.sequences
        self.sequences = type(given)(
            given.table,
            [0] * len(given.cached),
            *(getattr(given, name) for name in ("new", "targets", "pages", "page_size", "alpha", "scaling_seqlen")),
        )
        try:
            return super().attend(pool, q, k, v)
        finally:
            self.sequences = given


def test_an_attention_that_ignores_its_pages_is_found_and_named():
    # All that is cached was computed with all keys; of what is new, cached keys are left out.
    one = case()
    group = References(WORKLOAD, one, inputs(one, 1), inputs(one, 2))
    session = ServingSession(one, group.first.inputs, Blind, cached=True)
    outcome = examine(session.launch(), group, variant="logits", budget=resolve("serving-eager").budget(one))
    assert not outcome.ok
    assert "out: wrong values" in outcome.reason
    assert outcome.reason.endswith("; matches cached tokens that are not read")


def test_a_cache_that_is_not_as_the_case_says_stops_the_step():
    one = case()
    session = ServingSession(one, inputs(one), "reference", cached=True)
    session.forward()
    with pytest.raises(AttnbenchError, match=r"cached=\[70, 70\] is not what the step was to find; \[62, 62\]"):
        session.forward()
    session.cache.evict(session.users[0])
    with pytest.raises(
        AttnbenchError,
        match=r"cached=0 \+ 0 tokens on the device and in host memory are not what "
        r"gpu-hit means; 62 \+ 0",
    ):
        session.prove()


def test_data_that_was_loaded_before_is_not_computed_again():
    one = case(cache="host-hit")
    first, second = inputs(one, 1), inputs(one, 2)
    session = ServingSession(one, first, "reference", cached=True)
    for given in (second, first, second):
        session.load(given)
        session.forward()
    # The two that filled it, and three that were asked for.
    assert session.cache.counts.steps == 2 + 3
    assert session.cache.counts.host_hit == 3 * 2 * 62


@pytest.mark.parametrize("name", [name for name in all_backends() if name.startswith("serving-")])
def test_a_model_without_a_cache_has_only_rows_without_one(name):
    one = WORKLOAD.case({"model": "dlrm-v3", "cached": 64, "new_tokens": 8})
    machine = Machine("cuda", (9, 0))
    with pytest.raises(Unsupported, match=f"{name}: model=dlrm-v3 counts positions and times back") as refused:
        all_backends()[name].check(one, machine)
    assert "no-cache]" in str(refused.value)
    without = next(config.short for config in all_backends()[name].configs(one) if "no-cache" in config.short)
    resolve(f"{name}[{without}]", one).check(one, machine)


def test_a_gathered_step_takes_every_dense_backend_and_refuses_as_it_does():
    one = case()
    backend = all_backends()["serving-gathered"]
    shorts = [config.short for config in backend.configs(one)]
    dense = [name for name, found in all_backends().items() if (found.workload, found.variant) == ("hstu", "hstu")]
    ways = ("", "+no-cache", "+graph", "+no-cache+graph")
    assert shorts == [f"{name}{way}" for name in dense for way in ways]
    with pytest.raises(Unsupported, match="serving-gathered: device=cpu has no CUDA graphs; cuda"):
        resolve("serving-gathered[hstu-eager+graph]", one).check(one, Machine("cpu"))
    assert len(dense) >= 5
    with pytest.raises(Unsupported, match="hstu-triton: device=cpu is not supported; cuda"):
        resolve("serving-gathered[hstu-triton]", one).check(one, Machine("cpu"))
    without = resolve("serving-gathered[hstu-eager+no-cache]", one)
    without.check(one, Machine("cpu"))
    given = inputs(one)
    with without.session(one, given) as launch:
        launch.forward()
        torch.testing.assert_close(launch.outputs()["out"], given.model(given.requests()), rtol=1e-4, atol=1e-5)
        assert launch.counters["hit_tokens"] == 0


@pytest.mark.parametrize("cached", [True, False])
def test_a_gathered_step_runs_from_the_fixed_buffers_of_its_lengths(cached):
    one = case()
    group = References(WORKLOAD, one, inputs(one, 1), inputs(one, 2))
    backend = resolve("serving-gathered[hstu-eager]", one)
    with backend.attention(one) as attention:
        session = ServingSession(
            one, group.first.inputs, attention, cached=cached, graph=True, exact=True, capture=False
        )
        outcome = examine(session.launch(), group, variant="logits", budget=backend.budget(one))
    assert outcome.ok, outcome.reason
    assert [sizes.rows for sizes in session.graphs.sizes] == [2 * ((8 if cached else 70) + 5)]


def test_a_gathered_step_needs_sequences_of_one_shape():
    one = case()
    with resolve("serving-gathered", one).attention(one) as attention:
        given = inputs(one)
        mixed = [given.requests()[0], given.before()[1]]
        with pytest.raises(AttnbenchError, match=r"hstu-eager: sequences=.* differ; one shape in a step"):
            given.model(mixed, attention=attention)


def test_a_configuration_that_is_none_is_refused():
    with pytest.raises(UsageError, match="serving-eager: config=nocache is not known; one of no-cache"):
        resolve("serving-eager[nocache]", case())


def test_a_long_sequence_is_attended_a_few_rows_at_a_time(monkeypatch):
    one = case(cached=0, new_tokens=70)
    given = inputs(one)
    whole = given.model(given.requests())
    monkeypatch.setitem(attention.WORKSPACE, "cpu", 9000)
    with _Products() as products:
        torch.testing.assert_close(given.model(given.requests()), whole)
    scores, all_scores = products.scores, given.model.config.layers * sum(map(_square, given.requests()))
    assert 0 < scores < 0.7 * all_scores, "keys that none of the rows sees"


def _square(request) -> int:
    rows = 2 * len(request.items) + len(request.candidates) + len(request.context)
    return rows**2


class _Products(TorchDispatchMode):
    """Counts the elements of attention's scores, for one head."""

    scores = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.bmm.default and args[1].stride(1) == 1:  # keys, transposed
            self.scores += out[0].numel()
        return out


def test_a_round_over_all_steps_runs_the_series_once_also_where_each_sample_has_an_untimed_call_before_it(monkeypatch):
    series, take = [], StepTimes.take
    monkeypatch.setattr(StepTimes, "take", lambda self: (series.append(1), take(self)))
    one = case(**GROWTH)
    backend = resolve("serving-eager", one)
    with backend.session(one, inputs(one, 1)) as launch:
        for _ in range(3):
            for phase in reversed(launch.phases.values()):
                launch.reset and launch.reset()
                phase.call()
                launch.reset and launch.reset()
                phase.call()
                assert phase.reported_ms() > 0
    assert len(series) == 3
