"""How often the tuner's pick is within 1 % of the best, and for which share of the sampling.

    python benchmarks/tuner.py --out benchmarks/results/tuner-simulated.json [--trials N]
    python benchmarks/tuner.py --card --out benchmarks/results/tuner-h200.json [--trials N] [--backend NAME]

Simulated: 151 configurations of about 0.9 ms and slower, of which at most one in ten lies within 1 % of the best, on a
card as an H200 is when it is at its power limit: all times share a drift of 10 % that forgets itself within 0.3 s, and
each sample has noise of its own.  *Exhaustive* is every configuration sampled as often as a finalist.  Beside the race
stands the usual tuner: each configuration in its turn, as many samples of each as the race took on average, and the
lowest median is picked.

--card does it on the GPU, for one shape: everyone in heats of 16 with as many samples as a finalist has (the truth as
well as it can be had), then races with other seeds.  Configurations are compiled and checked once for all of them.
Without a GPU it does the same on the CPU, which tests the benchmark, not the card.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from attnbench.record import Settings, to_dict
from attnbench.stats.race_data import CLOSE, Rules
from attnbench.stats.racing import Race

CONFIGURATIONS = 151
"""The default among them."""

FASTEST_MS = 0.9
DRIFT, MEMORY_S = 0.10, 0.3
GAP_S = 3e-5
"""Between two samples: the flush of the L2."""

NEAR = 0.1
"""Share of the space that may lie within 1 % of the best, the best itself included."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """A landscape, the noise of a sample, and what the timer resolves."""

    name: str
    landscape: str
    noise: str
    size: float
    "standard deviation; of two peaks their distance, of outliers what they add"
    scale: float = 1.0
    "of all times"
    tick_ms: float = 0.0
    offset: float = 0.0
    "standard deviation of what a configuration's time is off by in a heat: memory and code are laid out anew"


SETTINGS = (
    Setting("smooth, noise 0.2 %", "smooth", "normal", 0.002),
    Setting("smooth, noise 1 %", "smooth", "normal", 0.01),
    Setting("smooth, noise 3 %", "smooth", "normal", 0.03),
    Setting("smooth, two peaks 5 % apart", "smooth", "peaks", 0.05),
    Setting("smooth, heavy tails (t, 3)", "smooth", "tails", 0.01),
    Setting("smooth, 5 % outliers of +50 %", "smooth", "outliers", 0.5),
    Setting("one clear, noise 1 %", "clear", "normal", 0.01),
    Setting("one clear, two peaks 5 % apart", "clear", "peaks", 0.05),
    Setting("many near, noise 0.2 %", "near", "normal", 0.002),
    Setting("many near, noise 1 %", "near", "normal", 0.01),
    Setting("many near, two peaks 5 % apart", "near", "peaks", 0.05),
    Setting("many near, 5 % outliers of +50 %", "near", "outliers", 0.5),
    Setting("many near, 9 µs, tick 32 ns, noise 1 %", "near", "normal", 0.01, scale=0.01, tick_ms=3.2e-5),
    Setting("smooth, uneven noise", "smooth", "uneven", 0.01),
    Setting("best 2 % ahead, uneven noise", "ahead", "uneven", 0.01),
    Setting("best 2 % ahead and the noisiest", "ahead", "noisy best", 0.003),
    Setting("many near, noise 0.3 %, offsets 0.3 %", "near", "normal", 0.003, offset=0.003),
    Setting("many near, noise 1 %, offsets 1 %", "near", "normal", 0.01, offset=0.01),
    Setting("best 2 % ahead, uneven noise, offsets 0.3 %", "ahead", "uneven", 0.01, offset=0.003),
)


def landscape(kind: str, lots: np.random.Generator) -> np.ndarray:
    """True times in ms; draws until no more than a tenth lie within 1 % of the best."""
    count = CONFIGURATIONS
    while True:
        if kind == "ahead":  # the best leads by 2 %, with a third of all close behind it
            third = count // 3
            behind = 0.06 + lots.exponential(0.3, count - 1 - third)
            logs = np.concatenate([[0.0], lots.uniform(0.02, 0.06, third), behind])
        elif kind == "clear":  # the best leads by 3 %
            logs = np.concatenate([[0.0], 0.03 + lots.exponential(0.35, count - 1)])
        elif kind == "near":  # a tenth within 1 %, a fifth more within 4 %
            tenth, fifth = int(NEAR * count) - 1, count // 5
            logs = np.concatenate(
                [
                    [0.0],
                    lots.uniform(0.0, CLOSE, tenth),
                    lots.uniform(CLOSE, 0.04, fifth),
                    0.04 + lots.exponential(0.3, count - 1 - tenth - fifth),
                ]
            )
        else:  # as tiles, warps and stages leave it: few good, many middling, some bad
            logs = 1.2 * lots.beta(1.2, 2.5, count)
            logs -= logs.min()
        if np.mean(logs <= math.log1p(CLOSE)) <= NEAR:
            return lots.permutation(FASTEST_MS * np.exp(logs))


class Card:
    """Times of launches one after another on a card whose clock wanders."""

    def __init__(self, setting: Setting, seed: int, true_ms: np.ndarray | None = None) -> None:
        self.setting, self.lots, self.level = setting, np.random.default_rng([seed, 1]), 0.0
        self.sizes: dict[float, float] = {}
        "standard deviation of a launch's noise by its true time, where launches differ in it"
        if setting.noise in ("uneven", "noisy best") and true_ms is not None:
            drawn = setting.size * np.exp(self.lots.standard_normal(len(true_ms)))
            if setting.noise == "noisy best":  # a quarter at 5 %, the best among them
                drawn = np.where(self.lots.random(len(true_ms)) < 0.25, 0.05, setting.size)
                drawn[true_ms.argmin()] = 0.05
            self.sizes = dict(zip(true_ms.tolist(), drawn.tolist(), strict=True))

    def rounds(self, true_ms: np.ndarray, rounds: int) -> np.ndarray:
        """Times (rounds × launches) in ms of one heat, each round in an order of its own."""
        sizes = np.array([self.sizes.get(ms, 0.0) for ms in true_ms.tolist()])
        offsets = self.setting.offset * self.lots.standard_normal(len(true_ms)) if self.setting.offset else 0.0
        true_ms = true_ms * np.exp(offsets)
        orders = [self.lots.permutation(len(true_ms)) for _ in range(rounds)]
        found = np.empty((rounds, len(true_ms)))
        turns = np.concatenate(orders)
        drawn = self.in_turn(true_ms[turns], sizes[turns])
        for index, order in enumerate(orders):
            found[index, order] = drawn[index * len(order) : (index + 1) * len(order)]
        return found

    def in_turn(self, true_ms: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Times in ms of launches in this order; `sizes` is of their noise where launches differ in it."""
        kept = np.exp(-(true_ms * 1e-3 + GAP_S) / MEMORY_S)
        pushes = DRIFT * np.sqrt(1.0 - kept**2) * self.lots.standard_normal(len(true_ms))
        drift = np.empty(len(true_ms))
        for index, (keep, push) in enumerate(zip(kept.tolist(), pushes.tolist(), strict=True)):
            self.level = drift[index] = keep * self.level + push
        ms = true_ms * np.exp(drift + self._noise(sizes))
        tick = self.setting.tick_ms
        # A start falls anywhere between two ticks: a rounded duration is right on average.
        return np.maximum(tick, np.floor(ms / tick + self.lots.random(len(ms))) * tick) if tick else ms

    def _noise(self, sizes: np.ndarray) -> np.ndarray:
        lots, size, count = self.lots, self.setting.size, len(sizes)
        if self.sizes:
            return sizes * lots.standard_normal(count)
        if self.setting.noise == "peaks":
            return lots.normal(0.0, 0.002, count) + size * (lots.random(count) < 0.5)
        if self.setting.noise == "tails":
            return size * lots.standard_t(3, count)
        if self.setting.noise == "outliers":
            return lots.normal(0.0, 0.005, count) + math.log1p(size) * (lots.random(count) < 0.05)
        return lots.normal(0.0, size, count)


