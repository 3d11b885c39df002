"""The targets of context-parallel attention, held against a run that nobody measured."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.made_up_run import make_record, make_run, make_time

from attnbench.record import Status
from attnbench.suites.load import load_suite
from attnbench.suites.plan import expand
from attnbench.workloads.attention_cp import WORKLOAD

ROOT = Path(__file__).resolve().parents[2]
CASES = expand(load_suite("attention-cp", "cuda"), WORKLOAD, {})
EIGHT, LONG = "w2-softmax-b1-s8192-h16-d128-bf16-causal-fwd", "w2-softmax-b1-s32768-h16-d128-bf16-causal-fwd"


@pytest.fixture(scope="module")
def targets():
    with pytest.MonkeyPatch.context() as patch:
        spec = importlib.util.spec_from_file_location("context_parallel", ROOT / "benchmarks/context_parallel.py")
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "context_parallel", module)
        spec.loader.exec_module(module)
        yield module


def record(case, backend, ms, **changed):
    time = make_time([ms * (1 + 0.001 * (number % 3)) for number in range(12)])
    values = {"workload": "attention-cp", "group": case, "case": CASES[case].to_dict(), "case_id": case, "time": time}
    return replace(make_record({**CASES[case].to_dict(), "mode": "fwd"}, backend, tflops=1.0), **(values | changed))


def test_each_target_is_of_one_case_of_the_suite(targets):
    found = [
        [name for name, case in CASES.items() if all(case.to_dict()[key] == value for key, value in one.case.items())]
        for one in targets.TARGETS
    ]
    assert [len(names) for names in found] == [1] * len(targets.TARGETS), "or a bar is held against another problem"


def test_the_best_of_our_forms_is_held_against_one_gpu_and_against_torch(targets):
    rows = [
        record(EIGHT, "cp-one", 0.5),
        record(EIGHT, "cp-ring", 0.4, counters={"hidden_percent": 61.2}),
        record(EIGHT, "cp-ulysses", 0.45),
        record(EIGHT, "cp-torch", 0.1),
        record(LONG, "cp-one", 6.0),
        record(LONG, "cp-torch", 4.0),
        record(LONG, "cp-allgather", 3.6),
        record(LONG, "cp-ring", 3.0, status=Status.INCORRECT, reason="out: wrong", time=None),
    ]
    assert list(targets.lines(make_run(rows))) == [
        f"{EIGHT}: cp-ring 1.250x cp-one, at least 1.1 (aim 1.3): reached; predicted 1.1-1.35; "
        "61 % of the exchange hidden",
        f"{LONG}: cp-allgather 1.667x cp-one, at least 1.75 (aim 1.9): missed; predicted 1.82-1.90",
        f"{LONG}: cp-allgather 1.111x cp-torch, at least 1.15 (aim 1.15): missed; predicted 1.4-1.5",
    ]
