"""How often the interval of a median, and of a ratio at the stop, holds the truth, simulated.

    python benchmarks/intervals.py --out benchmarks/results/intervals-simulated.json [--streams N]

*Ticks*: a time of about 5 µs or 20 µs whose place on the timer's grid is drawn anew for each stream, read by a timer
that rounds to the nearest tick, down, or takes two stamps that are both rounded down.  *Stop*: two subjects that share
nothing, each under noise of its own, sampled until `StopRule` ends the group; the ratio is 1.  *Fixed*: the median of
a fixed number of samples whose neighbours resemble each other.  Every stream has a seed made of its setting and number.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from attnbench.stats.ratio import paired_ratio
from attnbench.stats.stopping import StopRule
from attnbench.stats.summary import median_interval

COUNTS = (10, 30, 100, 300)
LIMIT = 1000
"""Rounds after which a group ends whatever is known, as --max-seconds would end it."""

CLOCKS = ((5.0, 0.032), (20.0, 0.5))
"""Time and tick in µs: CUPTI on an H200, and a pair of CUDA events."""

NOISES = (
    "none",
    "normal 0.1 %",
    "normal 0.3 %",
    "normal 1 %",
    "normal 3 %",
    "lognormal 0.3 %",
    "two peaks 5 %, 55/45",
    "5 % outliers of +50 %",
)
ROUNDINGS = ("nearest", "down", "stamps")

STREAMS = (
    "normal",
    "heavy tails (t, 2)",
    "lognormal",
    "5 % outliers of +50 %",
    "correlated 0.5",
    "correlated 0.7",
    "correlated 0.9",
    "half correlated 0.9, half white",
)
SIZES = (0.002, 0.005, 0.01, 0.02)
"""Standard deviation of one subject's noise; of heavy tails and lognormal noise their scale."""

CORRELATIONS = (0.0, 0.5, 0.7, 0.9)


# ── streams ────────────────────────────────────────────────────────────────────────────────────────


def correlated(lots: np.random.Generator, strength: float, count: int) -> np.ndarray:
    """A stationary autoregression of first order, of variance 1."""
    steps = lots.standard_normal(count) * math.sqrt(1.0 - strength**2)
    value, found = float(lots.standard_normal()), []
    for step in steps.tolist():
        value = strength * value + step
        found.append(value)
    return np.array(found)


def noise(kind: str, size: float, lots: np.random.Generator, count: int) -> np.ndarray:
    """Logarithms around 0."""
    if kind.startswith("correlated"):
        return size * correlated(lots, float(kind.split()[-1]), count)
    if kind.startswith("half"):
        return size * math.sqrt(0.5) * (correlated(lots, 0.9, count) + lots.standard_normal(count))
    if kind.startswith("heavy"):
        return size * lots.standard_t(2, count)
    if kind == "lognormal":
        return size * (lots.lognormal(0.0, 1.0, count) - 1.0)
    if kind.startswith("5 %"):
        return size * lots.standard_normal(count) + math.log(1.5) * (lots.random(count) < 0.05)
    return size * lots.standard_normal(count)


def exact(kind: str, lots: np.random.Generator, count: int) -> tuple[np.ndarray, float]:
    """Times over their base, and their true median over it."""
    if kind == "none":
        return np.ones(count), 1.0
    if kind.startswith("two"):  # the 0.5 quantile is the 1/1.1 quantile of the lower peak
        lower = lots.random(count) < 0.55
        peak = 1.0 + 0.002 * lots.random(count)
        return np.where(lower, peak, peak + 0.05), 1.0 + 0.002 * 0.5 / 0.55
    if kind.startswith("5 %"):
        far = lots.random(count) < 0.05
        centre = statistics.NormalDist(1.0, 0.003).inv_cdf(0.5 / 0.95)
        return lots.normal(1.0, 0.003, count) + 0.5 * far, centre
    share = float(kind.split()[1]) / 100.0
    if kind.startswith("lognormal"):
        return 1.0 + share * lots.lognormal(0.0, 1.0, count), 1.0 + share
    return 1.0 + share * lots.standard_normal(count), 1.0