@dataclasses.dataclass(frozen=True)
class Trial:
    """How one race ended, held against the truth."""

    loss: float
    "of the pick against the best: 0.01 is 1 % slower"
    share: float
    "of the exhaustive sampling time"
    stated_loss: float
    stated_most: float
    "loss that it says is not exceeded with 95 % chance"
    stated_close: float
    best_ended: str
    "picked, final, dropped or cut"
    usual_loss: float
    "of the usual tuner's pick"


def trial(setting: Setting, seed: int, rules: Rules = Rules()) -> Trial:  # noqa: B008 (frozen)
    """One race on a new landscape."""
    true_ms = setting.scale * landscape(setting.landscape, np.random.default_rng([seed, 0]))
    names = [f"config{index}" for index in range(len(true_ms))]
    card, spent_ms = Card(setting, seed, true_ms), 0.0
    race = Race(names, rules, seed=seed, tick_ms=setting.tick_ms)
    places = {name: index for index, name in enumerate(names)}
    while (heat := race.heat) is not None:
        drawn = card.rounds(true_ms[[places[name] for name in heat.names]], rules.warmup + heat.rounds)
        spent_ms += float(drawn.sum())
        race.take(
            {name: dict(enumerate(map(float, drawn[rules.warmup :, column]))) for column, name in enumerate(heat.names)}
        )
    outcome = race.outcome()
    exhaustive_ms = float(true_ms.sum()) * (rules.warmup + rules.final_rounds)
    each = max(1, round(spent_ms / float(true_ms.sum())))
    sizes = np.array([card.sizes.get(ms, 0.0) for ms in true_ms.tolist()])
    drawn = card.in_turn(np.repeat(true_ms, each), np.repeat(sizes, each))
    usual = np.median(drawn.reshape(len(true_ms), each), axis=1)
    best = names[int(true_ms.argmin())]
    return Trial(
        loss=float(true_ms[places[outcome.pick]] / true_ms.min() - 1.0),
        share=spent_ms / exhaustive_ms,
        stated_loss=outcome.regret,
        stated_most=outcome.most,
        stated_close=outcome.close,
        best_ended=next(one for one in outcome.standings if one.name == best).ended,
        usual_loss=float(true_ms[usual.argmin()] / true_ms.min() - 1.0),
    )


