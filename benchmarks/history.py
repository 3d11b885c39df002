"""How fast a large history answers: 1,000 runs × 1,000 rows with samples, one row's trend with change points.

Fills a SQLite history (every run goes through the code that `attnbench history --add` uses, its lines
built beforehand), then asks for trends of several rows, each in a fresh connection: open, find the row,
read its points, look for changes.  `command` is the whole of `attnbench history ROW`, a process of its own.

    python benchmarks/history.py --out benchmarks/results/history.json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from attnbench.record import Environment, Record, Run, Settings, Status, Time, Work
from attnbench.store import runfile
from attnbench.store.derive import time_of
from attnbench.store.history.entry import entry_from
from attnbench.store.history.opening import open_history
from attnbench.store.history.place import Place
from attnbench.store.history.trends import find_row, trends
from attnbench.store.history.writing import add_entry

BACKENDS = ("sdpa-flash", "sdpa-cudnn", "flex", "eager", "sdpa-efficient")
NOISE, OWN_NOISE, SHIFT = 0.01, 0.004, 1.03
"""Between runs, between samples of one run, and what every third row gains in the middle."""

TEMPLATES = 20
"""Different sets of samples: a line is one of them scaled, so that filling takes minutes, not hours."""


def environment(number: int, runs: int) -> Environment:
    torch = "2.11.0" if number < runs // 2 else "2.12.0"
    return Environment(
        os="Linux 6.8",
        python="3.12.3",
        torch=torch,
        triton="3.6.0",
        cuda="13.0",
        driver="580.95",
        gpu="NVIDIA H200",
        gpu_uuid="GPU-0",
        sm_count=132,
        sm_max_mhz=1980,
        packages={"numpy": "2.5.0"},
    )


def template(samples: int, lots: random.Random) -> Time:
    """Samples around 1 ms with everything beside them that a real run has."""
    values = tuple(round(lots.gauss(1.0, OWN_NOISE), 7) for _ in range(samples))
    none = dict.fromkeys(("median_ms", "mean_ms", "min_ms", "max_ms", "p95_ms", "p99_ms"))
    return time_of(
        Time(
            timer="cupti",
            l2="cold",
            regime="burst",
            stopped_by="rel-ci",
            num_samples=samples,
            **none,
            samples_ms=values,
            rounds=tuple(range(samples)),
            at_s=tuple(round(0.021 * i, 6) for i in range(samples)),
            sm_mhz=tuple(1980.0 - 15.0 * lots.randrange(2) for _ in range(samples)),
            host_ms=0.021,
            setup_ms=3.2,
            first_call_ms=41.7,
        )
    )


def scaled(times: Time, factor: float) -> Time:
    """The same samples in other milliseconds."""
    named = {
        name: getattr(times, name) * factor
        for name in runfile.TIMES
        if name.split("_")[0] in ("median", "mean", "std", "min", "max", "p95", "p99", "ci")
    }
    return dataclasses.replace(times, **named, samples_ms=tuple(round(one * factor, 7) for one in times.samples_ms))


def make_record(row: int, times: Time) -> Record:
    seqlen, backend = 256 * (1 + row // len(BACKENDS)), BACKENDS[row % len(BACKENDS)]
    case = {"batch": 1, "seqlen": seqlen, "nheads": 16, "headdim": 128, "causal": False, "dtype": "bf16", "mode": "fwd"}
    name = f"b1-s{seqlen}-h16-d128-bf16-fwd"
    return Record(
        workload="attention",
        case=case,
        case_id=name,
        group=name,
        backend=backend,
        version="2.11.0",
        environment=0,
        status=Status.PASSED,
        kernels=(f"{backend}_fwd_sm90",),
        time=times,
        work=Work(flops=4 * 16 * seqlen * seqlen * 128, bytes=8 * 16 * seqlen * 128),
        repro=f"attnbench compare --seqlen {seqlen} --backends {backend}",
    )


def fill(place: Place, runs: int, rows: int, samples: int) -> dict[str, float]:
    """Put the runs in; seconds of building and of writing."""
    lots = random.Random(1)
    templates = [template(samples, lots) for _ in range(TEMPLATES)]
    built = written = 0.0
    with open_history(place, write=True) as history:
        for number in range(runs):
            began = time.perf_counter()
            day = f"{2020 + number // 336}-{1 + number % 336 // 28:02d}-{1 + number % 28:02d}T00:00:00Z"
            records = []
            for row in range(rows):
                level = 0.1 * (1 + row / 10) * (SHIFT if row % 3 == 0 and number >= runs // 2 else 1.0)
                factor = level * math.exp(lots.gauss(0.0, NOISE))
                records.append(make_record(row, scaled(templates[lots.randrange(TEMPLATES)], factor)))
            run = Run(
                id=f"{number:08x}",
                suite="sweep",
                command="attnbench run sweep",
                started=day,
                settings=Settings(device="cuda"),
                environments=(environment(number, runs),),
                records=tuple(records),
            )
            entry = entry_from(run, runfile.head(run), [runfile.line(record) for record in records])
            between = time.perf_counter()
            add_entry(history, entry)
            built, written = built + between - began, written + time.perf_counter() - between
            if number % 100 == 99:
                print(f"{number + 1} runs", file=sys.stderr)
    return {"build_s": built, "write_s": written}


def ask(place: Place, row: int) -> tuple[dict[str, float], int]:
    """One trend in a fresh connection: milliseconds of its parts, and the changes found."""
    record = make_record(row, template(6, random.Random(0)))
    began, busy = time.perf_counter(), time.process_time()
    with open_history(place, write=False) as history:
        opened = time.perf_counter()
        found = find_row(history, f"{record.case_id}/{record.backend}")
        named = time.perf_counter()
        (trend,), _ = trends(history, found)
        done = time.perf_counter()
    whole = time.perf_counter()
    parts = {
        "open_ms": opened - began,
        "find_row_ms": named - opened,
        "trend_ms": done - named,
        "all_ms": whole - began,
        "cpu_ms": time.process_time() - busy,
    }
    return {name: 1000.0 * seconds for name, seconds in parts.items()}, len(trend.changes)


def command(place: Place, row: int) -> float:
    """Seconds of `attnbench history ROW`, imports and drawing included."""
    record = make_record(row, template(6, random.Random(0)))
    words = [
        sys.executable,
        "-m",
        "attnbench",
        "history",
        f"{record.case_id}/{record.backend}",
        "--db",
        f"sqlite:///{place.path}",
    ]
    began = time.perf_counter()
    subprocess.run(words, check=True, capture_output=True, env={**os.environ, "COLUMNS": "100"})
    return time.perf_counter() - began


def measure(folder: Path, runs: int, rows: int, samples: int, asked: int) -> dict[str, object]:
    """Fill a history in `folder` and ask it."""
    place = Place("history.sqlite", folder / "history.sqlite")
    filled = fill(place, runs, rows, samples)
    size = sum(path.stat().st_size for path in folder.iterdir())
    ask(place, 0)  # imports
    answers = [ask(place, row * (rows // asked)) for row in range(asked)]
    right = [row * (rows // asked) % 3 == 0 for row in range(asked)]
    parts = {
        name: {
            "median": statistics.median(one[0][name] for one in answers),
            "max": max(one[0][name] for one in answers),
        }
        for name in answers[0][0]
    }
    return {
        "runs": runs,
        "rows": rows,
        "samples": samples,
        "records": runs * rows,
        "megabytes": size / 2**20,
        "bytes_per_record": size / (runs * rows),
        **filled,
        "trends_asked": asked,
        **parts,
        "command_s": statistics.median(command(place, row * (rows // asked)) for row in range(min(asked, 5))),
        "shifted_rows": sum(right),
        "shifted_rows_found": sum(
            changes == 1 for (_, changes), shifted in zip(answers, right, strict=True) if shifted
        ),
        "steady_rows_alarmed": sum(
            changes > 0 for (_, changes), shifted in zip(answers, right, strict=True) if not shifted
        ),
        "python": platform.python_version(),
        "sqlite": __import__("sqlite3").sqlite_version,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--asked", type=int, default=50)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), args.runs, args.rows, args.samples, args.asked)
    args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
