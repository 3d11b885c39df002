"""The speed that HSTU serving is to reach, and what the committed results have: rows of the table of bars.

A bar is of one number; where several results have it (page sizes, rates, cases), the worst decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_tables import load
from serving_tables import GRAPH, host_hit_rows

from attnbench.presentation.serving import end_to_end, of_the_device
from attnbench.record import Record
from attnbench.store import load_file

HEAD = ("what", "of", "wanted", "measured", "met", "aim", "aim met", "file")
SWEEP, STEPS, HOST_HITS = "hstu-serving-h200", "hstu-serving-steps-h200", "hstu-serving-host-hits-h200"
PAGED, STACK, OFFLOAD = "hstu-paged-h200", "serving-stack-h200", "serving-offload-h200"
LOADED = "load-pool-40-auto-h200"
OFFLINE, SERVER, GENERATOR = "load-dlrm-v3-offline-h200", "load-dlrm-v3-848-h200", "load-generator-h200"
SHARE_OF_OFFLINE = 0.85
OF_ONE_COPY = re.compile(r"(\d+) % of one copy")
MOST_ASKED = 2000


@dataclass(frozen=True)
class Bar:
    """What is wanted of the numbers that `found` reads in a result."""

    what: str
    of: str
    file: str
    found: Callable[[Path], Iterator[float]]
    least: float
    aim: float | None = None
    unit: str = ""
    at_most: bool = True

    def cells(self, folder: Path) -> list[str]:
        """The row, in the order of `HEAD`."""
        path = next((one for ending in (".json", ".jsonl") if (one := folder / (self.file + ending)).is_file()), None)
        aim = "" if self.aim is None else self._limit(self.aim)
        if path is None:
            return [self.what, self.of, self._limit(self.least), "not measured", "", aim, "", ""]
        numbers = [*self.found(path)]
        if not numbers:
            raise ValueError(f"{path.name} has nothing about: {self.what}, {self.of}")
        worst = (max if self.at_most else min)(numbers)
        return [
            self.what,
            self.of,
            self._limit(self.least),
            f"{worst:.3g}{self.unit}",
            self._met(worst, self.least),
            aim,
            "" if self.aim is None else self._met(worst, self.aim),
            f"`{path.name}`",
        ]

    def _limit(self, value: float) -> str:
        return f"{'at most' if self.at_most else 'at least'} {value:g}{self.unit}"

    def _met(self, worst: float, limit: float) -> str:
        return "reached" if (worst <= limit if self.at_most else worst >= limit) else "**missed**"


def _steps(path: Path, **case: Any) -> Iterator[Record]:
    """Records of steps as graphs over our paged kernel, with all cached tokens on the device."""
    wanted = {"cache": "gpu-hit", **case}
    for record in load(path).records:
        name = (
            record.backend if record.config is None or "[" in record.backend else f"{record.backend}[{record.config}]"
        )
        if name == GRAPH and all(record.case[key] == value for key, value in wanted.items()):
            yield record


def _shape(batch: int, candidates: int) -> dict[str, int]:
    return {"batch": batch, "num_candidates": candidates, "cached": 4096}


def _on_the_device(batch: int, candidates: int) -> Callable[[Path], Iterator[float]]:
    return lambda path: (
        time.median_ms
        for record in _steps(path, **_shape(batch, candidates))
        if (time := of_the_device(record)) and time.median_ms
    )


def _over_no_cache(batch: int, candidates: int) -> Callable[[Path], Iterator[float]]:
    return lambda path: (
        record.speedup.ratio
        for record in _steps(path, **_shape(batch, candidates))
        if record.speedup and record.speedup.ratio
    )


def _phase(name: str) -> Callable[[Path], Iterator[float]]:
    return lambda path: (
        time.median_ms for record in _steps(path, batch=8) if (time := record.phases.get(name)) and time.median_ms
    )


def _end_to_end(path: Path) -> Iterator[float]:
    return (time.median_ms for one in _steps(path) if (time := end_to_end(one)) and time.median_ms)


def _tail(path: Path) -> Iterator[float]:
    """p99 over p50."""
    for record in _steps(path):
        time = end_to_end(record)
        if time is not None and time.p99_ms and time.median_ms:
            yield time.p99_ms / time.median_ms


def _paged(row: str, kernel: str, over: str | None = None, what: str = "us") -> Callable[[Path], Iterator[float]]:
    """Numbers of the kernels whose name matches: time (µs) or rate, or speed over another kernel.

    `over` may name the kernel itself as {}.
    """

    def found(path: Path) -> Iterator[float]:
        for item in json.loads(path.read_text("utf-8"))["rows"]:
            for name, us in item["us"].items():
                if re.fullmatch(row, item["row"]) and re.fullmatch(kernel, name):
                    yield item["us"][over.format(name)] / us if over else item[what][name]

    return found


def _auto(path: Path) -> Iterator[float]:
    return (float(over.removesuffix("×")) for row in host_hit_rows(load(path)) if (over := row[5]))


def _of_one_copy(path: Path) -> Iterator[float]:
    loaded = path.stem.startswith("load-")
    notes = load_file.read(path).notes if loaded else {note for one in load(path).records for note in one.notes}
    return (float(said[1]) for note in notes if (said := OF_ONE_COPY.search(note)))


def _offload(path: Path) -> Iterator[float]:
    from serving_offload import cost_of

    return (100 * cost_of(row["samples_ms"])[0] for row in json.loads(path.read_text("utf-8"))["rows"])


def _answered(path: Path) -> Iterator[float]:
    return (point.achieved_rate for point in load_file.read(path).points if point.achieved_rate)


def _server(path: Path) -> Iterator[float]:
    """p99 at the rates that are high enough beside the offline one."""
    offline = max(_answered(path.with_name(OFFLINE + path.suffix)))
    for point in load_file.read(path).points:
        if point.latency and point.latency.p99 and (point.asked_rate or 0.0) >= SHARE_OF_OFFLINE * offline:
            yield point.latency.p99


def _generated(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [one for one in found if one["asked"] <= MOST_ASKED]


def _stack(path: Path) -> Iterator[float]:
    yield json.loads(path.read_text("utf-8"))["ms"]


STEP, GPU, SPEED = "`bench`, 4096 cached", "GPU time of a step", "speed of a step over no cache"
BARS = (
    Bar(GPU, f"{STEP}, 8 × 1024", SWEEP, _on_the_device(8, 1024), 6, 4.5, " ms"),
    Bar(GPU, f"{STEP}, 1 × 128", SWEEP, _on_the_device(1, 128), 0.5, 0.3, " ms"),
    Bar("end to end, p50", f"{STEP}, 1 × 128", STEPS, _end_to_end, 0.8, 0.5, " ms"),
    Bar("end to end, p99 over p50", f"{STEP}, 1 × 128, 1000 steps", STEPS, _tail, 1.5),
    Bar(SPEED, f"{STEP}, 8 × 1024", SWEEP, _over_no_cache(8, 1024), 2.5, 3, "×", at_most=False),
    Bar(SPEED, f"{STEP}, 1 × 128", SWEEP, _over_no_cache(1, 128), 5, 6, "×", at_most=False),
    Bar("lookup", "`bench`, 8 users", SWEEP, _phase("lookup"), 0.1, unit=" ms"),
    Bar("allocate", "`bench`, 8 users", SWEEP, _phase("allocate"), 0.2, unit=" ms"),
    Bar(
        "paged kernel over contiguous",
        "8 users, pages of 64 and 128",
        PAGED,
        _paged("8x.*", r"paged-(64|128)", "contiguous"),
        0.85,
        0.95,
        "×",
        at_most=False,
    ),
    Bar(
        "paged kernel",
        "8 × 1024, pages of 64 and 128",
        PAGED,
        _paged("8x1024-d256", r"paged-(64|128)", what="tflops"),
        450,
        600,
        " TFLOP/s",
        at_most=False,
    ),
    Bar(
        "random order of pages over sorted",
        "8 × 1024",
        PAGED,
        _paged("8x1024-d256", r"paged-\d+", "{}-sorted"),
        0.97,
        unit="×",
        at_most=False,
    ),
    Bar("split keys, a layer", "1 × 128", PAGED, _paged("1x128-.*", r"contiguous|paged-(64|128)"), 25, 15, " µs"),
    Bar("`auto` over the better of both", "host hits", HOST_HITS, _auto, 1.05, unit="×"),
    Bar("reload, of the rate of one copy", "host hits", HOST_HITS, _of_one_copy, 85, unit=" %", at_most=False),
    Bar("reload, of the rate of one copy", "under load", LOADED, _of_one_copy, 85, unit=" %", at_most=False),
    Bar("cost of offloading for concurrent steps", "`bench`", OFFLOAD, _offload, 5, unit=" %"),
    Bar("offline", "`dlrm-v3`", OFFLINE, _answered, 700, 1000, " requests/s", at_most=False),
    Bar(f"server, p99 at {SHARE_OF_OFFLINE:g} of that rate", "`dlrm-v3`", SERVER, _server, 80, unit=" ms"),
    Bar("layers alone", "`dlrm-v3`, 32 users", STACK, _stack, 7, unit=" ms"),
    Bar(
        "offered rate off the asked",
        "generators, up to 2000/s",
        GENERATOR,
        lambda path: (100 * abs(one["offered"] / one["asked"] - 1) for one in _generated(path)),
        1,
        unit=" %",
    ),
    Bar(
        "lateness, p99",
        "generators, up to 2000/s",
        GENERATOR,
        lambda path: (one["late_p99_ms"] for one in _generated(path)),
        1,
        unit=" ms",
    ),
)


def bar_rows(folder: Path) -> list[list[str]]:
    """A row a bar, the columns of `HEAD`."""
    return [bar.cells(folder) for bar in BARS]
