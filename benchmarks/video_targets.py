"""What the video rows have to reach on an H200 (cogvideox-2b, bf16, with guidance), held against the committed files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.presentation.reconcile import Reconciled, reconcile
from attnbench.profile import sources
from attnbench.profile.capture import Capture
from attnbench.profile.categories import ADD, COPY, load
from attnbench.profile.tables import by_category
from attnbench.record import Record, Run, Status
from attnbench.stats.ratio import paired_ratio
from attnbench.store.runfile import read

EAGER, COMPILED, SPARSE, WAN = (f"video-{name}-h200.json" for name in ("eager", "compiled", "sparse", "wan"))
LOOP, REPEATS, SECONDS = (f"video-{name}-h200.json" for name in ("loop", "repeats", "seconds"))
CAPTURES = "video-captures-h200.json"
"What `attnbench profile torch video --whole` wrote of each backend, `captures.json`."
FILES = (EAGER, COMPILED, SPARSE, WAN, LOOP, REPEATS, SECONDS, CAPTURES)
RUNS = (EAGER, COMPILED, SPARSE, WAN)
EXACT = ("sdpa", "sdpa-flash", "sdpa-cudnn", "fa3-fwd", "flash-triton")
OURS = ("flash-triton", "flash-quant", "flash-sparse")
GIB = 1024
"MiB of one."


@dataclass(frozen=True, slots=True)
class Found:
    """One figure held against what was wanted of it."""

    what: str
    wanted: str
    value: float
    met: bool
    text: str
    aimed: bool | None = None
    "whether what is aimed at was reached too; None where nothing more is aimed at"


SPEEDS = (
    ("flash-triton", "sdpa-flash", 1.3, 1.45, (EAGER, COMPILED), None),
    ("flash-triton", "sdpa", 1.05, 1.1, (EAGER, COMPILED), None),
    ("flash-quant", "flash-triton", 1.0, 1.08, (EAGER, COMPILED), None),
    ("flash-quant", "flash-triton", 1.05, 1.12, (WAN,), None),
    ("flash-sparse", "flash-triton", 1.2, 1.3, (EAGER, COMPILED), 0.5),
    ("flash-sparse", "flash-triton", 1.4, 1.6, (SPARSE,), 0.2),
)
"""Whose step is how many times as fast as whose: at least, aimed at, in which files, at which density of the map."""


def attention_of(record: Record) -> str:
    """``flash-triton`` of the row ``video[flash-triton]``, without a launch configuration."""
    return (record.config or record.backend).partition(":")[0].partition("[")[0]


def findings(results: Path) -> Iterator[Found]:
    """Everything that the files which are there say."""
    runs = {name: read(results / name) for name in RUNS if (results / name).is_file()}
    others = {
        name: json.loads((results / name).read_text("utf-8")) if (results / name).is_file() else {}
        for name in (LOOP, REPEATS, SECONDS)
    }
    yield from loops(others[LOOP])
    for name, run in runs.items():
        yield from speeds(name, run)
    for name, run in runs.items():
        yield from explained(name, run)
        yield from counted(name, run)
    yield from repeated(others[REPEATS])
    if (results / CAPTURES).is_file():
        yield from captured(sources.read(results / CAPTURES, load()))
    if (seconds := others[SECONDS].get(COMPILED)) is not None:
        rows = len(passed(runs[COMPILED])) if COMPILED in runs else 0
        yield Found(
            "wall time, compiled",
            "5 rows under 480 s",
            seconds,
            rows >= 5 and seconds < 480,
            f"{rows} rows, {seconds:.0f} s",
        )


def passed(run: Run) -> list[Record]:
    """Records with a time."""
    return [record for record in run.records if record.status is Status.PASSED and record.time]


def loops(data: dict[str, Any]) -> Iterator[Found]:
    """Our loop beside the pipeline's, and the harness beside neither."""
    if not data:
        return
    off = data["ratios"]["bare over pipeline"]["ratio"] - 1
    yield Found("our loop against the pipeline's", "within 1 %", off, abs(off) <= 0.01, f"{100 * off:+.2f} %")
    off = data["ratios"]["loop over pipeline"]["ratio"] - 1
    yield Found("the same with the attention of row sdpa", "at most 1 %", off, off <= 0.01, f"{100 * off:+.2f} %")
    share = data["ratios"]["launch over loop"]["ratio"] - 1
    yield Found("harness, of a step", "at most 2 %", share, share <= 0.02, f"{100 * share:+.2f} %")


def speeds(name: str, run: Run) -> Iterator[Found]:
    """Steps of rows against each other, within rounds."""
    records = {attention_of(record): record for record in passed(run)}
    for mine, other, least, aim, files, density in SPEEDS:
        one, peer = records.get(mine), records.get(other)
        if name not in files or one is None or peer is None or (density is not None and one.case["density"] != density):
            continue
        ratio = paired_ratio(*(by_round(record) for record in (peer, one))).ratio
        at = "" if density is None else f", density {density}"
        yield Found(
            f"{words(name)}: {mine}{at} over {other}",
            f"at least {least}x",
            ratio,
            ratio >= least,
            f"{ratio:.3f}x",
            ratio >= aim,
        )


def by_round(record: Record) -> dict[int, float]:
    """Its samples by their round."""
    assert record.time is not None
    return dict(zip(record.time.rounds, record.time.samples_ms, strict=True))


def words(name: str) -> str:
    """``eager`` of a file's name."""
    return name.split("-")[1]


