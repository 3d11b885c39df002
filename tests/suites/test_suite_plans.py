from __future__ import annotations

import dataclasses

import pytest

from attnbench.errors import NothingToRun, Unavailable, Unsupported, UsageError
from attnbench.record import Record, Status
from attnbench.suites.estimate import Estimate, estimate, refused
from attnbench.suites.load import NamedCase, Suite, load_suite
from attnbench.suites.plan import Request, build, environment_axes, expand, parse_axis, with_axes
from attnbench.workloads.base import load_workload

ATTENTION = load_workload("attention")
AXES = {axis.name: axis for axis in ATTENTION.axes}


def suite(**changes):
    fields = {
        "name": "s",
        "title": "t",
        "workload": "attention",
        "backends": ("eager", "sdpa"),
        "baseline": "sdpa",
        "axes": {"seqlen": (63, 127), "causal": (False, True)},
    }
    return Suite(**(fields | changes))


def planned(request_suite, device="cpu", **changes):
    request = Request(suite=request_suite, device=device, **changes)
    return build(request, run_id="0badcafe", command="attnbench run s", started="2026-01-02T03:04:05Z")


def test_a_plan_is_the_cross_product_case_by_case(backends):
    run = planned(suite())
    assert [group.group for group in run.plan] == [
        "b2-s63-h8-d64-fp16-fwd",
        "b2-s63-h8-d64-fp16-causal-fwd",
        "b2-s127-h8-d64-fp16-fwd",
        "b2-s127-h8-d64-fp16-causal-fwd",
    ]
    assert {group.backends for group in run.plan} == {("eager", "sdpa")}
    assert ATTENTION.case(run.plan[1].case).id == run.plan[1].case_id
    assert (run.suite, run.settings.baseline, run.settings.device) == ("s", "sdpa", "cpu")


def test_replicates_stand_outermost_and_have_groups_of_their_own(backends):
    run = planned(suite(axes={"seqlen": (1, 2)}), settings={"replicates": 2})
    assert [(group.group, group.replicate) for group in run.plan] == [
        ("b2-s1-h8-d64-fp16-fwd", 0),
        ("b2-s2-h8-d64-fp16-fwd", 0),
        ("b2-s1-h8-d64-fp16-fwd#1", 1),
        ("b2-s2-h8-d64-fp16-fwd#1", 1),
    ]


def test_names_of_groups_do_not_depend_on_the_request(backends):
    few = {group.group for group in planned(suite(), axes={"seqlen": (127,)}, backends=("eager",)).plan}
    assert few < {group.group for group in planned(suite()).plan}


def test_a_flag_replaces_an_axis_and_equal_cases_are_planned_once(backends):
    run = planned(suite(), axes={"seqlen": (1, 1), "headdim": (32,), "headdim_v": (32, None)})
    assert [group.case_id for group in run.plan] == ["b2-s1-h8-d32-fp16-fwd", "b2-s1-h8-d32-fp16-causal-fwd"]


LISTED = (
    NamedCase(name="a", values={"seqlen": 512, "causal": True}),
    NamedCase(name="b", values={"seqlen": 1024, "causal": False, "mode": "fwd"}),
)


@pytest.mark.parametrize(
    ("asked", "ids"),
    [
        ({}, ["b2-s512-h8-d64-fp16-causal-fwd", "b2-s1024-h8-d64-fp16-fwd"]),
        ({"seqlen": (1024,)}, ["b2-s1024-h8-d64-fp16-fwd"]),
        ({"seqlen": (1024, 7)}, ["b2-s1024-h8-d64-fp16-fwd"]),
        (
            {"headdim": (32, 65)},
            [
                "b2-s512-h8-d32-fp16-causal-fwd",
                "b2-s512-h8-d65-fp16-causal-fwd",
                "b2-s1024-h8-d32-fp16-fwd",
                "b2-s1024-h8-d65-fp16-fwd",
            ],
        ),
        ({"mode": ("bwd",)}, ["b2-s512-h8-d64-fp16-causal-bwd"]),
    ],
)
def test_on_listed_cases_a_flag_selects_and_sets_what_they_leave_open(asked, ids):
    assert list(expand(suite(axes={}, cases=LISTED), ATTENTION, asked)) == ids


