"""How often a diff of equal code raises an alarm, what it catches, and how long it takes.

    python benchmarks/diff.py --out benchmarks/results/diff-simulated.json [--grids N]
    python benchmarks/diff.py --card --out benchmarks/results/diff-h200.json [--grids N] [--minutes M]

Simulated: two runs of one grid, 12 cases x 5 backends (unless the setting says otherwise), 60 samples a row.
All backends of a process share a slow drift of 5 % and, from round to round, one of 0.5 %.  Two runs of the
same code differ, whole runs and each row in each process, by up to 1 % (each is off by up to 0.5 %, uniformly).
The noise of a sample has a standard deviation of 1 %; one backend in five has two peaks 5 % apart instead, and
one sample in fifty is half as long again.  In the settings on a power-limited card the clock of a run lies
anywhere in 1600-1800 MHz and moves within it; kernels answer to it with exponents from 0.4 to 1.
Then each row of each process is off by draws that are not alike (`UNEVEN`), with yardsticks beside the rows and
without, of one backend, with all rows slower, or the machine, or one row; and all rows of a backend in a process are
off by one draw.  Seeds are the names of the settings.

--card measures real pairs: a small grid over and over on the GPU, each time in a fresh process, first in bursts, then
sustained on shapes that take the card to its power limit.  Each run is diffed with the next of its kind, and each
three with the next three.  22 runs, about 11 s each with the start of their process; nothing but torch, triton,
numpy and rich is needed.  Without a GPU it does the same on the CPU, which tests the benchmark, not the card.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from attnbench.machine.devices import resolve
from attnbench.record import Environment, Memory, Record, Run, Settings, Status, Time, Yardstick, to_dict
from attnbench.store.runfile import new_id, now, write
from attnbench.suites.load import load_suite
from attnbench.suites.plan import Request, build
from attnbench.verdict.diff import diff

DRIFT, ROUND, OFFSET, PEAKS, NOISE = 0.05, 0.005, 0.005, 0.05, 0.01
EXPONENTS = (1.0, 0.95, 0.4, 0.9, 1.0)
YARDSTICKS = {"matmul": (0.03, 1.0), "copy": (0.05, 0.1)}
"""Milliseconds of the yardsticks, and the exponent of the clock in their times."""
CARD = Environment(os="Linux", python="3.12", torch="2.11", triton="3.6", gpu="simulated", sm_max_mhz=1980)


@dataclasses.dataclass(frozen=True)
class Setting:
    """One kind of simulated grid."""

    name: str
    cases: int = 12
    backends: int = 5
    replicates: int = 1
    files: int = 1
    changed: int = 1
    "backends whose source is another in B, the last of each case"
    power_limited: bool = False
    samples: int = 60
    offset: float = OFFSET
    luck: str = "uniform"
    "what each row of each process is off by: see `_luck`"
    yardsticks: bool = False
    slower: str = "changed"
    "what takes longer in B: changed backends, one row of them, all rows (of unchanged source), the machine"
    alike: float = 0.0
    "standard deviation of what all rows of a backend are off by in one process, together"


SETTINGS = (
    Setting("one process a side"),
    Setting("one process, everything unchanged", changed=0),
    Setting("one process, one reference", backends=2),
    Setting("one process, no reference", backends=1),
    Setting("one process, no offsets", offset=0.0),
    Setting("one process, offsets of 2 %", offset=0.01),
    Setting("one process, power-limited", power_limited=True),
    Setting("3 replicates a side", replicates=3),
    Setting("3 replicates, one reference", replicates=3, backends=2),
    Setting("3 replicates, no reference", replicates=3, backends=1),
    Setting("3 replicates, offsets of 2 %", replicates=3, offset=0.01),
    Setting("3 files a side", files=3),
    Setting("3 replicates, power-limited", replicates=3, power_limited=True),
    Setting("2 replicates, 4 rows", replicates=2, cases=2, backends=2),
)

UNEVEN = {
    "normal .3 %": "offsets N(0, .3 %)",
    "normal 1 %": "offsets N(0, 1 %)",
    "t3 .4 %": "offsets t3 × .4 %",
    "outliers": "5 % of rows +3 %",
}
"""Distributions of what a row of a process is off by, and what they are called."""
SIDES = {1: "one process", 3: "3 replicates"}

EVERY_DISTRIBUTION = tuple(
    Setting(f"{SIDES[count]}, {words}", replicates=count, luck=luck, yardsticks=yardsticks)
    for count in SIDES
    for luck, words in UNEVEN.items()
    for yardsticks in (False, True)
)
ONE_BACKEND = tuple(
    Setting(f"{SIDES[count]}, one backend, {words}", replicates=count, backends=1, luck=luck, yardsticks=True)
    for count in SIDES
    for luck, words in UNEVEN.items()
)
THROUGHOUT = tuple(
    Setting(
        f"{SIDES[count]}, {words}, {UNEVEN[luck]}",
        replicates=count,
        changed=0,
        luck=luck,
        yardsticks=True,
        slower=slower,
    )
    for count in SIDES
    for slower, words in (("all", "all rows"), ("machine", "the machine"))
    for luck in ("normal .3 %", "normal 1 %")
)
ALIKE, NOT_PROMISED = (
    tuple(
        Setting(
            f"{SIDES[count]}, backends N(0, {100 * alike:.1g} %) each",
            replicates=count,
            luck="normal .3 %",
            yardsticks=True,
            alike=alike,
        )
        for count, alike in chosen
    )
    for chosen in (((1, 0.003), (3, 0.003)), ((1, 0.005), (3, 0.005), (3, 0.01)))
)
"""All rows of a backend off by one draw in each process: those that raise few alarms, and those that raise more."""
ONE_ROW = tuple(
    Setting(f"{SIDES[count]}, one row, {words}", replicates=count, luck=luck, yardsticks=True, slower="one row")
    for count in SIDES
    for luck, words in UNEVEN.items()
)


def simulate(setting: Setting, change: float, lots: random.Random) -> tuple[list[Run], list[Run]]:
    """Runs of both sides; in B what the setting says takes `change` longer."""
    truth = [[math.log(lots.uniform(0.02, 2.0)) for _ in range(setting.backends)] for _ in range(setting.cases)]
    return tuple(
        [_run(setting, truth, math.log1p(change) if side else 0.0, side, lots) for _ in range(setting.files)]
        for side in (0, 1)
    )


def _run(setting: Setting, truth: list[list[float]], change: float, side: int, lots: random.Random) -> Run:
    dice = np.random.default_rng(lots.getrandbits(64))
    records, rounds = [], np.arange(setting.samples)
    machine = lots.uniform(-setting.offset, setting.offset) + (change if setting.slower == "machine" else 0.0)
    clock = math.log(lots.uniform(1600.0, 1800.0)) if setting.power_limited else None
    apart = [
        [lots.gauss(0.0, setting.alike) if setting.alike else 0.0 for _ in range(setting.backends)]
        for _ in range(setting.replicates)
    ]
    for replicate, case in itertools.product(range(setting.replicates), range(setting.cases)):
        start, pace = lots.uniform(0.0, 6.3), lots.uniform(2.0, 6.0) / setting.samples
        drift = DRIFT / 2.0 * np.sin(start + pace * rounds) + dice.normal(0.0, ROUND, setting.samples)
        group = _Group(setting, machine, clock, drift, lots, dice)
        beside = {}
        for name, (ms, exponent) in YARDSTICKS.items() if setting.yardsticks else ():
            samples, clocks = group.samples(math.log(ms), 0, exponent)
            beside[name] = Yardstick(
                flops=1, bytes=1, samples_ms=tuple(samples), rounds=tuple(rounds.tolist()), sm_mhz=tuple(clocks or ())
            )
        for backend in range(setting.backends):
            changed = backend >= setting.backends - setting.changed
            level = truth[case][backend] + apart[replicate][backend]
            level += change if _is_slower(setting, case, changed) else 0.0
            samples, clocks = group.samples(level, backend, EXPONENTS[backend % len(EXPONENTS)])
            records.append(_record(case, backend, replicate, f"{side}" if changed else "same", samples, clocks, beside))
    return Run(
        id=f"{lots.getrandbits(32):08x}",
        suite="simulated",
        command="",
        started="2026-11-20T12:00:00Z",
        settings=Settings(device="cuda"),
        environments=(CARD,),
        records=tuple(records),
    )


@dataclasses.dataclass
class _Group:
    """What all rows of a case in one process share."""

    setting: Setting
    machine: float
    clock: float | None
    drift: np.ndarray
    lots: random.Random
    dice: np.random.Generator

    def samples(self, level: float, number: int, exponent: float) -> tuple[list[float], list[float] | None]:
        """Samples of a row in ms and their clocks; `number` says what noise it has."""
        count, clocks = self.setting.samples, None
        shared = self.drift
        if self.clock is not None:
            clocks = self.clock + self.drift + self.dice.normal(0.0, 0.004, count)
            shared = -exponent * (clocks - math.log(1700.0))
        own = level + self.machine + _luck(self.setting, self.lots)
        samples = np.exp(own + shared + _noise(number, count, self.dice)).round(7).tolist()
        return samples, None if clocks is None else np.exp(clocks).tolist()


def _is_slower(setting: Setting, case: int, changed: bool) -> bool:
    return {"changed": changed, "one row": changed and case == 0, "all": True, "machine": False}[setting.slower]


def _luck(setting: Setting, lots: random.Random) -> float:
    """What one row of one process is off by."""
    if setting.luck == "uniform":
        return lots.uniform(-setting.offset, setting.offset)
    if setting.luck == "outliers":
        return math.log(1.03) if lots.random() < 0.05 else 0.0
    normal = lots.gauss(0.0, 1.0)
    if setting.luck == "t3 .4 %":
        return 0.004 * normal / math.sqrt(sum(lots.gauss(0.0, 1.0) ** 2 for _ in range(3)) / 3.0)
    return {"normal .3 %": 0.003, "normal 1 %": 0.01}[setting.luck] * normal


def _noise(backend: int, samples: int, dice: np.random.Generator) -> np.ndarray:
    if backend % 5 == 2:
        noise = dice.normal(0.0, NOISE / 5, samples) + PEAKS * (dice.random(samples) < 0.3)
    else:
        noise = dice.normal(0.0, NOISE, samples)
    return np.where(dice.random(samples) < 0.02, math.log(1.5), noise)


def _record(
    case: int,
    backend: int,
    replicate: int,
    source: str,
    samples: list[float],
    clocks: list[float] | None,
    beside: dict[str, Yardstick],
) -> Record:
    middle = sorted(samples)[len(samples) // 2]
    taken = Time(
        timer="cupti",
        l2="cold",
        regime="burst",
        stopped_by="iterations",
        num_samples=len(samples),
        median_ms=middle,
        mean_ms=middle,
        min_ms=min(samples),
        max_ms=max(samples),
        p95_ms=middle,
        p99_ms=middle,
        samples_ms=tuple(samples),
        rounds=tuple(range(len(samples))),
        sm_mhz=tuple(clocks or ()),
    )
    name = f"c{case}" if not replicate else f"c{case}#{replicate}"
    return Record(
        workload="attention",
        case={"case": case},
        case_id=f"c{case}",
        group=name,
        backend=f"b{backend}",
        version="1",
        source_hash=source,
        environment=0,
        replicate=replicate,
        status=Status.PASSED,
        time=taken,
        yardsticks=beside,
        memory=Memory(peak_allocated_mb=1.0),
    )


def _is_true(cause: str, setting: Setting, change: float) -> bool:
    """Whether all rows of B did take longer, and not by another cause; runs on a power-limited card do differ."""
    by_code = change != 0.0 and (setting.slower == "all" or (setting.slower == "changed" and setting.backends == 1))
    by_machine = setting.power_limited or (change != 0.0 and setting.slower == "machine")
    return {"code": by_code, "machine": by_machine, "unknown": by_code or by_machine}[cause]


def alarms(setting: Setting, grids: int, change: float = 0.0, seed: int = 0) -> dict[str, object]:
    """Counts over simulated grids: those with an alarm, and verdicts of the changed and the other rows.

    An alarm is a row called changed that is not, or all rows together: by the code where that is the same, by
    more than the machine of two runs of the setting differs.
    """
    raised, changed, others, causes, smallest = 0, Counter(), Counter(), Counter(), []
    for grid in range(grids):
        found = diff(*simulate(setting, change, random.Random(f"{seed} {setting.name} {change} {grid}")))
        causes[found.shift.cause if found.shift else "none"] += 1
        false = found.shift is not None and found.shift.shown and not _is_true(found.shift.cause, setting, change)
        for one in found.changes:
            is_changed = change != 0.0 and _is_slower(
                setting, int(one.a.case_id[1:]), one.a.source_hash != one.b.source_hash
            )
            (changed if is_changed else others)[one.verdict] += 1
            false |= not is_changed and one.verdict in ("slower", "faster")
            if one.smallest is not None:
                smallest.append(one.smallest)
        raised += false
    smallest.sort()
    return {
        "setting": dataclasses.asdict(setting),
        "change": change,
        "seed": seed,
        "grids": grids,
        "grids_with_alarm": raised,
        "changed": dict(changed),
        "unchanged": dict(others),
        "causes": dict(causes),
        "smallest": smallest[len(smallest) // 2] if smallest else None,
    }


# ── how long it takes ──────────────────────────────────────────────────────────────────────────────


def speed(repeats: int = 5) -> dict[str, object]:
    """Seconds of `attnbench diff` on two runs of 2,000 records with 100 samples each, start to end."""
    large = Setting("2,000 records", cases=400, samples=100, yardsticks=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, (run,) in zip(("a.json", "b.json"), simulate(large, 0.03, random.Random(0)), strict=True):
            write(run, Path(folder, name))
        size = Path(folder, "a.json").stat().st_size
        wall, cpu = [], []
        for _ in range(repeats):
            begun, used = time.perf_counter(), os.times()
            subprocess.run(
                [sys.executable, "-m", "attnbench", "diff", "a.json", "b.json", "--exit-zero"],
                cwd=folder,
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            wall.append(time.perf_counter() - begun)
            after = os.times()
            cpu.append(after.children_user + after.children_system - used.children_user - used.children_system)
    return {
        "records": 2000,
        "samples": 100,
        "megabytes": size / 1e6,
        "wall_s": wall,
        "cpu_s": cpu,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "nice": os.nice(0),
    }


# ── real grids ─────────────────────────────────────────────────────────────────────────────────────

BACKENDS = {"cuda": ("sdpa-flash", "sdpa-cudnn", "sdpa-efficient", "sdpa-math"), "cpu": ("sdpa-flash", "sdpa-math")}
BURST = {"batch": (4,), "seqlen": (512, 4096), "nheads": (16,), "headdim": (64, 128), "causal": (False,)}
SUSTAINED = {"batch": (4,), "seqlen": (4096,), "nheads": (16,), "headdim": (64, 128), "causal": (False, True)}
ON_CPU = {"batch": (1,), "seqlen": (64, 128), "nheads": (2,), "headdim": (64,), "causal": (False,)}


def card(grids: int, minutes: float) -> dict[str, object]:
    """Diffs of equal code measured again and again; ends early, with fewer grids, when its time is spent."""
    from attnbench.sweep.run import execute

    device = resolve("auto")
    kind, ends = device.kind, time.monotonic() + 60.0 * minutes
    found: dict[str, list[dict[str, object]]] = {}
    environment = None
    for share, (regime, axes) in enumerate((("burst", BURST), ("sustained", SUSTAINED)), start=1):
        runs: list[Run] = []
        until = time.monotonic() + (ends - time.monotonic()) / (3 - share)
        while len(runs) <= grids // 2 and time.monotonic() < until:
            settings = {"regime": regime, "max_seconds": 0.4} if kind == "cuda" else {"max_seconds": 0.2}
            request = Request(
                suite=load_suite("quick", kind),
                device=str(device),
                backends=BACKENDS[kind],
                baseline="sdpa-flash",
                axes=axes if kind == "cuda" else ON_CPU,
                settings=settings | {"check": False},
            )
            runs.append(execute(build(request, run_id=new_id(), command="benchmarks/diff.py --card", started=now())))
            environment = runs[-1].environments[0]
            print(f"{regime} {len(runs)}: {sum(r.status is Status.PASSED for r in runs[-1].records)} rows", flush=True)
        found[regime] = [graded([a], [b]) for a, b in itertools.pairwise(runs)]
        found[f"{regime}, 3 processes a side"] = [
            graded(runs[at : at + 3], runs[at + 3 : at + 6]) for at in range(len(runs) - 5)
        ]
    return {
        "environment": to_dict(environment),
        "grids": found,
        "with_alarm": {name: sum(bool(one["alarms"]) for one in diffs) for name, diffs in found.items()},
    }


def graded(a: Sequence[Run], b: Sequence[Run]) -> dict[str, object]:
    """What a diff of equal code said: all that is not "same" is a mistake or a doubt."""
    rows = diff(a, b).changes
    return {
        "verdicts": dict(Counter(one.verdict for one in rows)),
        "alarms": [[one.a.case_id, one.a.backend, one.change] for one in rows if one.verdict in ("slower", "faster")],
        "largest_change": max(abs(one.change or 0.0) for one in rows),
        "largest_time_change": max(abs(one.time_change) for one in rows),
        "largest_clock_change": max((abs(one.clock_change or 0.0) for one in rows), default=None),
        "smallest_seen": sorted(one.smallest for one in rows if one.smallest is not None),
    }


HEADLINES = ("one process a side", "3 replicates a side")
"""Settings that are simulated in full; the others by a share of that."""

FEW = (*THROUGHOUT, *ONE_ROW)
"""Settings whose equal code is that of others."""


def counts_of(setting: Setting, grids: int) -> tuple[int, int]:
    """Grids of equal code and of a change."""
    if setting.name in HEADLINES:
        equal, changed = grids, grids // 5
    elif setting in SETTINGS:
        equal, changed = grids // 5, grids // 10
    else:
        share = 1 if setting.replicates > 1 else 2
        equal, changed = share * grids // (12 if setting in FEW else 4), share * grids // 12
    return max(1, equal), max(1, changed)


def graded_twice(setting: Setting, grids: int) -> list[dict[str, object]]:
    """`alarms` for equal code, and for 3 % in what the setting says."""
    equal, changed = counts_of(setting, grids)
    return [alarms(setting, equal), alarms(setting, changed, 0.03)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grids", type=int, default=None, help="simulated: 480 (a share of it for most); real: 20")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes that simulate")
    parser.add_argument("--card", action="store_true", help="real grids on this machine's GPU")
    parser.add_argument("--speed", action="store_true", help="only how long a diff takes, into a result that is there")
    parser.add_argument("--minutes", type=float, default=5.0, help="of --card")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.card:
        result = card(args.grids or 20, args.minutes)
    elif args.speed:
        result = json.loads(args.out.read_text()) | {"speed": speed()}
    else:
        result = {
            "speed": speed(),
            "settings": {
                "drift": DRIFT,
                "round": ROUND,
                "offset": OFFSET,
                "peaks": PEAKS,
                "noise": NOISE,
                "luck": UNEVEN,
            },
        }
        settings = (*SETTINGS, *EVERY_DISTRIBUTION, *ONE_BACKEND, *ALIKE, *FEW)
        with ProcessPoolExecutor(args.jobs) as pool:
            for key, chosen in (("grids", settings), ("not_promised", NOT_PROMISED)):
                result[key] = []
                for found in pool.map(graded_twice, chosen, itertools.repeat(args.grids or 480)):
                    result[key] += found
                    print(json.dumps(found), flush=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
