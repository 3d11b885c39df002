"""A correct backend that does not do the work in its samples has no time; one that does keeps it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import ExitStack

import cheating
import pytest
from small_runs import FAKES

from attnbench.backends.base import Backend
from attnbench.check.examine import examine, recheck
from attnbench.check.inspection import Inspection
from attnbench.check.reference import References
from attnbench.errors import Unavailable
from attnbench.machine.device import Device
from attnbench.measure.plan import Plan
from attnbench.measure.sampling import sample
from attnbench.measure.subject import Misleading, Subject
from attnbench.record import PlannedGroup, Run, Settings, Status
from attnbench.sweep.run import execute
from attnbench.workloads.base import load_workload

FILE = str(FAKES / "cheating.py")
LARGE = {"batch": 1, "seqlen": 384, "nheads": 2, "headdim": 32, "causal": True, "dtype": "fp32"}
LONG = LARGE | {"seqlen": 768, "nheads": 1, "headdim": 8}
"""Its work takes longer than a busy machine takes a processor away for: pauses in two of the first looks would let a
launch off whose work is as short as they are.  Its tensors are small: a call may take some copies of them longer, and
with slow copies (four processes that fault in new pages at once) a launch would be let off for that."""
HONEST = ("honest-steps", "honest-views", "by-numpy")
BACKENDS = {kind.name: kind for kind in vars(cheating).values() if "name" in getattr(kind, "__dict__", {})}

TOTAL = (
    r"from loading data it has not seen until its outputs are there a launch takes .*, (a call on data it has|a recorded "
    r"one) .*, a copy of all inputs and outputs .*: its samples are not the time of its work"
)
CLASS = r"out: type=Lazy is wrong; torch\.Tensor: a class of its own may compute when it is read"
NEW_DATA = (
    r"a call on data it has not seen takes .*, (on data it has|a recorded one) .*: its samples are not the time of its "
    r"work"
)
LEFT = r"what reload leaves to the device takes .*, copies of .*, a call .*: work is done outside the sample"
COMPUTES = r"{} computes: it calls .*, and is not timed"
LATE = r"unfinished work: a call returns after .*, its outputs are there .* later"
UNTIMED = r"{} takes .*, a copy of .*, a call .*: work is done outside the sample"
WRONG = (
    r"(in a timed call on new data: |on fresh data: |cached answer: .*)?out: (wrong values|never written|NaN).*|"
    r"right before and wrong after .*|cached answer: .*"
)

EXPECTED = {
    "future": LATE,
    "future-after-a-while": LATE,
    "future-of-reload": f"{NEW_DATA}|{LATE}|{TOTAL}",
    "future-of-reload-by-numpy": f"{NEW_DATA}|{LATE}|{TOTAL}",
    "when-read": CLASS,
    "in-outputs": f"{COMPUTES.format('outputs')}|{LATE}",
    "rests-when-read-again": f"{COMPUTES.format('outputs')}|{LATE}",
    "in-outputs-by-numpy": f"{LATE}|{UNTIMED.format('outputs')}",
    "in-every-outputs": UNTIMED.format("outputs"),
    "in-reset": f".*{WRONG}",
    "copies-what-reset-computed": UNTIMED.format("reset"),
    "in-reload": COMPUTES.format("reload"),
    "now-in-reload-now-in-the-call": f"{UNTIMED.format('reload')}|{NEW_DATA}|{LATE}|{TOTAL}",
    "waits-now-and-then": f"{UNTIMED.format('reload')}|{NEW_DATA}|{LATE}|{TOTAL}",
    "in-reload-by-numpy": f"{UNTIMED.format('reload')}|{NEW_DATA}",
    "by-dirty-flag": NEW_DATA,
    "by-pointer": WRONG,
    "by-version": NEW_DATA,
    "by-version-of-views": WRONG,
    "by-hash": NEW_DATA,
    "by-one-element": f"{NEW_DATA}|{WRONG}",
    "keeps-weights": NEW_DATA,
    "slow-for-two-calls": NEW_DATA,
    "when-asked-for": NEW_DATA,
    "after-a-pause": f"{NEW_DATA}|.*{WRONG}",
    "now-and-then": NEW_DATA,
    "stops-working": WRONG,
}


def verdict(backend: Backend, values: dict, device: str = "cpu", **plan) -> str | None:
    """What the checks, the inspections and the checks after timing say of a backend, in this process."""
    workload, name = load_workload("attention"), backend.name
    case = workload.case(values)
    first, second = (workload.inputs(case, seed=seed, kind="normal", device=device) for seed in (1, 2))
    references = References(workload, case, first, second)
    terms = {"variant": "softmax", "budget": backend.budget(case)}
    with ExitStack() as closing:
        launch = closing.enter_context(backend.session(case, first))
        if not (outcome := examine(launch, references, **terms)).ok:
            return outcome.reason
        subject = Subject(
            name=name,
            call=launch.call(case.mode),
            reset=launch.reset,
            inspector=Inspection(launch, references, **terms),
        )
        try:
            sample([subject], device=Device.parse(device), plan=Plan(**({"max_seconds": 0.1} | plan)))
        except (Misleading, Unavailable) as why:
            return str(why)
        return recheck(launch, references, **terms).reason


@pytest.mark.parametrize("plan", [{}, {"warmup": 1, "iterations": 12}], ids=["until-known", "counted"])
@pytest.mark.parametrize("name", EXPECTED)
def test_who_did_not_do_the_work_is_told_so(name, plan):
    # Several limits are broken at once; which of them is certain first is chance on a loaded machine.
    expected = f"{EXPECTED[name]}|{TOTAL}|{LATE}"
    assert re.fullmatch(expected, verdict(BACKENDS[name](), LONG, **plan) or "", re.DOTALL)


@pytest.mark.parametrize("name", ["future-after-a-while", "stops-working"])
def test_a_machine_so_slow_that_a_call_outlasts_the_sampling_lets_nobody_off(name, monkeypatch):
    backend = BACKENDS[name]()
    work = backend.work
    monkeypatch.setattr(backend, "work", lambda: (time.sleep(0.1), work())[1])
    assert re.fullmatch(f"{EXPECTED[name]}|{TOTAL}|{LATE}", verdict(backend, LONG) or "", re.DOTALL)


@pytest.mark.parametrize("shape", [{}, {"seqlen": 5, "headdim": 8}, {"seqlen": 64, "dtype": "bf16"}])
@pytest.mark.parametrize("name", HONEST[:2])
def test_the_honest_are_left_alone(name, shape):
    assert verdict(BACKENDS[name](), LARGE | shape) is None


def test_a_backward_computed_by_the_forward():
    said = verdict(BACKENDS["backward-in-forward"](), {**LARGE, "mode": "bwd"})
    assert re.fullmatch(f"a backward takes .*, its forward .*: the work is done in the forward|{TOTAL}", said)


def carried_out(case: dict, names: tuple[str, ...], files: Sequence[str] = (FILE,), **settings) -> Run:
    workload = load_workload("attention")
    problem = workload.case(case)
    group = PlannedGroup(
        group=problem.id, workload="attention", case=problem.to_dict(), case_id=problem.id, backends=names
    )
    values = {"device": "cpu", "baseline": names[0], "max_seconds": 0.5, "timeout": 60.0} | settings
    return execute(
        Run(
            id="0badcafe",
            suite="small",
            command="attnbench run small",
            started="2026-11-20T12:34:56Z",
            plan=(group,),
            settings=Settings(**values),
        ),
        backend_files=list(files),
    )


def ended(run: Run) -> dict[str, tuple[str, str | None]]:
    return {record.backend: (record.status.value, record.reason) for record in run.records}


@pytest.mark.usefixtures("forked_workers")
def test_in_a_run_they_have_no_time_and_the_others_are_measured_on():
    run = carried_out(LARGE, (*HONEST, "future", "by-hash"))
    found = ended(run)
    assert {name: found[name] for name in HONEST} == dict.fromkeys(HONEST, ("passed", None))
    assert all(record.time is not None for record in run.records if record.backend in HONEST)
    for name in ("future", "by-hash"):
        assert found[name][0] == Status.INCORRECT
        assert re.fullmatch(f"{EXPECTED[name]}|{TOTAL}|{LATE}", found[name][1], re.DOTALL)
