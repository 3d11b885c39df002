"""The notes beside the table of a finished race."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from attnbench.record import PlannedGroup
from attnbench.stats.race_data import Outcome, Standing
from attnbench.tune.race_file import RaceFile
from attnbench.worker.outcome import repro


def conditions(kept: RaceFile) -> str:
    """Return GPU, versions, timer and cache."""
    environment = kept.environment
    words = [
        environment.gpu or environment.cpu,
        environment.torch and f"torch {environment.torch}",
        environment.triton and f"triton {environment.triton}",
        kept.timer and f"timer {kept.timer}",
        kept.l2 and f"L2 {kept.l2}",
        None if kept.settings.device == "cpu" else kept.settings.regime,
    ]
    return " · ".join(word for word in words if word)


def remarks(kept: RaceFile, outcome: Outcome, *, fresh: bool, asked: str) -> dict[str, str]:
    """Return labelled lines: what was raced, where the time went, and whether the result was stored before.

    Args:
        kept: the race.
        outcome: outcome of the race.
        fresh: whether it was measured now.
        asked: the requested case; another one of the bucket may have been measured.
    """
    seconds = kept.seconds
    raced = f"{len(outcome.standings)} of {len(kept.configs)} configurations, {len(kept.heats)} heats"
    ahead = (
        f"{len(kept.compiled)} compiled ahead in {seconds.compile:.1f} s"
        if seconds.compile
        else ("nothing compiled ahead")
    )
    share = outcome.sampled_s / outcome.exhaustive_s if outcome.exhaustive_s else 0.0
    time = (
        f"{ahead}, checked in {seconds.check:.1f} s, raced in {seconds.race:.1f} s; launches sampled "
        f"{_figure(outcome.sampled_s)} s, {_figure(100 * share)} % of sampling each as often as a finalist"
    )
    found = {"raced": raced, "time": time}
    if not fresh:
        measured = "" if asked == kept.case_id else f" for {kept.case_id}, of the same bucket of shapes"
        found["kept"] = f"measured {kept.started}{measured}; --again measures anew"
    return found


def rerun(kept: RaceFile, outcome: Outcome, files: Sequence[str]) -> str:
    """Return the command line that measures the pick beside the default."""
    group = PlannedGroup(
        group=kept.case_id,
        workload=kept.workload,
        case=kept.case,
        case_id=kept.case_id,
        backends=(kept.backend, outcome.pick),
    )
    return repro(group, dataclasses.replace(kept.settings, baseline=kept.backend), outcome.pick, files)


def standings(kept: RaceFile) -> list[Standing]:
    """Return the references that have a time beside the pick's, for the table of the race."""
    return [
        Standing(
            name=name,
            ratio=one.ratio,
            ci_low=one.ci_low,
            ci_high=one.ci_high,
            median_ms=one.median_ms,
            rounds=one.rounds,
            stage=0,
            ended="reference",
        )
        for name, one in kept.references.items()
        if one.ratio is not None and one.median_ms is not None
    ]


def no_times(kept: RaceFile) -> list[tuple[str, str, str]]:
    """Return status, name and reason of the references without a time."""
    return [("reference", name, one.reason or "") for name, one in kept.references.items() if one.ratio is None]


def _figure(value: float) -> str:
    """Return a number with two significant digits, but all digits before the point."""
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"
