"""Who is right and did not do the work in its samples has no time; who did keeps it."""

from __future__ import annotations

import re

import pytest
from small_runs import FAKES

from attnbench.record import PlannedGroup, Run, Settings, Status
from attnbench.sweep.run import execute
from attnbench.workloads.base import load_workload

FILE = str(FAKES / "cheating.py")
LARGE = {"batch": 1, "seqlen": 384, "nheads": 4, "headdim": 64, "causal": True, "dtype": "fp32"}
HONEST = ("honest-steps", "honest-views", "by-numpy")

NEW_DATA = r"a call on data it has not seen takes .*, on data it has .*: its samples are not the time of its work"
COMPUTES = r"{} computes: it calls .*, and is not timed"
LATE = r"unfinished work: a call returns after .*, its outputs are there .* later"
UNTIMED = r"{} takes .*, a copy of all inputs and outputs .*, a call .*: work is done outside the sample"
WRONG = r"(in a timed call on new data: )?out: (wrong values|never written|NaN).*|right before and wrong after .*"

EXPECTED = {
    "future": LATE,
    "future-after-a-while": LATE,
    "in-outputs": f"{COMPUTES.format('outputs')}|{LATE}",
    "in-outputs-by-numpy": LATE,
    "in-every-outputs": UNTIMED.format("outputs"),
    "in-reset": f".*{WRONG}",
    "copies-what-reset-computed": UNTIMED.format("reset"),
    "in-reload": COMPUTES.format("reload"),
    "in-reload-by-numpy": UNTIMED.format("reload"),
    "by-dirty-flag": NEW_DATA,
    "by-pointer": WRONG,
    "by-version": NEW_DATA,
    "by-version-of-views": WRONG,
    "by-hash": NEW_DATA,
    "by-one-element": f"{NEW_DATA}|{WRONG}",
    "keeps-weights": NEW_DATA,
    "slow-for-two-calls": NEW_DATA,
    "stops-working": WRONG,
}


def carried_out(case: dict, names: tuple[str, ...], **settings) -> Run:
    workload = load_workload("attention")
    problem = workload.case(case)
    group = PlannedGroup(group=problem.id, workload="attention", case=problem.to_dict(), case_id=problem.id,
                         backends=names)
    values = {"device": "cpu", "baseline": names[0], "max_seconds": 0.5, "timeout": 60.0} | settings
    return execute(Run(id="0badcafe", suite="small", command="attnbench run small", started="2026-11-20T12:34:56Z",
                       plan=(group,), settings=Settings(**values)), backend_files=[FILE])


def ended(run: Run) -> dict[str, tuple[str, str | None]]:
    return {record.backend: (record.status.value, record.reason) for record in run.records}


@pytest.mark.parametrize("settings", [{}, {"warmup": 1, "iterations": 10}])
def test_who_did_not_do_the_work_has_no_time(settings):
    run = carried_out(LARGE, (*HONEST, *EXPECTED), **settings)
    found = ended(run)
    assert {name: found[name] for name in HONEST} == dict.fromkeys(HONEST, ("passed", None))
    assert all(record.time is not None for record in run.records if record.backend in HONEST)
    wrong = {name: found[name] for name, words in EXPECTED.items()
             if found[name][0] != Status.INCORRECT or not re.fullmatch(words, found[name][1] or "", re.DOTALL)}
    assert not wrong


def test_a_backward_computed_by_the_forward():
    run = carried_out({**LARGE, "mode": "bwd"}, ("sdpa", "backward-in-forward"))
    found = ended(run)
    assert found["sdpa"] == ("passed", None)
    assert found["backward-in-forward"][0] == "incorrect"
    assert re.match("a backward takes .*, its forward .*: the work is done in the forward",
                    found["backward-in-forward"][1])
