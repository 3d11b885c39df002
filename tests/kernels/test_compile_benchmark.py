"""The benchmarks' compiler beforehand: what it calls, and that one cut that does not work ends nothing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PLACE = Path(__file__).resolve().parents[2] / "benchmarks" / "compile.py"


@pytest.fixture(scope="module")
def compiler():
    spec = importlib.util.spec_from_file_location("benchmark_compile", PLACE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_process_has_all_lengths_of_a_cut_and_a_batch_of_one(compiler):
    defaults, cuts = compiler.tasks("hstu-dense", ["hstu-triton"], ["fwd", "bwd"], "cuda", cuts=True, chosen={})
    shapes = [(task[1][0]["attn_dim"], task[1][0]["mode"], len(task[1])) for task in defaults]
    assert shapes == [
        (dim, mode, count) for dim, count in ((128, 7), (256, 2), (64, 2), (32, 2)) for mode in ("fwd", "bwd")
    ]
    assert {values["batch"] for task in (*defaults, *cuts) for values in task[1]} == {1}
    assert len(cuts) == len({(task[0], task[1][0]["attn_dim"]) for task in cuts}) > 100
    some = compiler.tasks(
        "hstu-dense", ["hstu-triton"], ["fwd"], "cuda", cuts=False, chosen={"seqlen": [2048], "attn_dim": []}
    )
    assert [len(task[1]) for task in some[0]] == [1, 1, 1]
    assert some[1] == []


def test_suites_of_other_workloads_too(compiler):
    names = ["flash-triton", "flash-triton[m128n128w8s2-tma-pp]"]
    defaults, _ = compiler.tasks("flash", names, ["fwd"], "cuda", cuts=False, chosen={"headdim": [128], "attn_dim": []})
    assert [task[0] for task in defaults] == names
    assert {(values["causal"], values["batch"]) for values in defaults[0][1]} == {(False, 1), (True, 1)}
    (eager,), _ = compiler.tasks("flash", ["eager"], ["fwd"], "cpu", cuts=False, chosen={})
    assert compiler.call(eager) == []


def test_what_does_not_work_is_a_line(compiler):
    (works, *_), _ = compiler.tasks(
        "hstu-bsa", ["hstu-bsa-eager"], ["fwd-bwd"], "cpu", cuts=False, chosen={"seqlen": [64]}
    )
    assert compiler.call(works) == []
    (line,) = compiler.call(("hstu-bsa-eager[none]", *works[1:]))
    assert "hstu-bsa-eager[none]" in line
    assert "has none" in line


def test_a_suite_that_is_not_there_is_one_line(compiler, capsys):
    assert compiler.main(["--suite", "nothing", "--backends", "hstu-eager"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