def test_a_density_of_the_suite_gives_way_to_lengths_and_one_that_is_asked_for_does_not():
    found, sparse = load_suite("sparse", "cpu"), load_workload("sparse")
    densities = [case.density for case in expand(found, sparse, {"seqlen": (127,), "causal": (False,)}).values()]
    assert densities == [0.5, 1.0]  # of 0.25, 0.5 and 1: two blocks a row
    assert [case.density for case in expand(found, sparse, {"seqlen": (1,), "causal": (True,)}).values()] == [1.0]
    with pytest.raises(UsageError, match=r"density=0.25 leaves less than one of the 2 blocks of a row; at least 0.5"):
        expand(found, sparse, {"seqlen": (127,), "density": (0.25,)})


@pytest.mark.parametrize(
    ("name", "axis", "values", "one"),
    [
        ("sparse", "density", (0.3333333, 0.33333334), "random-0.333333-fwd"),
        ("hstu-serving-pool", "pool_share", (0.5333333, 0.53333334), "pool0_533333-p64-fp32"),
    ],
)
def test_two_values_that_one_name_of_a_case_stands_for_are_refused_and_none_is_dropped(name, axis, values, one):
    found = load_suite(name, "cpu")
    workload = load_workload(found.workload)
    with pytest.raises(UsageError) as refused:
        expand(found, workload, {axis: values})
    said = str(refused.value)
    assert said.startswith(f"suite {name}: {axis}={values[0]} and {values[1]} are one case, ")
    assert f"{one}; values that differ in six digits" in said
    assert expand(found, workload, {axis: (values[0], values[0])})


def test_axes_of_a_verb_replace_axes_and_leave_what_cases_state():
    modes = {"mode": ("fwd", "fwd-bwd")}
    crossed = expand(with_axes(suite(axes={"seqlen": (63,), "mode": ("bwd",)}), modes), ATTENTION, {})
    assert [case.mode for case in crossed.values()] == ["fwd", "fwd-bwd"]
    stated = (*LISTED, NamedCase(name="c", values={"seqlen": 7, "mode": "bwd"}))
    listed = expand(with_axes(suite(axes={}, cases=stated), modes), ATTENTION, {})
    assert [(case.seqlen, case.mode) for case in listed.values()] == [
        (512, "fwd"),
        (512, "fwd-bwd"),
        (1024, "fwd"),
        (7, "bwd"),
    ]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"seqlen": (2048,)}, r"suite s: seqlen=2048 selects none of its cases; one of 512, 1024; `attnbench compare`"),
        ({"seqlen": (512,), "causal": (False,)}, r"suite s: causal=False selects none of its cases; one of True"),
        ({"attn_dim": (3,)}, r"suite s: axis=attn_dim is not known; one of batch, causal"),
    ],
)
def test_a_selection_of_nothing_says_what_there_is(asked, message):
    with pytest.raises(UsageError, match=message):
        expand(suite(axes={}, cases=LISTED), ATTENTION, asked)


def test_outside_the_map_of_batches_the_answer_names_its_lengths():
    sweep = load_suite("flash-sweep", "cuda")
    with pytest.raises(
        UsageError,
        match=(
            r"suite flash-sweep: seqlen=3000 has no batch size in its batch_by_seqlen; "
            r"one of 512, 1024, 2048, 4096, 8192, 16384; or state .* --batch"
        ),
    ):
        expand(sweep, ATTENTION, {"seqlen": (512, 3000)})
    cases = expand(sweep, ATTENTION, {"seqlen": (512, 3000), "batch": (3,), "dtype": ("fp16",)})
    assert [(case.batch, case.seqlen) for case in cases.values()] == [(3, 512), (3, 3000)]


def test_a_case_that_contradicts_itself_is_refused(backends):
    with pytest.raises(UsageError, match=r"nheads_kv=3 does not divide nheads=8; a divisor of nheads"):
        planned(suite(), axes={"nheads_kv": (3,)})


@pytest.mark.parametrize(
    ("device", "asked", "names"),
    [
        ("cpu", ("all",), ("eager", "sdpa", "sdpa-math", "sdpa-flash", "flex")),
        (
            "cuda:1",
            ("all",),
            ("eager", "sdpa", "sdpa-math", "sdpa-flash", "sdpa-efficient", "sdpa-cudnn", "flash-attn-2", "flex"),
        ),
        ("cpu", ("sdpa-*",), ("sdpa-math", "sdpa-flash")),
        ("cpu", ("sdpa-cudnn", "eager"), ("sdpa-cudnn", "eager")),
        ("cpu", ("eager,sdpa", "eager"), ("eager", "sdpa")),
        ("cuda", ("flash-attn-2|sdpa-flash",), ("sdpa-flash",)),
        ("cpu", ("flash-attn-2|sdpa-cudnn",), ("flash-attn-2",)),
    ],
)
def test_backends_asked_for_by_name_stay_and_wildcards_mean_this_device(backends, device, asked, names):
    assert planned(suite(), device, backends=asked).plan[0].backends == names


