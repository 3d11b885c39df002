"""The code of the docs and the examples runs, and prints what the docs show (except numbers)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT, blocks

from attnbench.backends.base import Machine
from attnbench.backends.registry import all_backends
from attnbench.check.examine import examine
from attnbench.check.reference import References
from attnbench.suites.load import TOP, load_suite
from attnbench.workloads.base import load_workload

PYTHON = (ROOT / "docs/python.md").read_text("utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
SUITES = (ROOT / "docs/suites.md").read_text("utf-8")
EXAMPLES = ROOT / "examples"


def python(*arguments: str, cwd: Path) -> str:
    """What a Python process prints on a CPU; one thread, because the tests share the machine."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "COLUMNS": "100",
        "PYTHONPATH": str(ROOT / "src"),
    }
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def shape(text: str) -> list[str]:
    """Lines of output without what differs from machine to machine: numbers, units, verdicts, blanks, wide intervals."""
    text = re.sub(r"\b(?:faster|slower|same|unclear)\b", "VERDICT", text)
    text = re.sub(r"(?<![\w-])(?:\d[\d.]*(?:e[+-]?\d+)?|NaN)", "N", text)
    text = re.sub(r"N \(N to N\)", "N ±N", text)
    text = re.sub(r"N(x?) to N\1", r"N\1 ±N", text)  # a loaded machine's intervals are printed as their ends
    text = re.sub(r"N (?:µs|ms|s)\b", "N TIME", text)
    return [" ".join(line.split()) for line in text.strip().splitlines()]


@pytest.mark.parametrize("number", [0, 1])
def test_the_python_of_the_docs_prints_what_it_says(number, tmp_path):
    code, said = blocks(PYTHON, "python")[number], blocks(PYTHON, "text")[number]
    assert shape(python("-c", code, cwd=tmp_path)) == shape(said)


def test_the_test_of_the_docs_is_one(tmp_path):
    functions, test = blocks(PYTHON, "python")[0].split("print(")[0], blocks(PYTHON, "python")[2]
    (tmp_path / "test_mine.py").write_text(f"{functions}\n{test}")
    said = python(
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--attnbench-device",
        "cpu",
        "--attnbench-max-seconds",
        "0.2",
        "test_mine.py",
        cwd=tmp_path,
    )
    assert "test_fused_is_not_slower: measured in turn, speed-up against plain" in said
    assert "1 passed" in said


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("time_a_function.py", ("library: ", "measured in turn, speed-up against by hand")),
        ("run_a_suite.py", ("vs sdpa", "speedup.verdict")),
        ("hstu_bsa.py", ("HSTU dense (hstu-eager):", "HSTU BSA (hstu-bsa-eager):", "worst speed-up:")),
    ],
)
def test_an_example_runs(file, words, tmp_path):
    said = python(str(EXAMPLES / file), cwd=tmp_path)
    assert [word for word in words if word not in said] == []


@pytest.mark.parametrize("file", [path.name for path in sorted(EXAMPLES.glob("*.py"))])
def test_an_example_is_short_and_listed(file):
    assert len((EXAMPLES / file).read_text("utf-8").splitlines()) < 30
    assert f"[{file}]({file})" in (EXAMPLES / "README.md").read_text("utf-8")


def test_the_failed_record_of_the_docs_is_what_comes_of_it(tmp_path):
    text = (ROOT / "docs/correctness.md").read_text("utf-8")
    mine = (EXAMPLES / "my_kernel.py").read_text("utf-8")
    wrong = re.sub(r"here = first \+ case\.seqlen_k - case\.seqlen.*", "here = first", mine)
    assert wrong != mine
    (tmp_path / "mine.py").write_text(wrong)
    case = load_workload("attention").case(
        {"batch": 1, "seqlen": 300, "seqlen_k": 500, "nheads": 4, "causal": True, "dtype": "fp32", "mode": "fwd"}
    )
    outcome = examined(all_backends([str(tmp_path / "mine.py")])["chunked"], case)
    reason = " ".join(blocks(text, "text")[0].split())
    said = re.search(r"incorrect chunked (.*?) note ", reason)
    assert (outcome.ok, digits(outcome.reason)) == (False, digits(said[1]))
    assert digits(f'"reason": "{outcome.reason}"') in digits(blocks(text, "json")[0])


