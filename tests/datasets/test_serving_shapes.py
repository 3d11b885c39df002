"""A small set of steps that covers a server's requests, and plans of the suites written from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attnbench import suites
from attnbench.cli import main
from attnbench.datasets.drawn import draw
from attnbench.datasets.history import History
from attnbench.datasets.serving_shapes import ATTENTION, STEPS, draw_shapes
from attnbench.models.hstu_ranking.config import config_of
from attnbench.suites.load import load_suite, suite_names

KUAIRAND = config_of("kuairand")


def history(lengths: list[int]) -> History:
    """A user with so many interactions in each interval."""
    times = np.concatenate([np.full(length, 100_000 * place) for place, length in enumerate(lengths)]).astype(np.int64)
    zeros = np.zeros(len(times), dtype=np.int64)
    return History(0, (1, 1, 1, 1, 1), zeros, times, zeros, zeros, zeros, zeros)


def test_cached_is_the_history_until_the_request_before_and_new_what_came_since() -> None:
    shapes, requests = draw_shapes([history([3, 1, 7])], KUAIRAND, count=3, interval_s=60, seed=0)
    assert requests == 3
    assert [(one.cached, one.new) for one in shapes] == [(0, 6 + 6), (6 + 6, 2), (6 + 8, 14)]
    long = history([4000, 90, 7])  # the last one is over what the model takes
    shapes, requests = draw_shapes([long], KUAIRAND, count=2, interval_s=60, seed=0)
    assert requests == 2
    assert shapes[-1].cached + shapes[-1].new <= KUAIRAND.history_tokens


def test_a_set_spans_all_requests_and_is_the_same_for_a_seed() -> None:
    shapes, requests = draw_shapes(draw(20, 0), KUAIRAND, count=5, interval_s=60, seed=1)
    cached = [one.cached for one in shapes]
    assert requests > 1000
    assert cached == sorted(cached)
    assert cached[0] < 2500
    assert cached[-1] > 5000
    assert shapes == draw_shapes(draw(20, 0), KUAIRAND, count=5, interval_s=60, seed=1)[0]
    assert shapes != draw_shapes(draw(20, 0), KUAIRAND, count=5, interval_s=60, seed=2)[0]


@pytest.mark.parametrize("model", ["kuairand", "bench"])
def test_the_suites_plan_on_both_kinds_of_device_and_state_their_source(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["data", "serving-shapes", "--users", "10", "--shapes", "3", "--model", model, "--to", str(tmp_path)]) == 0
    )
    assert "written: " in capsys.readouterr().out
    for name, workload in ((STEPS, "hstu-serving"), (ATTENTION, "hstu")):
        path = tmp_path / name
        assert "# Source: 10 users shaped as those of KuaiRand-1K, drawn by seed 0: 3 of" in path.read_text()
        on_card, on_cpu = load_suite(str(path), "cuda"), load_suite(str(path), "cpu")
        assert on_card.workload == on_cpu.workload == workload
        assert len(on_card.cases) == 3 * 2 * 2
        assert [case.values["batch"] for case in on_cpu.cases] == [1, 2], "--batch 1 selects a case on a CPU too"
        assert main(["run", str(path), "--dry-run", "--device", "cpu"]) == 0
    steps = [dict(case.values) for case in load_suite(str(tmp_path / STEPS), "cuda").cases]
    attention = [dict(case.values) for case in load_suite(str(tmp_path / ATTENTION), "cuda").cases]
    for step, part in zip(steps, attention, strict=True):
        assert part["seqlen"] == step["cached"] + step["new_tokens"] + step["num_candidates"]
        assert part["delta_q"] == step["new_tokens"] + step["num_candidates"]
        assert part["num_targets"] == str(step["num_candidates"])


def test_the_shipped_suites_are_what_the_command_writes_by_default(tmp_path: Path) -> None:
    assert main(["data", "serving-shapes", "--to", str(tmp_path)]) == 0
    for name in (STEPS, ATTENTION):
        assert (Path(str(suites.__file__)).parent / name).read_text("utf-8") == (tmp_path / name).read_text("utf-8")


def test_every_suite_of_the_two_workloads_takes_the_shapes_as_its_cases(capsys: pytest.CaptureFixture[str]) -> None:
    shapes = {"hstu": "serving-shapes-attention", "hstu-serving": "serving-shapes"}
    taken = []
    for name in suite_names():
        own = load_suite(name, "cpu")
        if (cases := shapes.get(own.workload)) is not None:
            assert main(["run", name, "--cases", cases, "--dry-run", "--device", "cpu"]) == 0
            shown = capsys.readouterr().out
            assert f"command: attnbench run {name} --cases {cases} --device cpu" in shown
            assert f"{len(load_suite(cases, 'cpu').cases)} groups" in shown
            taken.append(name)
    assert {"hstu-dense", "hstu-bsa", "hstu-bsa-long", "compare-hstu", "hstu-serving", "hstu-serving-tiers"} <= {*taken}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serving-shapes", "--shapes", "0"], "--shapes=0 cannot be used"),
        (["serving-shapes", "--users", "1", "--shapes", "1000"], "--shapes=1000 are more than the"),
        (["serving-shapes", "--model", "tiny"], "--model=tiny is not known; one of bench, kuairand"),
        (["serving-shapes", "--batch", "1,x"], "--batch=x cannot be used"),
        (["serving-shapes", "--num-candidates", "2000"], "--num-candidates=2000 cannot be used; 1 to 1024"),
        (["serving-shapes", "--source", "x", "--users", "2"], "--users=2 does not go with --source"),
        (["kuairand-1k", "--shapes", "3"], "--shapes=3 does not go with kuairand-1k; it goes with serving-shapes"),
    ],
)
def test_wrong_input_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())