@pytest.mark.parametrize(
    ("changes", "names", "baseline"),
    [
        ({}, ("eager", "sdpa"), "sdpa"),
        ({"backends": ("eager",)}, ("eager",), "eager"),
        ({"skip": ("sdpa",)}, ("eager",), "eager"),
        ({"baseline": "sdpa-math"}, ("sdpa-math", "eager", "sdpa"), "sdpa-math"),
        ({"baseline": "flash-attn-2|sdpa-flash"}, ("sdpa-flash", "eager", "sdpa"), "sdpa-flash"),
        ({"files": ("/somewhere/mine.py",)}, ("eager", "sdpa", "mine"), "sdpa"),
        ({"files": ("/somewhere/mine.py",), "backends": ("sdpa",)}, ("sdpa", "mine"), "sdpa"),
    ],
)
def test_the_baseline_is_always_measured(backends, changes, names, baseline):
    run = planned(suite(), **changes)
    assert run.plan[0].backends == names
    assert run.settings.baseline == baseline
    assert run.backend_files == tuple("mine.py" for _ in changes.get("files", ()))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"backends": ("spda",)}, UsageError, r"backends: name=spda is not known; one of .*; did you mean sdpa\?"),
        ({"skip": ("spda",)}, UsageError, r"backends: skip=spda is not known"),
        ({"baseline": "spda"}, UsageError, r"backends: baseline=spda is not known"),
        ({"baseline": "spda|sdpa"}, UsageError, r"backends: baseline=spda is not known"),
        ({"baseline": "sdpa-*"}, UsageError, r"suite s: baseline=sdpa-\* means 4 backends; one backend"),
        ({"skip": ("all",)}, NothingToRun, r"suite s: backends=eager,sdpa leaves nothing to run on cpu"),
    ],
)
def test_a_wrong_selection_of_backends(backends, changes, error, message):
    with pytest.raises(error, match=message):
        planned(suite(), **changes)


def test_a_typo_in_a_suites_baseline_is_found(backends):
    with pytest.raises(UsageError, match="baseline=spda is not known"):
        planned(suite(baseline="spda"))


@pytest.mark.parametrize(
    ("axis", "text", "values"),
    [
        ("seqlen", "512,1024", (512, 1024)),
        ("seqlen", " 1 , 63", (1, 63)),
        ("seqlen", "7,7", (7,)),
        ("seqlen", "256:1024:256", (256, 512, 768, 1024)),
        ("seqlen", "5, 1:4:2 ,3:3:9", (5, 1, 3)),
        ("causal", "both", (False, True)),
        ("causal", "true", (True,)),
        ("window", "128:0,none", ((128, 0), None)),
        ("dtype", "bf16,fp32", ("bf16", "fp32")),
    ],
)
def test_values_of_an_axis(axis, text, values):
    assert parse_axis("attnbench run", AXES[axis], text) == values


@pytest.mark.parametrize(
    ("workload", "axis", "text"),
    [
        ("sparse", "grid", "13:30:45"),
        ("sparse", "grid", "9:9:9"),
        ("attention", "lengths", "100:200:7"),
        ("hstu", "lengths", "100:0:7"),
        ("hstu", "num_targets", "3:0:5"),
    ],
)
def test_three_numbers_that_an_axis_takes_itself_are_no_steps(workload, axis, text):
    axes = {one.name: one for one in load_workload(workload).axes}
    assert parse_axis("attnbench run", axes[axis], text) == (text,)


@pytest.mark.parametrize("text", ["0:9:9", "13:30"])
def test_an_axis_without_single_numbers_has_no_steps(text):
    [grid] = [one for one in load_workload("sparse").axes if one.name == "grid"]
    with pytest.raises(UsageError, match=r"none, or frames:height:width in tokens, such as 13:30:45$"):
        parse_axis("attnbench run", grid, text)