def read(times: np.ndarray, tick: float, rounding: str, lots: np.random.Generator) -> np.ndarray:
    """What a timer of this tick says of them."""
    if rounding == "nearest":
        return np.round(times / tick) * tick
    start = lots.random(len(times)) if rounding == "stamps" else 0.0
    return np.floor(start + times / tick) * tick


# ── simulations ────────────────────────────────────────────────────────────────────────────────────


def ticks(kind: str, clock: tuple[float, float], count: int, streams: int) -> dict[str, Any]:
    """Share of streams whose interval holds the true median: with the tick, and without, at the worst rounding."""
    micros, tick = clock
    found: dict[str, list[float]] = {"with": [], "without": [], "width": []}
    for place, rounding in enumerate(ROUNDINGS):
        held = bare = 0
        widths = []
        for stream in range(streams):
            lots = np.random.default_rng([NOISES.index(kind), CLOCKS.index(clock), place, count, stream])
            base = micros + tick * lots.random()
            times, middle = exact(kind, lots, count)
            samples = read(base * times, tick, rounding, lots).tolist()
            for step in (tick, 0.0):
                low, high = median_interval(samples, tick=step) or (math.nan, math.nan)
                holds = low <= base * middle <= high
                held, bare = held + (holds and step > 0.0), bare + (holds and step == 0.0)
                if step:
                    widths.append((high - low) / tick)
        found["with"].append(held / streams)
        found["without"].append(bare / streams)
        found["width"].append(statistics.fmean(widths))
    return {
        "noise": kind,
        "micros": micros,
        "tick": tick,
        "count": count,
        "with": found["with"],
        "without": found["without"],
        "ticks_wide": found["width"],
    }


def stopped(rule: StopRule, group: list[list[float]]) -> int:
    """Rounds at which the rule ends a group that has all its samples already."""
    rounds = 0
    while rounds < LIMIT:
        rounds = min(rule.next_look(rounds), LIMIT)
        if rule.decide([samples[:rounds] for samples in group], 0.0):
            return rounds
    return LIMIT


def stop(kind: str, size: float, streams: int) -> dict[str, Any]:
    """Ratios at the stop: how many intervals hold 1, and after how many rounds."""
    held, rounds = 0, []
    for stream in range(streams):
        lots = np.random.default_rng([STREAMS.index(kind), round(1e4 * size), stream])
        group = [np.exp(noise(kind, size, lots, LIMIT)).tolist() for _ in range(2)]
        rounds.append(stopped(StopRule(), group))
        first, second = (dict(enumerate(samples[: rounds[-1]])) for samples in group)
        found = paired_ratio(first, second)
        held += (found.ci_low or 0.0) <= 1.0 <= (found.ci_high or math.inf)
    return {
        "noise": kind,
        "size": size,
        "streams": streams,
        "held": held,
        "mean_rounds": statistics.fmean(rounds),
        "median_rounds": statistics.median(rounds),
        "at_limit": sum(one == LIMIT for one in rounds),
    }


def fixed(strength: float, count: int, streams: int) -> dict[str, Any]:
    """Medians of so many samples: how many intervals hold the truth, and their width over the exact pair's."""
    held = 0
    for stream in range(streams):
        lots = np.random.default_rng([round(10 * strength), count, stream])
        low, high = median_interval(correlated(lots, strength, count).tolist()) or (math.nan, math.nan)
        held += low <= 0.0 <= high
    return {"correlation": strength, "count": count, "streams": streams, "held": held}


def simulated(streams: int, say: Callable[[str], None] = print) -> dict[str, Any]:
    """All three, `streams` each; of fixed counts four times as many."""

    def told(row: dict[str, Any]) -> dict[str, Any]:
        say(json.dumps(row))
        return row

    return {
        "streams": streams,
        "limit": LIMIT,
        "rule": dataclasses.asdict(StopRule()),
        "ticks": [told(ticks(kind, clock, count, streams)) for clock in CLOCKS for kind in NOISES for count in COUNTS],
        "stop": [told(stop(kind, size, streams)) for kind in STREAMS for size in SIZES],
        "fixed": [told(fixed(strength, count, 4 * streams)) for strength in CORRELATIONS for count in COUNTS],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    found = simulated(args.streams, lambda line: print(line, flush=True))
    args.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
