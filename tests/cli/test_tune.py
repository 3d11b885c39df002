"""`attnbench tune` from the command line: one-line errors, one race on the CPU, and what is stored."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path

import pytest

from attnbench.errors import NothingToRun
from attnbench.measure.timer import all_timers
from attnbench.sweep.executor import Progress

FAKES = Path(__file__).parents[1] / "fakes"
SHAPE = "--device cpu --batch 1 --seqlen 15 --nheads 1 --headdim 8 --causal"


@pytest.fixture
def tune(attnbench, forked_workers, monkeypatch):
    """The command in a folder with the backend of tests/fakes/tunable.py and its timer."""
    monkeypatch.setenv("ATTNBENCH_TIMERS", str(FAKES / "tunable_timer.py"))
    monkeypatch.syspath_prepend(str(FAKES))
    for name in ("tunable.py", "misbehaving.py"):
        shutil.copy(FAKES / name, name)
    all_timers.cache_clear()  # it has read the variable before
    yield lambda words: attnbench(f"tune {words}")
    all_timers.cache_clear()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            "",
            2,
            "attnbench tune: BACKEND is missing, as in `attnbench tune hstu-triton --seqlen 1024,4096 --dtype bf16`; see ",
        ),
        ("hstu-tritn", 2, "attnbench tune: BACKEND=hstu-tritn is not known; one of "),
        ("sdpa", 2, "attnbench tune: BACKEND=sdpa has no configurations to choose from; one that has: "),
        (
            "hstu-triton[f64x64w4s2-ahead]",
            2,
            "attnbench tune: BACKEND=hstu-triton[f64x64w4s2-ahead] names one "
            "configuration already; hstu-triton; attnbench tune hstu-triton --configs f64x64w4s2-ahead",
        ),
        ("hstu-triton --device cpu", 3, "hstu-triton: device=cpu is not supported; cuda"),
        ("tunable --backends ./tunable.py --device cpu --headdim 64", 0, None),
        (
            "tunable --backends ./tunable.py --device cpu --headdim 128",
            2,
            "tunable: case=b2-s1024-h8-d128-fp32-fwd has no configuration; another shape",
        ),
        (
            "tunable --backends ./tunable.py --device cpu --configs c1,d*",
            2,
            "attnbench tune: --configs=d* is not known; one of c0, ",
        ),
        (
            "tunable --backends ./tunable.py --device cpu --configs c1,,--x",
            2,
            "tunable: config=--x is not known; one of c0, ",
        ),
        ("tunable --backends sdpa", 2, "attnbench tune: --backends=sdpa is no file; a Python file; "),
        (
            "tunable --backends ./tunable.py --device cpu --rounds 3",
            2,
            "attnbench tune: --rounds=3 cannot be used; a whole number, at least 10",
        ),
        (
            "tunable --backends ./tunable.py --device cpu --seconds 0",
            2,
            "attnbench tune: --seconds=0 cannot be used; a number above 0",
        ),
        (
            "tunable --backends ./tunable.py --device cpu --timer all",
            2,
            "attnbench tune: --timer=all is no one timer to race by; auto, or a timer's name",
        ),
        (
            "tunable --backends ./tunable.py --device cpu --timer auto,wall",
            2,
            "attnbench tune: --timer=auto,wall is no one timer to race by; auto, or a timer's name",
        ),
        (
            "tunable --backends ./tunable.py --device cpu --timer cupti",
            3,
            "attnbench: --timer=cupti does not work on cpu",
        ),
        ("tunable --backends ./tunable.py --device cpu --attn-dim 8", 2, "attnbench tune: axis=attn_dim is not known"),
        ("tunable --backends ./tunable.py --device cpu --resume --again", 2, "--resume does not go with --again"),
        ("tunable --backends ./tunable.py --device cpu --resume --no-save", 2, "--resume does not go with --no-save"),
        ("tunable --backends ./tunable.py --device cpu --csv - --json -", 2, "--json=- wants stdout, as --csv does"),
        ("hstu-triton --reference nope", 2, "attnbench tune: --reference=nope is not known; one of "),
        (
            "hstu-triton --reference sdpa",
            2,
            "attnbench tune: --reference=sdpa is of the workload attention; one of hstu",
        ),
        ("hstu-triton --reference ,", 2, "attnbench tune: --reference=, names nothing; names of backends, or none"),
        (
            "tunable --backends ./tunable.py --device cpu --csv .",
            2,
            "output: path=. cannot be written (Is a directory)",
        ),
        ("tunable --backends ./tunable.py --device cpu --out /dev/null", 2, "cannot be written (Not a directory)"),
    ],
)
def test_a_mistake_is_answered_in_one_line_before_anything_is_measured(tune, monkeypatch, words, code, said):
    import attnbench.sweep.run

    monkeypatch.setattr(attnbench.sweep.run.Execution, "environment", lambda self: pytest.fail("measured"))
    answer = tune(words + (" --dry-run" if said is None else ""))
    assert answer.code == code
    if said is not None:
        assert said in answer.err
        assert answer.err.count("\n") == 1
        assert answer.out == ""


def test_a_case_without_configurations_is_refused(tune, monkeypatch):
    from attnbench.backends.hstu_triton import HstuTriton

    monkeypatch.setattr(HstuTriton, "devices", ("cpu", "cuda"))
    monkeypatch.setattr(HstuTriton, "configs", lambda self, case: [object()] if case.seqlen == 1024 else [])
    answer = tune("hstu-triton --device cpu --seqlen 64")
    assert answer.code == 2
    assert answer.err.startswith("hstu-triton: case=b2-s64-")
    assert answer.err.endswith("has no configuration; another shape\n")


def test_a_plan_is_shown_and_nothing_is_measured(tune):
    answer = tune(f"tunable --backends ./tunable.py {SHAPE} --configs c1* --dry-run")
    assert answer.code == 0
    assert "b1-s15-h1-d8-fp32-causal-fwd: 12 configurations, the default among them" in answer.out
    assert not Path("results").exists()


def test_a_race_is_shown_kept_answered_again_and_measured_anew(tune):
    words = f"tunable --backends ./tunable.py {SHAPE} --timer simulated --configs c1*,c30,c31,c33"
    answer = tune(f"{words} --csv all.csv --json all.json")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0].startswith("tunable  b1-s15-h1-d8-fp32-causal-fwd   ")
    assert "timer simulated · L2 warm" in lines[0]
    assert lines[2].split()[0] == "c17"
    assert lines[2].split()[-1] == "picked"
    failed = [line for line in lines if line.startswith("failed")]
    assert len(failed) == 1
    assert "2 configurations" in failed[0]
    assert "(c30, c31)" in failed[0]
    assert any(line.startswith("incorrect") and "out: wrong values" in line for line in lines)
    assert re.search(
        r"^pick  tunable\[c17\], against which the default takes 1\.(29|30)\d*x \(±0\.\d+\)$", answer.out, re.MULTILINE
    )
    assert re.search(r"within 1 % of it with a chance of (over )?9\d(\.\d)? %", answer.out)
    assert "nothing compiled ahead" in answer.out
    [rerun] = [line for line in lines if line.startswith("  attnbench compare ")]
    assert "--backends 'tunable,tunable[c17],tunable.py'" in rerun

    table = list(csv.DictReader(io.StringIO(Path("all.csv").read_text())))
    assert len(table) == 1 + 11 + 3
    assert (table[0]["config"], table[0]["ended"], table[0]["seqlen"]) == ("c17", "picked", "15")
    assert json.loads(Path("all.json").read_text())[0]["config"] == "c17"
    race, rows = sorted(Path("results/tuning").iterdir(), key=lambda path: path.suffix, reverse=True)
    assert race.name.startswith("tunable-b1-s16-h1-d8-fp32-causal-fwd-"), "of the bucket"
    assert rows.name.startswith("tunable-b1-s15-h1-d8-fp32-causal-fwd-")
    assert rows.read_text() == Path("all.csv").read_text()
    text = race.read_text()
    assert str(Path.cwd()) not in text

    again = tune(words.replace("--seqlen 15", "--seqlen 14"))
    assert again.code == 0
    assert "for b1-s15-h1-d8-fp32-causal-fwd, of the same bucket of shapes; --again measures anew" in again.out
    assert race.read_text() == text
    piped = tune(f"{words} --csv -")
    assert list(csv.DictReader(io.StringIO(piped.out))) == table
    assert "picked" in piped.err
    assert tune(f"{words} --quiet").out == "tunable[c17]\n"

    with Path("tunable.py").open("a") as file:
        file.write("# changed\n")
    assert tune(f"{words} --quiet --configs c17").out == "tunable[c17]\n"
    assert len(list(Path("results/tuning").glob("*.json"))) == 2, "another source is another question"


def test_ctrl_c_keeps_the_race_and_says_how_to_finish(tune, monkeypatch):
    from attnbench.tune.run import Tuning

    words = f"tunable --backends ./tunable.py {SHAPE} --timer simulated --configs c1?"
    report = Tuning._report

    def stop(self, step, *more, **named):
        report(self, step, *more, **named)
        if step == "stage 1":
            raise KeyboardInterrupt

    monkeypatch.setattr(Tuning, "_report", stop)
    answer = tune(words)
    assert answer.code == 130
    assert answer.err == (
        "attnbench tune: stopped; what was measured is kept; to finish: attnbench tune tunable --batch 1 --seqlen 15 "
        "--nheads 1 --headdim 8 --causal --configs 'c1?' --backends ./tunable.py --timer simulated --device cpu "
        "--resume\n"
    )
    monkeypatch.setattr(Tuning, "_report", report)
    [path] = Path("results/tuning").glob("*.json")
    checked = json.loads(path.read_text())["tuning"]["seconds"]["check"]
    assert tune(f"{words} --resume --quiet").out == "tunable[c17]\n"
    assert json.loads(path.read_text())["tuning"]["seconds"]["check"] == checked, "checked once"


def test_where_nothing_runs_the_command_says_why_and_ends_with_3(tune):
    answer = tune(f"nothing-runs --backends ./tunable.py {SHAPE}")
    assert answer.code == 3
    assert answer.err.startswith(
        "nothing-runs: case=b1-s15-h1-d8-fp32-causal-fwd is run by none of 6 configurations; "
        "5 failed: RuntimeError during first call: out of resource: shared memory"
    )
    assert ", 1 failed: RuntimeError during first call: no default for this shape" in answer.err
    assert answer.err.count("\n") == 1


def test_a_gpu_that_is_waited_for_is_said(tune, monkeypatch):
    def open_(executor, say):
        say(Progress("waiting for cuda:0, which is held by another run"))

    def answer(*args):
        raise NothingToRun("no worker")

    monkeypatch.setattr("attnbench.sweep.executor.DeviceExecutor.open", open_)
    monkeypatch.setattr("attnbench.cli.tune._Request._answer", answer)
    said = tune(f"tunable {SHAPE} --backends ./tunable.py --quiet").err.splitlines()
    assert said == ["waiting for cuda:0, which is held by another run", "no worker"]