def explained(name: str, run: Run) -> Iterator[Found]:
    """Steps of exact rows as the baseline predicts them, and the attention in place against itself alone."""
    cases = {record.case_id: [one for one in passed(run) if one.case_id == record.case_id] for record in passed(run)}
    rows: list[Reconciled] = [
        row
        for records in cases.values()
        for table in reconcile([one for one in records if attention_of(one) in EXACT], run.settings.baseline)
        for row in table
    ]
    shares: tuple[tuple[str, str, float, Callable[[Reconciled], float | None]], ...] = (
        ("in place against alone, cycles", "within 5 %", 0.05, lambda row: row.in_place if row.cycles else None),
        ("measured against predicted, cycles", "within 3 %", 0.03, lambda row: row.difference_in_cycles),
        ("measured against predicted, time", "within 5 %", 0.05, lambda row: row.difference),
        (
            "unexplained, of a step",
            "within 2 %",
            0.02,
            lambda row: row.residues["unexplained"] / row.step_ms if row.residues else None,
        ),
    )
    for what, wanted, most, read_of in shares:
        known = [(abs(share), row, share) for row in rows if (share := read_of(row)) is not None]
        if known:
            size, row, share = max(known, key=lambda one: one[0])
            text = f"{100 * share:+.2f} % ({attention_of(row.record)})"
            yield Found(f"{words(name)}: {what}", wanted, size, size <= most, text)


def counted(name: str, run: Run) -> Iterator[Found]:
    """Memory, calls of the attention and what a compiler could not follow."""
    records = passed(run)
    peaks = [peak for one in records if (peak := one.counters.get("generation_peak_mb"))]
    if peaks:
        peak = max(peaks) / GIB
        yield Found(f"{words(name)}: memory of a generation", "below 40 GiB", peak, peak < 40, f"{peak:.1f} GiB")
    called = [one for one in records if "attention_calls" in one.counters]
    if called:
        right = [one.counters["attention_calls"] == (one.counters["layers"] or 0) * one.case["steps"] for one in called]
        yield Found(
            f"{words(name)}: calls of the attention",
            "layers x steps",
            sum(right),
            all(right),
            f"{sum(right)} of {len(right)} rows",
        )
    ours = [one for one in records if attention_of(one) in OURS and "graph_breaks" in one.counters]
    if ours:
        breaks = sum(one.counters[name] or 0 for one in ours for name in ("graph_breaks", "recompiles"))
        yield Found(
            f"{words(name)}: graph breaks and recompilations of ours", "none", breaks, not breaks, f"{breaks:.0f}"
        )


def repeated(data: dict[str, Any]) -> Iterator[Found]:
    """Two runs of one command."""
    rows = data.get("rows", [])
    for key, what in (("ratio_in_cycles", "in cycles"), ("ratio", "in time")):
        ratios = [row[key] - 1 for row in rows if key in row]
        if ratios:
            off = max(ratios, key=abs)
            name = f"two runs: ratios of steps, {what}"
            yield Found(name, "within 0.2 %", abs(off), abs(off) <= 0.002, f"{100 * off:+.2f} %")
    same = [row["same_latents"] for row in rows if row["same_latents"] is not None and exact(row["backend"])]
    if same:
        yield Found(
            "two runs: latents of exact rows", "equal bits", sum(same), all(same), f"{sum(same)} of {len(same)} rows"
        )


def captured(captures: Sequence[Capture]) -> Iterator[Found]:
    """Kernels of whole generations: how many have a category, and copies and additions beyond those of `sdpa`."""
    shares = [1 - by_category(one).get("other", 0.0) / one.kernel_ms for one in captures if one.kernel_ms]
    if shares:
        yield Found(
            "kernel time with a category", "at least 99 %", -min(shares), min(shares) >= 0.99, f"{min(shares):.2%}"
        )
    counts = {row_of(one): {name: launches(one, name) for name in (COPY, ADD)} for one in captures}
    theirs = counts.pop("sdpa", None)
    ours = {name: mine for name, mine in counts.items() if name.partition(":")[0].partition("[")[0] in OURS}
    if theirs and ours:
        more = {name: sum(max(0, mine[kind] - theirs[kind]) for kind in mine) for name, mine in ours.items()}
        text = ", ".join(f"{name} {count}" for name, count in more.items())
        yield Found(
            "copies and additions beyond those of sdpa", "none", max(more.values()), not any(more.values()), text
        )


def row_of(capture: Capture) -> str:
    """``flash-triton`` of a capture of that row."""
    backend = next((row.backend for row in capture.kernels if row.backend), None) or ""
    return backend.removeprefix("video[").removesuffix("]")


def launches(capture: Capture, category: str) -> int:
    """Of kernels of a category."""
    return sum(row.calls for row in capture.kernels if row.category == category)


def exact(backend: str) -> bool:
    """Whether a row's name is that of an exact backend."""
    return backend.removeprefix("video[").removesuffix("]").partition(":")[0] in EXACT


def lines(results: Path) -> list[str]:
    """A line for each figure."""
    found = [f"{_mark(one)}  {one.what}: {one.text}; {one.wanted}" for one in findings(results)]
    return found or [f"none of {', '.join(FILES)} is in {results.name}"]


def _mark(one: Found) -> str:
    return "aim reached" if one.aimed else "met        " if one.met else "MISSED     "


HEAD = ("what", "wanted", "reached", "met")


def rows(results: Path) -> list[list[str]]:
    """Of the table in the docs."""
    return [[one.what, one.wanted, one.text, "yes" if one.met else "no"] for one in findings(results)]


def environments(results: Path) -> list[dict[str, Any]]:
    """Where the files come from, without the same twice."""
    found: list[dict[str, Any]] = []
    for name in (*RUNS, LOOP, REPEATS):
        if (path := results / name).is_file():
            data = json.loads(path.read_text("utf-8"))
            mine = data["environment"] if "environment" in data else data["run"]["environments"][0]
            found += [mine] * (mine not in found)
    return found
