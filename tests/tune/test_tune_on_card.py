"""On a GPU: kernels compiled in advance are not compiled again, and a small space has its result."""

from __future__ import annotations

import dataclasses

import pytest

from attnbench.backends.registry import all_backends
from attnbench.record import Run, Settings
from attnbench.stats.race_data import Rules
from attnbench.sweep.run import Execution
from attnbench.tune.race_file import RaceFile, read
from attnbench.tune.run import Tuning
from attnbench.tune.space import space
from attnbench.workloads.base import load_workload

SHAPE = {"batch": 4, "seqlen": 512, "nheads": 4, "attn_dim": 128, "linear_dim": 128, "dtype": "bf16"}


@pytest.mark.gpu
def test_a_space_is_compiled_by_several_and_measured_by_one(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    settings = Settings(device="cuda:0")
    run = Run(
        id="0badcafe",
        suite="tune",
        command="attnbench tune hstu-triton",
        started="2026-11-20T12:34:56Z",
        settings=settings,
    )
    case = load_workload("hstu").case(SHAPE)
    every = space(all_backends()["hstu-triton"], case, (), "test")
    with Execution(run) as execution:
        kept = RaceFile(
            key={},
            backend="hstu-triton",
            workload="hstu",
            case=case.to_dict(),
            case_id=case.id,
            started=run.started,
            environment=execution.environment(),
            settings=settings,
            configs=dict(list(every.items())[:12]),
            rules=dataclasses.asdict(Rules(heat=6, finalists=4)),
        )
        path = tmp_path / "race.json"
        done = Tuning(kept=kept, path=path, execution=execution, jobs=4).carry_out()
    outcome = done.outcome()
    assert len(done.compiled) >= 4, done.failures
    assert set(done.checked) <= set(done.compiled)
    assert done.seconds.check < done.seconds.compile, "the cache on disk was warm"
    assert outcome.pick in done.checked
    assert outcome.standings[0].median_ms > 0
    assert read(path) == done
