"""From the space to the result on a simulated H200: compiled in advance, checked, raced, stopped and resumed."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from tunable import COUNT, FAILS
from tunable_timer import BEST, true_ms

from attnbench.errors import RunFileError
from attnbench.record import Environment, Run, Settings
from attnbench.stats.race_data import Rules
from attnbench.suites.user_backends import known_backends
from attnbench.sweep.run import Execution
from attnbench.tune import ahead
from attnbench.tune.race_file import RaceFile, read, write
from attnbench.tune.run import Progress, Tuning
from attnbench.tune.space import space
from attnbench.tune.table import rows, to_csv
from attnbench.workloads.base import load_workload

FILE = str(Path(__file__).parents[1] / "fakes" / "tunable.py")
SETTINGS = Settings(device="cuda:0", timeout=600.0)
SHAPE = {"batch": 1, "seqlen": 15, "nheads": 1, "headdim": 8, "causal": True, "dtype": "fp32"}


@pytest.fixture
def executing(card):
    run = Run(
        id="0badcafe", suite="tune", command="attnbench tune tunable", started="2026-11-20T12:34:56Z", settings=SETTINGS
    )
    with Execution(run, files=[FILE]) as execution:
        yield execution


def begun(environment, patterns=()):
    case = load_workload("attention").case(SHAPE)
    return RaceFile(
        key={},
        backend="tunable",
        workload="attention",
        case=case.to_dict(),
        case_id=case.id,
        started="2026-11-20T12:34:56Z",
        environment=environment,
        settings=SETTINGS,
        configs=space(known_backends([FILE])["tunable"], case, patterns, "attnbench tune"),
        rules=dataclasses.asdict(Rules()),
    )


def test_what_needs_no_card_is_compiled_before_it_is_tried(executing, log, monkeypatch):
    asked: list[Any] = []

    class Compiled:
        def __init__(self, groups, device, files, **given):
            asked.append((groups, str(device), files, given))

        def __enter__(self):
            return self

        def __exit__(self, *how):
            asked.append("over")

        def wait_for(self, group, tell):
            tell("compiling 9 kernels, 4 done")
            asked.append(Path(os.environ["ATTNBENCH_TEST_LOG"]).read_text())

    monkeypatch.setattr(ahead, "CompiledAhead", Compiled)
    monkeypatch.setattr(ahead, "groups_ahead", lambda groups, files: list(groups))
    kept, news = begun(executing.environment(), ("c0", "c1")), []
    tuning = Tuning(
        kept=kept, path=None, execution=executing, files=(FILE,), jobs=1, compilers=5, on_progress=news.append
    )
    tuning._compile()
    ((group,), device, files, given), before, over = asked
    assert (group.backends, device, files) == (tuple(kept.configs), "cuda:0", (FILE,))
    assert given == {"jobs": 5, "sampled": False}
    assert (before, over) == ("", "over"), "nobody was tried yet"
    assert Progress("compile", 0, len(kept.configs), "compiling 9 kernels, 4 done") in news
    assert set(tuning.kept.compiled) == set(kept.configs)


def test_a_space_is_compiled_ahead_checked_raced_and_every_fault_is_a_record(executing, log, tmp_path):
    path, news = tmp_path / "tuning" / "race.json", []
    tuning = Tuning(
        kept=begun(executing.environment()),
        path=path,
        execution=executing,
        files=(FILE,),
        jobs=2,
        on_progress=news.append,
    )
    kept = tuning.carry_out()
    outcome = kept.outcome()
    assert outcome.pick == f"tunable[{BEST}]"
    assert kept.environment.gpu == "NVIDIA H200"
    assert (kept.timer, kept.l2) == ("simulated", "cold")

    found = {name.partition("[")[2].rstrip("]"): failure for name, failure in kept.failures.items()}
    assert {name: (one.status, one.step) for name, one in found.items()} == {
        "c30": ("failed", "compile"),
        "c31": ("failed", "compile"),
        "c32": ("crashed", "compile"),
        "c33": ("incorrect", "check"),
        "c34": ("oom", "check"),
    }, "what had no room beside others is tried again alone"
    assert "out of resource: shared memory" in found["c30"].reason
    assert found["c32"].reason.startswith("killed by SIGSEGV during first call")
    assert found["c33"].reason.startswith("out: wrong values")

    assert len(kept.compiled) == COUNT + 1 - 4, "the wrong one compiles"
    assert len(kept.checked) == len(outcome.standings) == COUNT + 1 - len(FAILS)
    for one in outcome.standings:
        assert one.ratio == pytest.approx(true_ms(one.name), rel=0.02)
    assert kept.seconds.compile > 0
    assert kept.seconds.check > 0
    assert kept.seconds.race >= kept.seconds.sampling > 0
    assert news[0].step == "compile"
    assert {"compile", "check", "stage 1", "final"} <= {one.step for one in news}
    assert all(0 <= one.done <= one.total for one in news)
    assert read(path) == kept
    assert read(path).outcome() == outcome, "the file is the answer"

    sessions = log.read_text().split()
    assert sessions.count("c30") == 2, "what does not compile is asked once more, alone, and never again"
    assert sessions.count("c3") >= 3

    table = rows(kept, outcome)
    assert len(table) == COUNT + 1
    text = to_csv(table).splitlines()
    assert text[0] == (
        "backend,config,case,seqlen,ended,stage,ratio_to_pick,ci_low,ci_high,median_ms,tflops,"
        "relative_performance,samples,reason,index,tile.m,tile.n"
    )
    assert text[1].startswith(f"tunable,{BEST},{kept.case_id},15,picked,")
    assert text[1].endswith(",17,64,32")
    assert table[0]["tflops"] == pytest.approx(kept.flops / table[0]["median_ms"] / 1e9)
    default = next(row for row in table if row["config"] == "default")
    assert default["ratio_to_pick"] == pytest.approx(1.3, rel=0.02)
    assert {row["config"]: row["ended"] for row in table[-5:]} == {
        "c30": "failed",
        "c31": "failed",
        "c32": "crashed",
        "c33": "incorrect",
        "c34": "oom",
    }


def test_references_are_sampled_with_the_pick_and_have_rows(executing, log, tmp_path):
    names = ("tunable[c20]", "no-such-library")
    tuning = Tuning(
        kept=begun(executing.environment(), patterns=["c1", "c17", "c4"]),
        path=tmp_path / "race.json",
        execution=executing,
        files=(FILE,),
        references=names[:1],
    )
    kept = tuning.carry_out()
    races = len(kept.heats)
    other = kept.references["tunable[c20]"]
    assert other.ratio == pytest.approx(true_ms("tunable[c20]") / true_ms(kept.outcome().pick), rel=0.02)
    assert other.ci_low <= other.ratio <= other.ci_high

    again = Tuning(kept=kept, path=tmp_path / "race.json", execution=executing, files=(FILE,), references=names)
    kept = again.carry_out()
    assert len(kept.heats) == races, "nothing is raced anew"
    assert kept.references["tunable[c20]"] == other
    assert kept.references["no-such-library"].ratio is None
    assert "no-such-library" in kept.references["no-such-library"].reason
    assert read(tmp_path / "race.json") == kept

    table = {(row["backend"], row["config"]): row for row in rows(kept, kept.outcome())}
    reference = table["tunable[c20]", "default"]
    assert (reference["ended"], reference["relative_performance"]) == ("reference", pytest.approx(100.0))
    pick = table["tunable", kept.outcome().pick.partition("[")[2][:-1]]
    assert pick["relative_performance"] == pytest.approx(100 * other.ratio)
    assert table["no-such-library", "default"]["relative_performance"] is None


def test_a_race_that_was_stopped_goes_on_where_it_stopped(executing, log, tmp_path):
    path = tmp_path / "race.json"
    patterns = [f"c{index}" for index in range(8, 28)]

    def stop_in(step):
        def tell(news):
            if news.step == step and news.done == 1:
                raise KeyboardInterrupt

        return tell

    tuning = Tuning(
        kept=begun(executing.environment(), patterns=patterns),
        path=path,
        execution=executing,
        files=(FILE,),
        on_progress=stop_in("stage 1"),
    )
    with pytest.raises(KeyboardInterrupt):
        tuning.carry_out()
    stopped = read(path)
    assert len(stopped.heats) == 1
    assert stopped.outcome() is None
    assert len(stopped.checked) == 21
    before = log.read_text().split()

    ended = Tuning(kept=stopped, path=path, execution=executing, files=(FILE,)).carry_out()
    assert ended.heats[:1] == stopped.heats
    assert ended.outcome().pick == f"tunable[{BEST}]"
    after = log.read_text().split()[len(before) :]
    first = set(stopped.heats[0]) - {"tunable"}
    some_dropped = next(name for name in first if len([one for one in ended.heats[1:] if name in one]) == 0)
    assert some_dropped.partition("[")[2].rstrip("]") not in after, "neither checked nor raced once more"


def test_a_file_that_is_cut_short_or_strange_is_one_line(tmp_path):
    path = tmp_path / "race.json"
    assert read(path) is None
    write(begun(Environment(os="Linux", python="3.12")), path)
    text = path.read_text()
    for broken in (
        text[:100],
        "[]",
        "{}",
        text.replace('"schema": 1', '"schema": 99'),
        text.replace('"heats": []', '"heats": [{"tunable": {"0": -1.0}}]').replace(
            '"checked": []', '"checked": ["tunable"]'
        ),
    ):
        path.write_text(broken)
        with pytest.raises(RunFileError, match=r"^tuning: path=.*race\.json .*; ") as caught:
            read(path)
        assert "\n" not in str(caught.value)
