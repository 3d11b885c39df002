"""`attnbench run hstu-serving` from the command line to the record, on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from attnbench.cli import main
from attnbench.errors import UsageError
from attnbench.models.hstu_ranking.config import RECENCY_REASON
from attnbench.suites.estimate import estimate
from attnbench.suites.load import load_suite
from attnbench.suites.plan import Request, build
from attnbench.worker.entry import counters

TINY = [
    "--model",
    "tiny",
    "--batch",
    "1",
    "--num-candidates",
    "5",
    "--cached",
    "62",
    "--new-tokens",
    "8",
    "--page-size",
    "32",
    "--device",
    "cpu",
    "--no-save",
]


@pytest.mark.usefixtures("forked_workers")
def test_a_step_is_measured_with_and_without_a_cache(tmp_path, capsys):
    path = tmp_path / "run.json"
    assert (
        main(
            [
                "run",
                "hstu-serving",
                *TINY,
                "--warmup",
                "1",
                "--iterations",
                "3",
                "--cache",
                "host-hit",
                "--json",
                str(path),
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "p99" in shown
    assert "model tiny: 2 layers" in shown
    assert "works here: serving-eager, serving-eager[no-cache] gave the right logits in 1 case" in " ".join(
        shown.split()
    )
    records = {one["backend"]: one for one in json.loads(path.read_text())["records"]}
    cached, without = records["serving-eager"], records["serving-eager[no-cache]"]
    assert cached["status"] == without["status"] == "passed"
    assert cached["errors"]["out"]["ok"] is True
    assert cached["counters"] | {"host_hit_tokens": 62, "hit_tokens": 0, "missed_tokens": 8} == cached["counters"]
    assert without["counters"]["missed_tokens"] == 70
    assert list(cached["phases"]) == [
        "lookup",
        "allocate",
        "strip",
        "embedding",
        "projection",
        "append",
        "attention",
        "output",
        "head",
    ]
    assert without["work"]["executed_flops"] > cached["work"]["flops"] == without["work"]["flops"]
    assert cached["repro"].startswith("attnbench compare --workload hstu-serving --batch 1 --num-candidates 5 ")
    assert cached["speedup"]["baseline"] == "serving-eager[no-cache]"


@pytest.mark.usefixtures("forked_workers")
def test_a_check_needs_no_time_and_no_backward(capsys):
    assert main(["check", "hstu-serving", *TINY]) == 0
    assert "2 passed" in capsys.readouterr().out


def test_the_first_run_of_the_seed_is_cut_down_on_a_cpu_and_the_whole_sweep_on_a_gpu():
    here, card = load_suite("hstu-serving", "cpu"), load_suite("hstu-serving", "cuda")
    assert (here.axes["model"], here.axes["dtype"]) == (("small",), ("fp32",))
    assert "cut down for a CPU" in here.title
    assert (card.axes["batch"], card.axes["num_candidates"]) == ((1, 2, 4, 8), (128, 256, 512, 1024))
    assert card.axes["cached"] == (0, 1024, 2048, 4096)


@pytest.mark.parametrize("name", ["hstu-serving", "hstu-serving-tiers"])
def test_the_sweeps_are_planned_in_under_five_minutes_on_a_gpu(name):
    suite = load_suite(name, "cuda")
    run = build(Request(suite=suite, device="cuda"), run_id="abcd1234", command="", started="2026-01-01T00:00:00Z")
    assert estimate(run).seconds < 300
    assert {"serving-paged[graph]", "serving-paged", "serving-paged[no-cache+graph]"} <= set(run.plan[0].backends)
    found = {group.case["cache"] for group in run.plan}
    assert found == ({"gpu-hit"} if name == "hstu-serving" else {"gpu-hit", "host-hit", "partial"})
    assert {group.case["on_host_hit"] for group in run.plan if group.case["cache"] == "host-hit"} == (
        set() if name == "hstu-serving" else {"reload", "recompute", "auto"}
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--num-candidates", "0"], "--num-candidates=0 cannot be used; a whole number from 1"),
        (["--cache", "no-cache"], "a step without a cache is the row BACKEND[no-cache]"),
        (["--checkpoint", "nowhere.safetensors"], "--checkpoint=nowhere.safetensors cannot be used; a safetensors"),
        (["--checkpoint", "x" * 300], "x cannot be used; a safetensors file: a file that is there"),
        (["--page-size", "48"], "--page-size=48 cannot be used; one of 32, 64, 128"),
        (["--cached", "63"], "hstu-serving: cached=63 is no history of model=small"),
        (["--pool-share", "0"], "--pool-share=0 cannot be used; a number above 0, at most 1"),
        (["--num-candidates", "4000"], "num_candidates=4000 is over what model=small scores; at most 1024"),
        (["--cached", "9000"], "cached + new_tokens=9256 is over the history of model=small; at most 8192"),
        (["--model", "huge"], "--model=huge is not known; one of bench"),
        (["--seqlen", "5"], "axis=seqlen is not known"),
        (["--backends", "sdpa"], "name=sdpa computes attention"),
    ],
)
def test_a_wrong_request_is_answered_in_one_line_before_anything_is_measured(words, said, capsys):
    assert main(["run", "hstu-serving", "--device", "cpu", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_a_plan_says_in_the_words_of_the_run_that_a_model_has_no_cache(capsys):
    words = ["--device", "cpu", "--model", "dlrm-v3", "--cached", "512", "--batch", "1"]
    assert main(["run", "hstu-serving", *words, "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"skipped serving-eager model=dlrm-v3 {RECENCY_REASON}; serving-eager[no-cache] time " in said


def test_a_plan_says_what_memory_the_models_tables_take(capsys):
    """10,128 tokens of 262,144 numbers and 8,192 positions of 64, in fp32."""
    assert main(["run", "hstu-serving", "--device", "cpu", "--embedding-dim", "262144", "--dry-run"]) == 0
    gigabytes = 4 * (10_128 * 262_144 + 8_192 * 64) / 1e9
    assert f"memory  tables of the model: {gigabytes:.3g} GB, in the largest case" in capsys.readouterr().out


@pytest.mark.usefixtures("forked_workers")
def test_a_checkpoint_is_measured_and_one_that_does_not_fit_is_named(tmp_path, capsys, monkeypatch):
    from attnbench.models.hstu_ranking.checkpoint import save
    from attnbench.models.hstu_ranking.config import config_of
    from attnbench.models.hstu_ranking.model import HstuRanking

    monkeypatch.chdir(tmp_path)
    for name in ("tiny", "small"):
        save(HstuRanking(config_of(name), seed=5, dtype=torch.float32), tmp_path / f"{name}.safetensors")
    assert main(["check", "hstu-serving", *TINY, "--checkpoint", "tiny.safetensors"]) == 0
    shown = capsys.readouterr().out
    assert "2 passed" in shown
    whole = Path("tiny.safetensors").read_bytes()
    Path("short.safetensors").write_bytes(whole[:-4])
    for verb in (["check"], ["run", "--dry-run"]):
        for name, wrong in (
            ("small", "tokens.table=[10128, 64] is another model's; [68, 32]"),
            ("short", "file=short.safetensors is cut short at 'towers.biases.1', or says a wrong size of it; a safe"),
        ):
            assert main([verb[0], "hstu-serving", *verb[1:], *TINY, "--checkpoint", f"{name}.safetensors"]) == 2
            said = capsys.readouterr()
            assert said.err.startswith(f"checkpoint: {wrong}")
            assert said.err.count("\n") == 1
            assert said.out == ""


def test_what_a_launch_counts_is_words_and_numbers():
    assert counters("mine", {"requests": 8, "hit_tokens": 0.5}) == {"requests": 8.0, "hit_tokens": 0.5}
    for wrong in (
        [1],
        {"requests": "8"},
        {"requests": True},
        {"a\nb": 1},
        {1: 1},
        {"x": float("nan")},
        {"x": float("inf")},
        {"x" * 65: 1},
    ):
        with pytest.raises(UsageError, match=r"mine: counters") as refused:
            counters("mine", wrong)
        assert "\n" not in str(refused.value)
