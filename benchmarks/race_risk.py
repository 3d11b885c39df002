"""How often a race drops the best, and what else it drops, by how its stages share the risk.

    python benchmarks/race_risk.py --out benchmarks/results/race-risk-simulated.json [--races N]

*Halves*, as races do it: from the last of `Rules.stages` on, each stage has half of what is left of the risk.  *Equal*,
as they did before: each stage has risk / stages, however many there are, so that all of them may have more than the
risk.  Both run over the same times, with normal noise of 1 %: all alike, the hardest for the risk, and two landscapes
of `tuner.py`, for the power.  Every race has a seed made of its number.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from tuner import CONFIGURATIONS, FASTEST_MS, landscape

from attnbench.stats.race_data import CLOSE, Rules
from attnbench.stats.racing import Race

NOISE = 0.01
ALIKE = "alike"
"""Everyone is the best: of how many were dropped the share is the chance that the best is."""
LANDSCAPES = (ALIKE, "ahead", "near")
RISKS = (0.05, 0.2)
STAGES = (1, 4)


class Equal(Race):
    """Every stage has the same share."""

    def _risk(self) -> float:
        return self.rules.risk / self.rules.stages


SHARES = {"halves": Race, "equal": Equal}


def race(kind: type[Race], true_ms: np.ndarray, rules: Rules, seed: int) -> dict[str, Any]:
    """One race: how the best ended, how many were dropped, and what the pick loses."""
    lots = np.random.default_rng([seed, 1])
    names = [f"config{index}" for index in range(len(true_ms))]
    running, stages = kind(names, rules, seed=seed), set()
    while (heat := running.heat) is not None:
        if not heat.final:
            stages.add(heat.stage)
        at = [int(name.removeprefix("config")) for name in heat.names]
        times = true_ms[at] * np.exp(NOISE * lots.standard_normal((heat.rounds, len(at))))
        running.take({name: dict(enumerate(times[:, column].tolist())) for column, name in enumerate(heat.names)})
    outcome = running.outcome()
    ended = {one.name: one.ended for one in outcome.standings}
    return {
        "stages": len(stages),
        "best": ended[names[int(true_ms.argmin())]],
        "dropped": sum(how == "dropped" for how in ended.values()),
        "loss": float(true_ms[names.index(outcome.pick)] / true_ms.min() - 1.0),
        "share": outcome.sampled_s / outcome.exhaustive_s,
    }


def races(share: str, rules: Rules, kind: str, count: int) -> dict[str, Any]:
    """Many races of one landscape."""
    found = []
    for seed in range(count):
        alike = np.full(CONFIGURATIONS, FASTEST_MS)
        true_ms = alike if kind == ALIKE else landscape(kind, np.random.default_rng([seed, 0]))
        found.append(race(SHARES[share], true_ms, rules, seed))
    return {
        "shares": share,
        "risk": rules.risk,
        "stages": rules.stages,
        "landscape": kind,
        "races": count,
        "best_dropped": statistics.fmean(
            one["dropped"] / CONFIGURATIONS if kind == ALIKE else one["best"] == "dropped" for one in found
        ),
        "most_stages": max(one["stages"] for one in found),
        "mean_dropped": statistics.fmean(one["dropped"] for one in found),
        "within": statistics.fmean(one["loss"] <= CLOSE for one in found),
        "mean_share": statistics.fmean(one["share"] for one in found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--races", type=int, default=600)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows = []
    for kind, risk, stages, share in itertools.product(LANDSCAPES, RISKS, STAGES, SHARES):
        rows.append(races(share, Rules(risk=risk, stages=stages), kind, args.races))
        print(json.dumps(rows[-1]), flush=True)
    args.out.write_text(json.dumps({"noise": NOISE, "rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
