"""Pauses of a server: garbage collections skip old objects and are timed, long launches are reported."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest

from attnbench.loadtest import pauses
from attnbench.loadtest.ledger import Flown, Ledger
from attnbench.loadtest.pauses import Collections, old_objects_left_alone


def test_a_collection_under_load_passes_over_what_is_there_already() -> None:
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    try:
        with old_objects_left_alone() as outer:
            assert gc.get_freeze_count() > 10_000
            assert gc.isenabled()
            with old_objects_left_alone():
                pass
            assert gc.get_freeze_count() > 10_000
            assert outer in gc.callbacks
        assert gc.get_freeze_count() == 0
        assert not any(isinstance(one, Collections) for one in gc.callbacks)
    finally:
        if frozen:
            gc.freeze()


def test_the_longest_collection_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([1.0, 1.002, 2.0, 2.105, 3.0, 3.001])
    monkeypatch.setattr(pauses.time, "perf_counter", lambda: next(ticks))
    collections = Collections()
    for phase in ("start", "stop") * 3:
        collections(phase, {})
    assert collections.longest_ms == pytest.approx(105.0)


def ledger_of(*host_ms: float) -> Ledger:
    return Ledger(batches=[Flown(1, 1, one, None) for one in host_ms])


def test_a_launch_far_longer_than_others_is_said() -> None:
    assert pauses.pauses(ledger_of(5.0, 5.5, 105.0, 6.0), 0.25, {}) == (
        "one launch took the host 105 ms, half of them no more than 5.75 ms; the longest garbage collection took 0.25 ms",
    )
    for usual in ((), (5.0, 5.5, 24.0), (0.1, 0.1, 9.0), (100.0, 105.0)):
        assert pauses.pauses(ledger_of(*usual), 0.0, {}) == ()


def test_kernels_first_used_under_load_are_said() -> None:
    knobs = pytest.importorskip("triton").knobs
    heard: list[str] = []

    def earlier(*, src: SimpleNamespace, **others: object) -> None:
        heard.append(src.name)

    with knobs.compilation.scope():
        knobs.compilation.listener = earlier
        with pauses.first_uses() as found:
            for name, us in (("norm", 2_000), ("attention", 3_300_000), ("norm", 1_000)):
                knobs.compilation.listener(
                    src=SimpleNamespace(name=name),
                    metadata={},
                    metadata_group={},
                    times=SimpleNamespace(total=us),
                    cache_hit=False,
                )
        assert knobs.compilation.listener is earlier
    assert heard == ["norm", "attention", "norm"]
    assert pauses.pauses(ledger_of(5.0), 0.0, found) == (
        "kernels compiled or loaded during the load, not in its warm-up: attention (3.3e+03 ms), norm (3 ms)",
    )
    assert pauses.pauses(ledger_of(5.0), 0.0, {}) == ()
