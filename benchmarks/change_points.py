"""How often a history that is looked at after every run raises an alarm, and how soon a step is found, simulated.

    python benchmarks/change_points.py --out benchmarks/results/change-points-simulated.json [--series N]

A quiet history has 111 runs that scatter by 1 % and is looked at from the twelfth on, a hundred times.  It alarms
where any look reports any change.  A step comes at run 50, and is found by the first look that reports a change
within three runs of it.  Every series has a seed made of its kind and number.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from attnbench.stats.change_points import FEWEST, change_points

LOOKS = 100
NOISE = 0.01
AT, AFTER = 50, 40
"""The run at which a step comes, and the runs after it that are looked at."""

STEPS = (0.05, 0.03)
NEAR = 3

Lots = np.random.Generator
Kind = Callable[[Lots, int], np.ndarray]


def normal(lots: Lots, count: int) -> np.ndarray:
    return lots.normal(0.0, NOISE, count)


def tails(degrees: int) -> Kind:
    """Student's t; its quartiles are those of a normal with 0.8 to 0.9 % around."""
    return lambda lots, count: 0.6 * NOISE * lots.standard_t(degrees, count)


def two_peaks(share: float) -> Kind:
    """Two states of a clock, apart by so much that the whole scatters by 1 %."""
    gap = NOISE / math.sqrt(share * (1.0 - share))
    return lambda lots, count: gap * (lots.random(count) < share) + lots.normal(0.0, 0.2 * NOISE, count)


def sticky_peaks(lots: Lots, count: int) -> np.ndarray:
    """Two states, each left after five runs on average."""
    return 2.0 * NOISE * (np.cumsum(lots.random(count) > 0.8) % 2) + lots.normal(0.0, 0.3 * NOISE, count)


def outliers(lots: Lots, count: int) -> np.ndarray:
    return normal(lots, count) + math.log(1.5) * (lots.random(count) < 0.05)


def drift(likeness: float, degrees: int | None = None) -> Kind:
    """An autoregression of first order that scatters by 1 %; its steps are normal or Student's t."""

    def series(lots: Lots, count: int) -> np.ndarray:
        size = NOISE * math.sqrt(1.0 - likeness**2)
        steps = (
            lots.normal(0.0, size, count)
            if degrees is None
            else (size * lots.standard_t(degrees, count) / math.sqrt(degrees / (degrees - 2)))
        )
        values, value = np.empty(count), float(lots.normal(0.0, NOISE))
        for index, step in enumerate(steps.tolist()):
            values[index] = value = likeness * value + step
        return values

    return series


KINDS: dict[str, Kind] = {
    "normal, 1 %": normal,
    "heavy tails (t, 3)": tails(3),
    "heavy tails (t, 2)": tails(2),
    "5 % outliers of +50 %": outliers,
    "two peaks, 50/50": two_peaks(0.5),
    "two peaks, 90/10": two_peaks(0.1),
    "drift, 0.5": drift(0.5),
    "drift, 0.7": drift(0.7),
    "drift, 0.8": drift(0.8),
    "drift, 0.9": drift(0.9),
    "drift, 0.9, heavy tails (t, 3)": drift(0.9, 3),
    "two peaks, sticky": sticky_peaks,
}


def found_at(logs: np.ndarray) -> list[int]:
    """Where the changes are."""
    return [change.index for change in change_points(np.exp(logs).tolist())]


def first_alarm(logs: np.ndarray, looks: int = LOOKS, every: int = 1) -> int | None:
    """The number of runs at the first look that reports a change."""
    return next((count for count in range(FEWEST, FEWEST + looks, every) if found_at(logs[:count])), None)


def delay(logs: np.ndarray, step: float, at: int = AT) -> int | None:
    """Runs of the new level when it is first reported, within `NEAR` runs of its place."""
    moved = logs.copy()
    moved[at:] += math.log1p(step)
    return next(
        (
            count - at
            for count in range(at + 1, len(logs) + 1)
            if any(abs(place - at) <= NEAR for place in found_at(moved[:count]))
        ),
        None,
    )


def kind(name: str, series: int) -> dict[str, Any]:
    """Alarms and delays of one kind of noise."""
    place, draw = list(KINDS).index(name), KINDS[name]
    alarms = [first_alarm(draw(np.random.default_rng([place, 0, one]), FEWEST + LOOKS - 1)) for one in range(series)]
    delays = {
        str(step): [delay(draw(np.random.default_rng([place, 1, one]), AT + AFTER), step) for one in range(series // 4)]
        for step in STEPS
    }
    return {"noise": name, "series": series, "alarms": [one for one in alarms if one is not None], "delays": delays}


def simulated(series: int, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Every kind."""
    rows = []
    for name in KINDS:
        rows.append(kind(name, series))
        say(f"{name}: {len(rows[-1]['alarms'])} of {series}")
    return {"looks": LOOKS, "fewest": FEWEST, "noise": NOISE, "at": AT, "after": AFTER, "kinds": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--series", type=int, default=400)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    found = simulated(args.series, lambda line: print(line, flush=True))
    args.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
