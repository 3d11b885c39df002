"""The participants of a race, and the key of its result."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest

from attnbench.backends.base import Config
from attnbench.backends.registry import all_backends
from attnbench.errors import UsageError
from attnbench.record import Environment, Settings
from attnbench.stats.race_data import Outcome, Rules
from attnbench.tune.key import bucket, digest, key
from attnbench.tune.notes import conditions, remarks, rerun
from attnbench.tune.race_file import RaceFile, Seconds
from attnbench.tune.space import short_of, space, with_a_space
from attnbench.workloads.base import load_workload

SOURCE = Path(__file__).resolve().parents[2] / "src" / "attnbench"
HERE = Environment(
    os="Linux",
    python="3.12",
    torch="2.11",
    triton="3.6",
    gpu="NVIDIA H200",
    driver="580",
    power_limit_w=700.0,
    packages={"triton": "3.6"},
)


def make_key(**changed):
    case = load_workload("attention").case({"seqlen": 4096})
    values = {
        "backend": "b",
        "bucket": case,
        "environment": HERE,
        "source": "abc",
        "configs": ["x", "y"],
        "settings": Settings(),
        "rules": Rules(),
    }
    return digest(key(**(values | changed)))


def test_every_shipped_space_is_found_and_starts_with_the_default():
    known = all_backends()
    names = with_a_space(known)
    assert {"hstu-triton", "hstu-bsa-triton"} <= set(names)
    for name in names:
        backend = known[name]
        found = space(backend, load_workload(backend.workload).case({}), (), "test")
        selectors = list(found)
        assert selectors[0] == name
        assert len(selectors) == len(set(selectors)) > 1
        assert short_of(selectors[0]) == "default"
        assert all(f"{name}[{short_of(one)}]" == one for one in selectors[1:])


def test_patterns_keep_the_order_of_the_space_and_the_default():
    backend = all_backends()["hstu-bsa-triton"]
    case = load_workload("hstu").case({})
    every = list(space(backend, case, (), "test"))
    some = list(space(backend, case, ("s*", "passes"), "test"))
    assert some[0] == "hstu-bsa-triton"
    assert some == [one for one in every if one in some]
    assert all(short_of(one).startswith(("s", "passes")) for one in some[1:])


def test_a_short_form_may_be_one_that_the_backend_reads_without_listing_it(monkeypatch):
    backend = all_backends()["hstu-bsa-triton"]
    case = load_workload("hstu").case({})
    monkeypatch.setattr(type(backend), "config_of", lambda self, short, case: Config(f"{short}-read", {"a": 1}))
    assert list(space(backend, case, ("passes", "odd"), "test").items())[1:] == [
        ("hstu-bsa-triton[passes]", {"attend": None, "schedule": "passes"}),
        ("hstu-bsa-triton[odd-read]", {"a": 1}),
    ]
    with pytest.raises(UsageError, match=r"test: --configs=odd\* is not known; one of "):
        space(backend, case, ("odd*",), "test")


def test_a_wildcard_that_means_none_of_hundreds_is_answered_shortly():
    backend, case = all_backends()["flash-triton"], load_workload("attention").case({"headdim": 128, "dtype": "bf16"})
    said = (
        r"^test: --configs=\*-persistent1 means none of the \d{3} there are; see `attnbench list configs "
        r"flash-triton`, which takes the shape too; did you mean \S+-persistent\?$"
    )
    with pytest.raises(UsageError, match=said):
        space(backend, case, ("*-persistent1",), "test")


@pytest.mark.parametrize(
    ("values", "rounded"),
    [
        ({"batch": 3, "seqlen": 4000}, {"batch": 4, "seqlen": 4096, "seqlen_k": 4096}),
        ({"batch": 4, "seqlen": 4096}, {"batch": 4, "seqlen": 4096, "seqlen_k": 4096}),
        ({"batch": 1, "seqlen": 1, "seqlen_k": 9}, {"batch": 1, "seqlen": 1, "seqlen_k": 16}),
        ({"seqlen": 4097, "headdim": 96, "nheads": 12}, {"seqlen": 8192, "seqlen_k": 8192}),
    ],
)
def test_a_bucket_rounds_batch_and_lengths_up_and_nothing_else(values, rounded):
    workload = load_workload("attention")
    case = workload.case(values)
    found = bucket(workload, case).to_dict()
    assert found == case.to_dict() | rounded


def test_every_part_of_the_question_is_in_its_key():
    same = make_key()
    assert make_key(configs=["y", "x"]) == same, "in whatever order"
    others = [
        make_key(backend="c"),
        make_key(source="abd"),
        make_key(configs=["x"]),
        make_key(rules=Rules(heat=8)),
        make_key(bucket=load_workload("attention").case({"seqlen": 8192})),
        *(
            make_key(settings=dataclasses.replace(Settings(), **change))
            for change in (
                {"l2": "warm"},
                {"regime": "sustained"},
                {"timer": "events"},
                {"input": "zeros"},
                {"lock_clocks": "1500"},
            )
        ),
        *(
            make_key(environment=dataclasses.replace(HERE, **change))
            for change in (
                {"gpu": "NVIDIA H100"},
                {"driver": "570"},
                {"torch": "2.12"},
                {"triton": "3.7"},
                {"power_limit_w": 500.0},
                {"packages": {"triton": "3.6.1"}},
            )
        ),
    ]
    assert len({same, *others}) == 1 + len(others)
    assert make_key(settings=dataclasses.replace(Settings(), timeout=5.0)) == same, "patience changes no answer"


@pytest.mark.parametrize("workload", ["attention", "hstu"])
def test_the_line_that_measures_the_pick_again_names_both_and_the_shape(workload):
    case = load_workload(workload).case({"seqlen": 128})
    outcome = Outcome(pick="b[x]", standings=(), regret=0.0, most=0.0, close=1.0, sampled_s=0.0, exhaustive_s=0.0)
    kept = RaceFile(
        key={},
        backend="b",
        workload=workload,
        case=case.to_dict(),
        case_id=case.id,
        started="",
        environment=HERE,
        settings=Settings(device="cuda:0", l2="warm"),
        rules={},
        configs={},
    )
    words = shlex.split(rerun(kept, outcome, ["/somewhere/mine.py"]))
    assert words[:2] == ["attnbench", "compare"]
    assert words[words.index("--backends") + 1] == "b,b[x],mine.py"
    assert words[words.index("--l2") + 1] == "warm"
    assert [words[words.index("--seqlen") + 1], words[words.index("--device") + 1]] == ["128", "cuda:0"]
    assert ("--workload" in words) == (workload == "hstu")


def test_an_answer_from_another_shape_of_the_bucket_says_so():
    outcome = Outcome(pick="b", standings=(), regret=0.0, most=0.0, close=1.0, sampled_s=0.5, exhaustive_s=5.0)
    kept = RaceFile(
        key={},
        backend="b",
        workload="attention",
        case={},
        case_id="b4-s4096",
        started="2026-11-20T00:00:00Z",
        environment=HERE,
        settings=Settings(device="cuda:0"),
        rules={},
        configs={"b": {}},
        timer="cupti",
        l2="cold",
        compiled=("b",),
        seconds=Seconds(compile=3.0),
    )
    assert conditions(kept) == "NVIDIA H200 · torch 2.11 · triton 3.6 · timer cupti · L2 cold · burst"
    fresh = remarks(kept, outcome, fresh=True, asked="b4-s4000")
    assert set(fresh) == {"raced", "time"}
    assert fresh["time"] == (
        "1 compiled ahead in 3.0 s, checked in 0.0 s, raced in 0.0 s; launches sampled 0.5 s, "
        "10 % of sampling each as often as a finalist"
    )
    long = remarks(
        kept, dataclasses.replace(outcome, sampled_s=312.4, exhaustive_s=100.0), fresh=True, asked="b4-s4096"
    )
    assert long["time"].endswith("launches sampled 312 s, 312 % of sampling each as often as a finalist")
    old = remarks(kept, outcome, fresh=False, asked="b4-s4000")
    assert old["kept"] == (
        "measured 2026-11-20T00:00:00Z for b4-s4096, of the same bucket of shapes; --again measures anew"
    )
    assert "bucket" not in remarks(kept, outcome, fresh=False, asked="b4-s4096")["kept"]
