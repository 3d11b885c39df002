"""The first commands of a new user in an empty folder, in order, and their results; nothing is faked."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.cli import main

SMALL = ["--batch", "1", "--seqlen", "64", "--nheads", "1", "--warmup", "1", "--iterations", "8"]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder in which one shape was compared twice, once into a pipe and once beside a kernel of one's own."""
    folder = tmp_path_factory.mktemp("new user")
    (folder / "mine.py").write_text("def attention(q, k, v, causal, scale):\n    return v\n")
    here = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    here |= {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "120"}
    for words in (["--backends", "eager,sdpa"], ["--backends", "eager,sdpa,./mine.py", "--causal"]):
        done = subprocess.run(
            [sys.executable, "-m", "attnbench", "compare", *SMALL, *words],
            cwd=folder,
            env=here,
            capture_output=True,
            text=True,
        )
        (folder / f"{len(words)}.out").write_text(done.stdout)
        (folder / f"{len(words)}.err").write_text(f"{done.returncode}\n{done.stderr}")
    return folder


@pytest.fixture
def said(place, monkeypatch, capsys):
    """Type a command there: the exit code, stdout and stderr."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "120")

    def type_in(*words):
        code = main([*words])
        found = capsys.readouterr()
        return code, found.out, found.err

    return type_in


def test_a_pipe_has_the_table_and_the_result_and_stderr_the_progress(place):
    out, (code, *err) = (place / "2.out").read_text(), (place / "2.err").read_text().splitlines()
    assert code == "0"
    heading, _, title, head, *rows = out.splitlines()
    assert "torch" in heading
    assert title.startswith("b1-s64-h1-d64-fp32-fwd   timer wall")
    assert head.split()[:2] == ["backend", "median"]
    assert {row.split()[0] for row in rows[:2]} == {"eager", "sdpa"}
    assert "\nresult  " in out
    assert out.splitlines()[-1].startswith("written: results/")
    assert all(line.startswith(("attnbench compare: ", "compare: ")) for line in err)
    assert "\x1b" not in out


def test_a_kernel_that_is_wrong_has_no_time_and_the_exit_code_says_so(place):
    out, (code, *_) = (place / "3.out").read_text(), (place / "3.err").read_text().splitlines()
    assert code == "1"
    (line,) = [line for line in out.splitlines() if line.startswith("incorrect")]
    assert line.split()[1] == "mine"


def test_what_was_measured_can_be_looked_at_again(said, place):
    first = (place / "2.out").read_text().splitlines()[2:-1]
    code, out, _ = said("show", "previous")
    assert (code, out.splitlines()[2 : 2 + len(first)]) == (0, first)
    code, out, _ = said("export", "previous", "--csv", "-")
    assert [row["backend"] for row in csv.DictReader(io.StringIO(out))] == ["eager", "sdpa"]
    code, out, _ = said("export", "previous", "--md", "-", "--xlsx", "runs.xlsx")
    assert (code, out.splitlines()[0], Path("runs.xlsx").exists()) == (0, "## compare", True)
    code, out, _ = said("report", "latest", "--html", "page.html")
    assert (code, "incorrect" in Path("page.html").read_text("utf-8")) == (0, True)
    code, out, _ = said("export", "previous", "--layout", "seed-004")
    assert code == 0
    assert "PyTorch Standard" in out


def test_two_runs_are_in_the_history_and_of_two_shapes(said):
    code, out, _ = said("history")
    assert code == 0
    assert [line.split()[2] for line in out.splitlines()[1:]] == ["compare", "compare"]
    code, out, _ = said("history", "s64-h1-d64-fp32-fwd/eager")
    assert (code, "1 run:" in out) == (0, True)
    code, out, err = said("diff", "previous", "latest")  # of two shapes: nothing can be judged
    assert (code in (2, 3), "Traceback" in out + err) == (True, False)
    code, out, err = said("compare", "--resume")  # the latest, with a kernel from a file that must be named again
    assert (code, "mine.py" in err) == (2, True)
    code, out, err = said("compare", "--resume", "previous")  # there is nothing left to do
    assert (code, "\nresult  " in out) == (0, True)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], "examples:"),
        (["help", "compare"], "usage: attnbench compare"),
        (["version"], "attnbench "),
        (["list"], "attnbench list backends   implementations"),
        (["list", "suites"], "A first look: small shapes on a CPU"),
        (["compare", *SMALL, "--dry-run"], "\ncommand: attnbench compare --batch 1"),
        (
            ["compare", *SMALL, "--backends", "sdpa,flash-triton", "--device", "cpu", "--dry-run"],
            "skipped  flash-triton",
        ),
        (["show", "previous", "--columns", "median,tflops", "--sort", "tflops"], "\nresult  "),
    ],
)
def test_what_one_looks_at_first_is_on_stdout(said, words, found):
    code, out, err = said(*words)
    assert (code, found in out) == (0, True)
    assert not [line for line in err.splitlines() if not line.endswith("planning")]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["compar"], "command=compar is not known; one of check, compare, "),
        (["compare", "--seq-len", "64"], "flag=--seq-len is not known; see `attnbench compare --help-all`"),
        (["compare", "--repeats", "3"], "did you mean --iterations N?"),
        (["compare", "--dtype", "fp7"], "fp7"),
        (["run", "quik"], "did you mean quick?"),
        (["report", "nowhere.json"], "nowhere.json"),
        (["report"], "RUN... is missing, as in `attnbench report latest`"),
        (["diff"], "A, B are missing, as in `attnbench diff previous latest`"),
        (["show", "--layout", "seed-004"], "it is a flag of "),
        (["check", "--backends", "./nowhere.py"], "a Python file with a function attention, or a Backend"),
        (["compare", "--workload", "hstu", "--headdim", "64"], "did you mean --attn-dim?"),
        (["export", "previous"], "there is no output; --csv PATH, --html PATH"),
        (["history", "nothing/like-it"], "nothing/like-it"),
    ],
)
def test_a_mistake_is_one_line_that_helps(said, words, answer):
    code, out, err = said(*words)
    assert (code, out) == (2, "")
    told = [line for line in err.splitlines() if not line.endswith("planning")]
    assert len(told) == 1
    assert answer in told[0]