def simulated(trials: int, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Every setting, `trials` races each."""
    rows = []
    for setting in SETTINGS:
        found = [trial(setting, seed) for seed in range(trials)]
        rows.append({"setting": dataclasses.asdict(setting), **summary(found)})
        say(json.dumps(rows[-1]))
    return {
        "configurations": CONFIGURATIONS,
        "near": NEAR,
        "drift": DRIFT,
        "memory_s": MEMORY_S,
        "rules": dataclasses.asdict(Rules()),
        "settings": rows,
    }


def summary(found: list[Trial]) -> dict[str, Any]:
    """What became of some trials."""
    return {
        "trials": len(found),
        "within": sum(one.loss <= CLOSE for one in found),
        "mean_loss": statistics.fmean(one.loss for one in found),
        "worst_loss": max(one.loss for one in found),
        "mean_stated_loss": statistics.fmean(one.stated_loss for one in found),
        "mean_stated_most": statistics.fmean(one.stated_most for one in found),
        "covered": sum(one.loss <= one.stated_most + 1e-9 for one in found),
        "mean_stated_close": statistics.fmean(one.stated_close for one in found),
        "mean_share": statistics.fmean(one.share for one in found),
        "largest_share": max(one.share for one in found),
        "best_dropped": sum(one.best_ended == "dropped" for one in found),
        "best_cut": sum(one.best_ended == "cut" for one in found),
        "usual_within": sum(one.usual_loss <= CLOSE for one in found),
        "usual_worst_loss": max(one.usual_loss for one in found),
    }


# ── on the card ────────────────────────────────────────────────────────────────────────────────────


def on_card(
    backend_name: str,
    shape: dict[str, Any],
    trials: int,
    files: tuple[str, ...] = (),
    device: str = "auto",
    patterns: tuple[str, ...] = (),
    rules: Rules = Rules(),  # noqa: B008 (frozen)
) -> dict[str, Any]:
    """The truth by sampling everyone as a finalist, then races with other seeds."""
    from attnbench.machine.devices import resolve
    from attnbench.record import Run
    from attnbench.store.runfile import new_id, now
    from attnbench.suites.user_backends import known_backends
    from attnbench.sweep.run import Execution
    from attnbench.tune.ahead import default_jobs
    from attnbench.tune.race_file import RaceFile
    from attnbench.tune.run import Tuning
    from attnbench.tune.space import find_backend, space
    from attnbench.workloads.base import load_workload

    backend = find_backend(backend_name, known_backends(files), "benchmarks/tuner.py")
    workload = load_workload(backend.workload)
    case, where = workload.case(shape), resolve(device)
    settings = Settings(device=str(where))
    run = Run(id=new_id(), suite="tuner", command="benchmarks/tuner.py", started=now(), settings=settings)
    with Execution(run, files=files) as execution:
        kept = RaceFile(
            key={},
            backend=backend.name,
            workload=workload.name,
            case=case.to_dict(),
            case_id=case.id,
            started=now(),
            environment=execution.environment(),
            settings=settings,
            configs=space(backend, case, patterns, "benchmarks/tuner.py"),
            rules=dataclasses.asdict(rules),
        )
        tuning = Tuning(
            kept=kept,
            path=None,
            execution=execution,
            files=files,
            jobs=0 if not where.on_gpu or not backend.compiles else default_jobs(),
        )
        tuning.prepare()
        prepared = tuning.kept
        print(f"{len(prepared.checked)} of {len(prepared.configs)} run and are right; {prepared.seconds}", flush=True)
        ratios, exhaustive = _exhaustive(tuning, rules)
        near = sum(ratio <= 1 + CLOSE for ratio in ratios.values())
        print(f"exhaustive: {exhaustive}; {near} within 1 %", flush=True)
        rows = []
        for seed in range(trials):
            tuning.kept = prepared.with_(settings=dataclasses.replace(settings, seed=seed))
            began = time.perf_counter()
            outcome = tuning.carry_out().outcome()
            assert outcome is not None
            rows.append(
                {
                    "seed": seed,
                    "pick": outcome.pick,
                    "loss": ratios[outcome.pick] - 1.0,
                    "sampled_s": outcome.sampled_s,
                    "share": outcome.sampled_s / exhaustive["sampled_s"],
                    "stated_loss": outcome.regret,
                    "stated_close": outcome.close,
                    "heats": len(tuning.kept.heats),
                    "wall_s": time.perf_counter() - began,
                    "sampling_wall_s": tuning.kept.seconds.sampling,
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    return {
        "environment": to_dict(prepared.environment),
        "case_id": case.id,
        "backend": backend.name,
        "configurations": len(prepared.configs),
        "right": len(prepared.checked),
        "near": near,
        "failures": {name: to_dict(failure) for name, failure in prepared.failures.items()},
        "seconds": to_dict(prepared.seconds),
        "exhaustive": exhaustive,
        "ratios": ratios,
        "rules": dataclasses.asdict(rules),
        "trials": rows,
        "within": sum(row["loss"] <= CLOSE for row in rows),
    }


def _exhaustive(tuning: Any, rules: Rules) -> tuple[dict[str, float], dict[str, float]]:
    """Everyone's time over the best's, by as many samples as a finalist has, and what that took.

    The second pass compares everyone with the fastest of the first, twice as closely.
    """
    names = list(tuning.kept.checked)
    anchor, ratios, sampled_s, began = names[0], {}, 0.0, time.perf_counter()
    for lap in range(2):
        others = [name for name in names if name != anchor]
        random.Random(lap).shuffle(others)
        logs, lap_s = {anchor: 0.0}, 0.0
        for first in range(0, len(others), rules.heat - 1):
            part = [anchor, *others[first : first + rules.heat - 1]]
            settings = dataclasses.replace(
                tuning.kept.settings,
                check=False,
                iterations=rules.final_rounds,
                warmup=rules.warmup,
                baseline=anchor,
                seed=lap,
            )
            records = tuning.execution.one(tuning.group(f"exhaustive {lap} {first}", part), settings)
            for record in records:
                if record.time is None or record.speedup is None:
                    continue
                logs[record.backend] = -math.log(record.speedup.ratio)
                lap_s += record.time.median_ms * (record.time.num_samples + rules.warmup) / 1e3
        best = min(logs.values())
        ratios = {name: math.exp(log - best) for name, log in logs.items()}
        anchor, sampled_s = min(logs, key=logs.__getitem__), lap_s
    return ratios, {"sampled_s": sampled_s, "wall_s": (time.perf_counter() - began) / 2}


SHAPE = {
    "attention": {"batch": 4, "seqlen": 4096, "nheads": 16, "headdim": 128, "causal": True, "dtype": "bf16"},
    "hstu": {"batch": 32, "seqlen": 4096, "nheads": 4, "attn_dim": 128, "linear_dim": 128, "dtype": "bf16"},
}
"""Head dim 128, 4096 tokens, causal."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--card", action="store_true", help="real races on this machine's GPU")
    parser.add_argument("--backend", default="flash-triton", help="of --card")
    parser.add_argument("--trials", type=int, default=None, help="simulated: 400 a setting; real: 20")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.card:
        from attnbench.suites.user_backends import known_backends

        workload = known_backends()[args.backend].workload if args.backend in known_backends() else "attention"
        result = on_card(args.backend, SHAPE[workload], args.trials or 20)
    else:
        result = simulated(args.trials or 400)
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
