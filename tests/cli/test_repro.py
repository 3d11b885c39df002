"""The command of a record that repeats its row: the real parser plans the same row."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest

from attnbench.record import PlannedGroup, Record, Settings, Status
from attnbench.store.runfile import read
from attnbench.suites import estimate
from attnbench.worker.outcome import repro
from attnbench.workloads.base import load_workload

# Every axis away from its default in some case; settings away from theirs.
SUITE = """
name = "odd"
title = "t"
workload = "attention"
backends = ["eager", "sdpa", "sdpa-cudnn"]
baseline = "sdpa"
settings = { rel_ci = 0.5, max_seconds = 0.02, input = "uniform", seed = 3 }
[[cases]]
batch = 1
seqlen = 7
nheads = 2
headdim = 16
dtype = "fp32"
[[cases]]
batch = 3
seqlen = 5
seqlen_k = 9
nheads = 4
nheads_kv = 2
headdim = 16
headdim_v = 24
causal = true
window = "3:0"
dtype = "bf16"
mode = "fwd-bwd"
[[cases]]
batch = 2
seqlen = 8
nheads = 2
headdim = 8
lengths = "3:8"
window = "-1:2"
dtype = "fp32"
mode = "bwd"
"""


HSTU = """
name = "odd-hstu"
title = "t"
workload = "hstu"
backends = ["hstu-eager", "hstu-bsa-eager"]
baseline = "hstu-eager"
[[cases]]
batch = 1
seqlen = 70
nheads = 2
attn_dim = 16
dtype = "fp32"
[[cases]]
batch = 2
seqlen = 90
nheads = 3
attn_dim = 16
linear_dim = 24
alpha = 0.3
scaling_seqlen = 40
num_targets = "3:0"
lengths = "90:33"
block_size = 16
block_counts = 2
local_window = 7
selection = "shared"
pairs = true
gates = false
dtype = "fp32"
mode = "fwd-bwd"
[[cases]]
batch = 1
seqlen = 50
nheads = 1
attn_dim = 16
contextual_len = 4
max_attn_len = 9
delta_q = 20
dtype = "fp32"
"""


@pytest.fixture
def plan_again(attnbench, monkeypatch):
    """What a line of a record plans, and what it shows of that."""
    planned = []
    estimated = estimate.estimate
    monkeypatch.setattr(estimate, "estimate", lambda run, **given: planned.append(run) or estimated(run, **given))

    def plan(line):
        program, *words = shlex.split(line)
        assert program == "attnbench"
        answer = attnbench([*words, "--dry-run"])
        assert (answer.code, answer.err) == (0, "")
        return planned.pop(), answer.out

    return plan


def check_again(run, record, plan_again):
    again, shown = plan_again(record.repro)
    [group] = again.plan
    baseline = run.settings.baseline
    assert (group.case, group.case_id) == (record.case, record.case_id)
    assert group.backends == tuple(dict.fromkeys((baseline, record.backend)))
    assert heeded(again.settings) == heeded(run.settings)
    assert f"{', '.join(group.backends)}\n  {record.case_id}\n" in shown


def heeded(settings):
    """The settings without those that another one puts aside: what stops the sampling, if there is any."""
    idle = {"rel_ci", "max_seconds"} if settings.iterations is not None or not settings.measure else set()
    return {name: value for name, value in dataclasses.asdict(settings).items() if name not in idle}


@pytest.fixture
def suites(attnbench):
    """The two suites as files of the folder that commands run in."""
    Path("odd.toml").write_text(SUITE)
    Path("odd-hstu.toml").write_text(HSTU)


@pytest.mark.parametrize(
    ("words", "verb", "rows"),
    [
        ("run ./odd.toml --device cpu --regime sustained", "compare", 9),
        ("check ./odd-hstu.toml --device cpu --backends hstu-eager", "check", 5),
    ],
)
def test_the_line_of_every_record_plans_that_record(suites, attnbench, saved, plan_again, words, verb, rows):
    assert attnbench(words).code == 0
    [path] = saved()
    run = read(path)
    assert len(run.records) == rows
    statuses = {record.status for record in run.records}
    assert statuses == ({Status.PASSED, Status.SKIPPED} if rows == 9 else {Status.PASSED})
    groups = {group.group: group for group in run.plan}
    for record in run.records:
        assert record.repro.startswith(f"attnbench {verb} --")
        assert record.repro == repro(groups[record.group], run.settings, record.backend, [])
        check_again(run, record, plan_again)


# What a record says is `repro` of its plan, as above: no worker is needed to ask for more of them.
@pytest.mark.parametrize(
    ("words", "verb", "rows"),
    [
        ("run quick --device cpu --seqlen 9 --headdim 8 --backends sdpa,eager --warmup 0 --iterations 7", "compare", 4),
        ("check ./odd.toml --device cpu", "check", 12),
        ("run ./odd-hstu.toml --device cpu", "compare", 6),
    ],
)
def test_the_line_of_every_row_of_a_plan_plans_that_row(suites, plan_again, words, verb, rows):
    run, _ = plan_again(f"attnbench {words}")
    planned = [(group, name) for group in run.plan for name in group.backends]
    assert len(planned) == rows
    for group, name in planned:
        record = Record(
            workload=group.workload,
            case=group.case,
            case_id=group.case_id,
            group=group.group,
            backend=name,
            status=Status.PASSED,
            repro=repro(group, run.settings, name, []),
        )
        assert record.repro.startswith(f"attnbench {verb} --")
        check_again(run, record, plan_again)


@pytest.mark.parametrize("verb", ["compare", "check"])
def test_a_line_with_a_file_of_backends_runs_beside_that_file(attnbench, plan_again, verb):
    case = load_workload("attention").case({"seqlen": 63})
    settings = Settings(device="cpu", baseline="sdpa", measure=verb == "compare")
    group = PlannedGroup(
        group=case.id, workload="attention", case=case.to_dict(), case_id=case.id, backends=("sdpa", "mine")
    )
    line = repro(group, settings, "mine", ["/somewhere/mine.py"])
    assert line.startswith(f"attnbench {verb} --")
    assert line.count("mine") == 2
    again, _ = plan_again(line)
    assert again.plan[0].backends == ("sdpa", "mine")
    assert again.backend_files == ("mine.py",)


def test_a_check_of_a_line_runs(attnbench, saved):
    """Not only planned: carried out as it stands."""
    line = (
        "attnbench check --batch 1 --seqlen 5 --nheads 2 --headdim 8 --no-causal --dtype fp32 --mode fwd "
        "--lengths full --backends sdpa,eager --device cpu"
    )
    answer = attnbench(shlex.split(line)[1:])
    assert answer.code == 0
    assert answer.out.splitlines()[-2:] == ["2 passed", f"written: {saved()[0]}"]
    assert {record.repro for record in read(saved()[0]).records} >= {line}


@pytest.mark.parametrize(
    ("words", "case", "command"),
    [
        ("compare --attn-dim 24 --device cpu", "b2-s256-h2-d24", "attnbench compare --workload hstu --attn-dim 24"),
        (
            "compare --workload hstu --seqlen 33 --device cpu",
            "b2-s33-h2-d32",
            "attnbench compare --workload hstu --seqlen 33",
        ),
        ("check --attn-dim 24 --device cpu", "b2-s256-h2-d24", "attnbench check --workload hstu --attn-dim 24"),
        ("compare --seqlen 33 --device cpu", "b2-s33-h8-d64", "attnbench compare --seqlen 33"),
    ],
)
def test_a_shape_says_whose_it_is(attnbench, words, case, command):
    answer = attnbench(f"{words} --dry-run")
    assert answer.code == 0
    assert case in answer.out
    assert f"command: {command}" in answer.out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "compare --workload hstx",
            "attnbench compare: --workload=hstx is not known; one of attention, attention-cp, hstu",
        ),
        ("compare --workload attention --attn-dim 8", "attnbench compare: axis=attn_dim is not known; one of batch, "),
        ("compare --headdim 8 --attn-dim 8", "attnbench compare: axis=attn_dim is not known; one of batch, "),
        ("check quick --workload hstu", "attnbench check: --workload=hstu does not go with a suite; one of the two"),
    ],
)
def test_a_shape_of_nobody(attnbench, words, line):
    answer = attnbench(words)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert answer.err.startswith(line)


def test_a_value_may_begin_with_a_minus(attnbench):
    answer = attnbench("compare --device cpu --seqlen 9 --window -1:5 --dry-run")
    assert "b2-s9-h8-d64-fp32-winf_5-fwd" in answer.out
    answer = attnbench("compare --device cpu --seqlen -9")
    assert answer.err == "attnbench compare: --seqlen=-9 cannot be used; a whole number from 1 to 16777216\n"
    answer = attnbench("compare --device cpu --causal -1")
    assert answer.err == "attnbench compare: --causal=-1 takes no value; alone\n"
