"""The targets of context-parallel attention, held against a run that nobody measured."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.made_up_run import make_record, make_run, make_time

from attnbench.cli import VERBS, run
from attnbench.cli.parser import Parser
from attnbench.cli.request import axis_words
from attnbench.record import Status
from attnbench.suites.load import load_suite
from attnbench.suites.plan import expand, parse_axis
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
    missed = "**missed**"
    assert list(targets.lines([make_run(rows)])) == [
        f"{EIGHT}: cp-ring 1.250x cp-one (1.25 to 1.25), at least 1.1: reached, aim 1.3: {missed}; predicted 1.1-1.35; "
        "61 % of the exchange hidden",
        f"{LONG}: cp-allgather 1.667x cp-one (1.67 to 1.67), at least 1.75: {missed}, aim 1.9: {missed}; "
        "predicted 1.82-1.90",
        f"{LONG}: cp-allgather 1.111x cp-torch (1.11 to 1.11), at least 1.15: {missed}, aim 1.15: {missed}; "
        "predicted 1.4-1.5",
    ]


def process(number, ratio, *, samples=None):
    """A run of the case of 32,768 rows, in which the ring is so many times as fast."""
    times = samples or [ratio] * 12
    ring = record(LONG, "cp-ring", 1.0, time=make_time([6.0 / one for one in times]))
    one = record(LONG, "cp-one", 6.0, time=make_time([6.0] * len(times)))
    return replace(make_run([one, ring, record(LONG, "cp-ulysses", 4.0)]), id=f"{number:08x}")


@pytest.mark.parametrize(
    ("ratios", "shown", "said"),
    [
        ([1.91], "1.91x (1.91 to 1.91)", "reached"),
        ([1.91, 1.87], "1.89x (1.87 to 1.91)", "not decided"),  # not the better of two
        ([1.91, 1.92], "1.91x (1.91 to 1.92)", "reached"),
        ([1.86, 1.87], "1.86x (1.86 to 1.87)", "**missed**"),
        ([1.91, 1.92, 1.90, 1.92], "1.91x (1.90 to 1.93)", "not decided"),  # Student's
        ([1.92, 1.93, 1.92, 1.92], "1.92x (1.91 to 1.93)", "reached"),
    ],
)
def test_every_run_of_a_case_counts_and_its_interval_decides(targets, ratios, shown, said):
    runs = [process(number, ratio) for number, ratio in enumerate(ratios)]
    row = targets.table(runs)[0]
    assert row[targets.HEAD.index("fastest of ours")] == "`cp-ring` **{}x** {}".format(*shown.split("x "))
    assert row[targets.HEAD.index("aim")] == f"1.9 {said}"
    assert row[targets.HEAD.index("processes")] == str(len(ratios))
    assert row[targets.HEAD.index("`cp-ulysses`, ms")] != ""
    assert row[targets.HEAD.index("exchange hidden, %")] == "", "nobody measured it"


def test_few_samples_decide_nothing_and_earlier_code_does_not_count(targets, monkeypatch):
    wide = process(1, 1.95, samples=[1.7, 1.8, 1.9, 1.95, 2.0, 2.1, 2.2])
    [found] = targets.results([wide])
    assert (found.said(1.9), found.said(1.5), found.said(2.5)) == ("not decided", "reached", "**missed**")
    [few] = targets.results([process(1, 1.95, samples=[1.95] * 3)])
    assert (few.said(1.5), few.interval) == ("not decided", "")
    monkeypatch.setitem(targets.EARLIER, (wide.id, LONG), "another kernel")
    assert list(targets.results([wide])) == []


def test_a_form_of_few_processes_is_not_shown_in_place_of_one_of_many(targets):
    rows = [record(LONG, "cp-one", 6.0), record(LONG, "cp-ring", 3.2), record(LONG, "cp-allgather", 3.0)]
    all_forms, [one, ring, _] = replace(make_run(rows), id="a" * 8), rows
    two = replace(make_run([one, ring]), id="b" * 8)
    assert next(targets.results([all_forms])).best == "cp-allgather"
    [found] = [of for of in targets.results([all_forms, two]) if of.target.over == "cp-one"]
    assert found.best == "cp-ring"


def test_fewer_forms_are_sampled_in_as_many_rounds(targets, tmp_path, capsys):
    words = ["--measure", str(tmp_path), "--parts", "128k-full", "--times", "1", "--dry-run"]
    targets.main([*words, "--backends", "cp-one,cp-ring"])
    assert "--backends cp-one,cp-ring --max-seconds 32 " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        targets.main([*words, "--backends", "cp-ring"])
    assert "cp-one and some of" in capsys.readouterr().err


def test_parts_measure_every_target_within_a_command(targets, tmp_path, capsys):
    targets.main(["--measure", str(tmp_path), "--dry-run"])
    *lines, together = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 * len(targets.PARTS)
    minutes = [float(line.split()[1]) for line in lines]
    assert max(minutes) * targets.LEAST_PROCESSES < 10, "three runs fit a command of ten minutes"
    assert float(together.split()[-2]) == pytest.approx(sum(minutes), abs=0.06)
    reached = set().union(*(cases_of(shlex.split(line.split(": ", 1)[1])) for line in lines))
    wanted = {
        name for one in targets.TARGETS for name, case in CASES.items() if one.case.items() <= case.to_dict().items()
    }
    assert wanted <= reached
    (tmp_path / "cp-8k-1.json").touch()
    targets.main(["--measure", str(tmp_path), "--parts", "8k", "--times", "1", "--dry-run"])
    assert "cp-8k-2.json" in capsys.readouterr().out, "beside what is there"


def cases_of(words):
    """The cases that a command measures."""
    assert words[:3] == ["attnbench", "run", "attention-cp"]
    parser = Parser("run", VERBS["run"])
    run.add_arguments(parser)
    args = parser.read(words[2:])
    known = {axis.name: axis for axis in WORKLOAD.axes}
    asked = {name: parse_axis("x", known[name], text) for name, text in axis_words(args, "x").items()}
    return expand(load_suite("attention-cp", "cuda"), WORKLOAD, asked).keys()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "FILE or --measure OUT is missing"),
        ("--dry-run", "FILE or --measure OUT is missing; --dry-run is of --measure"),
        ("nothing.json", "path=nothing.json is not there"),
        ("--measure OUT --times 0 --dry-run", "--times: 0 measures nothing; 1 or more"),
    ],
)
def test_mistakes(targets, words, said, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        targets.main(words.split())
    assert said in capsys.readouterr().err