@pytest.mark.parametrize(
    ("axis", "text", "message"),
    [
        ("seqlen", "512,", r"attnbench run: --seqlen='' cannot be used; a whole number from 1"),
        ("seqlen_k", "0", r"attnbench run: --seqlen-k=0 cannot be used; a whole number from 1"),
        ("dtype", "bf16,fp8", r"attnbench run: --dtype=fp8 is not known; one of fp32, fp16, bf16"),
        ("seqlen", "0:8:4", r"--seqlen=0:8:4 cannot be used; a whole number from 1"),
        ("seqlen", "1:4", r"--seqlen=1:4 cannot be used; .*, or FROM:TO:STEP"),
        ("seqlen", "1:4:x", r"--seqlen=1:4:x cannot be used; .*, or FROM:TO:STEP"),
        ("seqlen", "8:4:2", r"--seqlen=8:4:2 cannot be used; FROM:TO:STEP of 1 to 10000 numbers"),
        ("seqlen", "1:4:0", r"--seqlen=1:4:0 cannot be used; FROM:TO:STEP of 1 to 10000 numbers"),
        ("seqlen", "1:999999999:1", r"--seqlen=1:999999999:1 cannot be used; FROM:TO:STEP of 1 to 10000 numbers"),
        ("causal", "yes", r"causal=yes is not known; one of true, false, both"),
    ],
)
def test_a_wrong_value_of_an_axis(axis, text, message):
    with pytest.raises(UsageError, match=message):
        parse_axis("attnbench run", AXES[axis], text)


def test_the_environment_sets_axes_of_the_suites_that_say_so():
    environ = {"BATCH": "3", "SEQLEN": "63,65", "NHEADS": "", "HOME": "/"}
    assert environment_axes(load_suite("minimal", "cpu"), environ) == {"batch": (3,), "seqlen": (63, 65)}
    assert environment_axes(load_suite("quick", "cpu"), environ) == {}
    with pytest.raises(UsageError, match=r"environment variable SEQLEN=long cannot be used; a whole number"):
        environment_axes(load_suite("compare", "cpu"), {"SEQLEN": "long"})