def digits(text: str) -> str:
    """Without the digits that another machine may round otherwise."""
    return re.sub(r"\d+", "N", re.sub(r"\d\.\d+(e-?\d+)?", "N", text))


def examined(backend, case):
    """What the examination of a backend on a CPU finds, as in a worker."""
    backend.check(case, Machine("cpu"))
    workload = load_workload("attention")
    first, second = (workload.inputs(case, seed=seed, kind="normal", device="cpu") for seed in (0, 1))
    with backend.session(case, first) as launch:
        references = References(workload, case, first, second)
        return examine(launch, references, variant=backend.variant, budget=backend.budget(case))


def test_the_backend_of_contributing_is_right(tmp_path):
    (tmp_path / "by_hand.py").write_text(blocks(CONTRIBUTING, "python")[0])
    backend = all_backends([str(tmp_path / "by_hand.py")])["by-hand"]
    for values in ({"batch": 1, "seqlen": 63, "nheads": 2, "headdim": 16}, {"batch": 2, "seqlen": 129, "nheads": 1}):
        outcome = examined(backend, load_workload("attention").case({**values, "dtype": "fp32"}))
        assert (outcome.ok, outcome.reason) == (True, None)


def test_the_table_of_configurations_of_contributing_is_read(tmp_path):
    block = next(block for block in blocks(CONTRIBUTING, "python") if "LaunchConfig" in block)
    (tmp_path / "mine.py").write_text(
        block
        + """
try:
    MyConfig.parse("m128n64w8-tmaa")
except ValueError as why:
    print(why)
"""
    )
    assert python("mine.py", cwd=tmp_path) == "has the word tmaa; one of tma, rN\n"


def test_the_timer_of_contributing_is_listed_and_times(tmp_path):
    (tmp_path / "cpu_time.py").write_text(next(block for block in blocks(CONTRIBUTING, "python") if "Timer)" in block))
    code = f"""
import os
os.environ["ATTNBENCH_TIMERS"] = {str(tmp_path / "cpu_time.py")!r}
import attnbench
found = attnbench.bench(lambda: sum(range(20000)), device="cpu", timer="cpu-time", warmup=1, iterations=8)
assert found.time.timer == "cpu-time" and found.median_ms > 0.01
from attnbench.cli import main
main(["list", "timers"])
"""
    assert "cpu-time  cpu" in python("-c", code, cwd=tmp_path)


def test_the_suite_of_the_docs_is_one_and_every_key_is_explained(tmp_path):
    (tmp_path / "mine.toml").write_text(blocks(SUITES, "toml")[0])
    card, cpu = (load_suite(str(tmp_path / "mine.toml"), device) for device in ("cuda", "cpu"))
    assert card.batch_by_seqlen == {4096: (4,), 16384: (1, 2)}
    assert (card.axes["seqlen"], cpu.axes["seqlen"], cpu.axes["dtype"]) == ((4096, 16384), (256,), ("fp32",))

    heads = [line.split("|")[1] for line in SUITES.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`(\w+)`", " ".join(heads))) == set(TOP)


def test_the_function_of_the_docs_is_a_kernel(tmp_path):
    (tmp_path / "mine.py").write_text(blocks(SUITES, "python")[0])
    python(
        "-m",
        "attnbench",
        "check",
        "--backends",
        "./mine.py,sdpa",
        "--batch",
        "1",
        "--seqlen",
        "16",
        "--causal-both",
        "--dtype",
        "fp32",
        "--device",
        "cpu",
        "--no-save",
        cwd=tmp_path,
    )


def test_the_republishing_of_contributing_publishes_the_schema(tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    line = re.search(r'`python -c "(from attnbench.store.*?)"`', CONTRIBUTING)[1]
    monkeypatch.chdir(tmp_path)
    exec(line)
    assert (tmp_path / "docs/run-file.schema.json").read_text() == (ROOT / "docs/run-file.schema.json").read_text()