@pytest.fixture
def quiet_machine(monkeypatch):
    """A CPU that nobody else uses, of which 1e11 products a second are known."""
    monkeypatch.setattr("attnbench.suites.estimate.os.getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr("attnbench.suites.estimate._flops_per_s", lambda kind: 1e11)


def test_an_estimate_counts_what_is_left_group_by_group(backends, quiet_machine):
    run = planned(suite(), settings={"max_seconds": 4.0})
    whole = estimate(run)
    assert set(whole.groups) == {group.group for group in run.plan}
    assert whole.seconds == pytest.approx(2.5 + sum(whole.groups.values()))
    records = [
        Record(
            workload="attention",
            case=group.case,
            case_id=group.case_id,
            group=group.group,
            backend=name,
            status=Status.SKIPPED,
            reason="r",
        )
        for group in run.plan[:2]
        for name in group.backends
    ]
    half = estimate(dataclasses.replace(run, records=tuple(records)))
    assert set(half.groups) == {group.group for group in run.plan[2:]}
    done = dataclasses.replace(run, plan=run.plan[:2], records=tuple(records))
    assert estimate(done).seconds == 0.0
    for device in ("tpu", "", "\\ud800", "cuda:x"):  # of a file that is resumed
        with pytest.raises(UsageError, match="is not known; auto, cpu, cuda or cuda:N"):
            estimate(dataclasses.replace(run, settings=dataclasses.replace(run.settings, device=device)))


def test_a_busy_cpu_takes_the_whole_limit_and_longer_for_the_rest(backends, quiet_machine, monkeypatch):
    run = planned(suite(), settings={"max_seconds": 40.0})
    quiet = estimate(run)
    assert max(quiet.groups.values()) < 40.0
    monkeypatch.setattr("attnbench.suites.estimate.os.getloadavg", lambda: (1e3, 0.0, 0.0))
    busy = estimate(run)
    assert min(busy.groups.values()) > 40.0
    assert busy.start_s == 8 * quiet.start_s  # however busy


def test_a_library_that_is_missing_takes_no_time(backends, quiet_machine, monkeypatch):
    run = planned(suite(backends=("flex",)), settings={"iterations": 1000})
    there = estimate(run)

    def gone(backend):
        raise Unavailable("gone")

    monkeypatch.setattr(type(backends["flex"]), "probe", gone)
    assert estimate(run).seconds < 0.5 * there.seconds


def test_rows_that_refuse_their_cases_are_known_before_the_run(backends, monkeypatch):
    def only_long(backend, case, machine):
        assert machine.device == "cpu"
        if case.seqlen < 100:
            raise Unsupported(f"{backend.name}: seqlen={case.seqlen} is too short; at least 100")

    run = planned(suite(backends=("eager", "sdpa")))
    monkeypatch.setattr(type(backends["sdpa"]), "check", only_long)
    assert refused(run) == {"sdpa": "seqlen=63 is too short; at least 100 (2 of 4 cases)"}
    short = planned(suite(backends=("eager", "sdpa"), axes={"seqlen": (63,)}))
    assert refused(short) == {"sdpa": "seqlen=63 is too short; at least 100"}
    assert refused(short, lost=("sdpa",)) == {}

    def broken(backend, case, machine):
        raise RuntimeError("a bug")

    monkeypatch.setattr(type(backends["sdpa"]), "check", broken)
    assert refused(run) == {}, "the run has a record of it"


def test_inspections_of_calls_that_take_long_are_few(backends, quiet_machine, monkeypatch):
    from attnbench.measure import inspections
    from attnbench.suites import estimate as module

    assert module.INSPECTED_EVERY == inspections.TIMES
    monkeypatch.setattr(module, "_flops_per_s", lambda kind: 1e8)  # a call takes a second and more
    run = planned(suite(), settings={"iterations": 10, "warmup": 0})
    many = estimate(run).seconds
    monkeypatch.setattr(module, "INSPECTION_CALLS", 0)
    assert 1 < many / estimate(run).seconds < 1.3


def test_an_estimate_counts_the_timers_of_a_gpu(backends, quiet_machine):
    def seconds(device, timer):
        run = planned(suite(backends=("flex",)), settings={"iterations": 10_000, "timer": timer})
        return estimate(dataclasses.replace(run, settings=dataclasses.replace(run.settings, device=device))).seconds

    one, two, every = (seconds("cuda:0", timer) for timer in ("cupti", "auto,wall", "all"))
    assert every - one == pytest.approx(2 * (two - one), rel=1e-6)
    assert two > one
    assert seconds("cpu", "all") == seconds("cpu", "wall")


def test_an_estimate_of_fixed_counts_and_of_checks_says_that_it_guesses(backends, quiet_machine):
    few, many = (estimate(planned(suite(backends=("flex",)), settings={"iterations": count})) for count in (10, 10_000))
    assert "5 + 10 launches a row" in few.basis
    assert few.seconds > 10  # flex compiles
    assert many.seconds > few.seconds
    again = list(few.groups.values())
    assert again[0] > 2 * again[1]  # and the first time longest
    run = planned(suite())
    checked = estimate(dataclasses.replace(run, settings=dataclasses.replace(run.settings, measure=False)))
    assert checked.seconds < estimate(run).seconds
    assert "checks only" in checked.basis


def test_ranks_on_a_cpu_start_and_compile_nothing(backends, quiet_machine):
    run = planned(suite(backends=("flex",)), settings={"iterations": 10})
    on_card = dataclasses.replace(run, settings=dataclasses.replace(run.settings, device="cuda:0"))
    compiled = estimate(run).seconds, estimate(on_card).seconds
    type(backends["flex"]).in_ranks = True
    assert compiled[0] - estimate(run).seconds > 7  # COMPILE_S over WORKER_S, the first time
    assert estimate(on_card).seconds == compiled[1]


def test_kernels_that_are_compiled_side_by_side_take_as_much_less(backends, quiet_machine):
    run = planned(suite(backends=("flex",)), settings={"iterations": 10})
    on_card = dataclasses.replace(run, settings=dataclasses.replace(run.settings, device="cuda:0"))
    apart = estimate(on_card, jobs=16)
    type(backends["flex"]).ahead = True
    alone, together = estimate(on_card), estimate(on_card, jobs=16)
    assert alone.seconds == apart.seconds  # a backend that needs a card to compile on
    assert alone.seconds - together.seconds > 3.5  # of COMPILE_S["cuda"], the first time
    assert estimate(run, jobs=16).seconds == pytest.approx(estimate(run).seconds, rel=0.2)  # no kernel of a CPU's


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(3, "3 s"), (99, "99 s"), (100, "2 min"), (5400, "90 min"), (3.3 * 3600, "3.3 h"), (170 * 3600, "7 days")],
)
def test_an_estimate_says_its_time_in_a_unit_that_people_use(seconds, said):
    groups = {str(n): (seconds - 1.0) / 8 for n in range(8)}
    assert str(Estimate(groups, 1.0, "a guess")) == f"about {said}: a guess"


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"a": 18 * 86400.0}, "about 18 days: a case of this size is not for this device; a smaller case, or a GPU"),
        ({"a": 1e9}, "more than a month: a case of this size is not for this device; a smaller case, or a GPU"),
        ({str(n): 7200.0 for n in range(30)}, "about 2 days: a guess"),
    ],
)
def test_a_case_too_large_for_the_device_is_said_to_be(groups, words):
    assert str(Estimate(groups, 0.0, "a guess")) == words
