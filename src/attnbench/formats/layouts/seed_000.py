"""seed-000: ``benchmark_results.json`` and the console blocks of dense against block-sparse HSTU.

Speed-up is the dense mean over the block-sparse mean.  `baseline_slower_by` is (block-sparse mean / dense mean - 1) ·
100 percent, so -27.9 if block-sparse is 1.387 times as fast: the name misleads, but the sign is the script's.  The
script's baseline was the original Triton kernel; the console and `notes` name the backend in its place.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attnbench.errors import RunFileError, UsageError, refusal
from attnbench.formats.layouts.base import (
    IMPORTED,
    Layout,
    imported_record,
    imported_run,
    imported_time,
    mean_of,
    read_text,
    timed,
)
from attnbench.formats.split import part_path, split
from attnbench.presentation.figures import plain
from attnbench.record import Environment, Memory, Record, Run, Settings, Speedup
from attnbench.store.files import is_folder, write_bytes
from attnbench.store.parsing import parse

RESULTS = "benchmark_results.json"
KEYS = ("device_info", "num_warmup", "num_iterations", "results")
CONFIG = {"B": "batch", "N": "seqlen", "num_heads": "nheads", "attention_dim": "attn_dim",
          "linear_dim": "linear_dim", "block_size": "block_size", "block_counts": "block_counts"}  # fmt: skip
TIMES = ("mean_ms", "std_ms", "min_ms", "max_ms", "median_ms", "p95_ms", "p99_ms")
MEMORIES = {"mean_mem_allocated_mb": "peak_allocated_mb", "mean_mem_reserved_mb": "peak_reserved_mb"}
DENSE, BSA = "baseline", "bsa"
ORIGINAL = "hstu-meta-triton"
DENSES = (DENSE, ORIGINAL, "hstu-triton", "hstu-fbgemm", "hstu-compile", "hstu-eager")
BSAS = (BSA, "hstu-bsa-triton", "hstu-bsa-eager")
"Candidates for each side; a dense baseline of the run comes first, then the first that was measured."
BANDS = ((2.0, "large"), (1.5, "significant"), (1.2, "worth using"), (1.0, "little"))
"Minimum speed-up of each class; `large` is for speed-ups above its bound."
RULE, LINE = "=" * 80, "-" * 80
UNKNOWN = "-"
PLACES = ("GPU: ", "CPU: ")


class _Pair(NamedTuple):
    """A configuration with its two sides; None for a side without a time."""

    config: Mapping[str, Any]
    dense: Record | None
    bsa: Record | None
    lost: Sequence[Record]

    @property
    def speedup(self) -> float | None:
        if self.dense is None or self.bsa is None:
            return None
        if self.bsa.time is not None and self.bsa.time.timer == IMPORTED and self.bsa.speedup is not None:
            return self.bsa.speedup.ratio  # computed from more digits than the file's means have
        return mean_of(self.dense) / mean_of(self.bsa)

    @property
    def slower_by(self) -> float | None:
        """Percent by which the block-sparse mean is above the dense one."""
        return None if self.dense is None or self.bsa is None else (mean_of(self.bsa) / mean_of(self.dense) - 1) * 100


class Seed000(Layout):
    """One file per run; two sides per configuration."""

    name = "seed-000"
    workloads = ("hstu",)
    title = "benchmark_results.json {device_info, num_warmup, num_iterations, results} and console blocks"

    def write(self, run: Run, path: str | Path) -> list[Path]:
        """Write ``benchmark_results.json`` (a path of that suffix, or a folder), or the console text to another file.

        If several cases have the same configuration (they differ in precision, say), one file for each is written.
        """
        path = Path(path)
        if not path.suffix or is_folder(path):
            path /= RESULTS
        draw = _results if path.suffix == ".json" else self.console
        parts = _parts(run)
        paths = [part_path(path, label) for label in parts]
        for place, part in zip(paths, parts.values(), strict=True):
            write_bytes(place, draw(part).encode())
        return paths

    def console(self, run: Run) -> str:
        """Return a block for each configuration, and the summary; the parts of `write` one below the other."""
        return "\n".join("\n".join(_console(part)) + "\n" for part in _parts(run).values())

    def notes(self, run: Run) -> tuple[str, ...]:
        """Return which backend replaces the original kernel, if it was not measured."""
        dense, bsa = _sides(run)
        notes = [f"seed-000: {side} was not measured" for side, name in ((DENSE, dense), (BSA, bsa)) if name is None]
        if dense not in (None, DENSE, ORIGINAL):
            notes.append(f"seed-000: the baseline is {dense}: {ORIGINAL} was not measured")
        return tuple(notes)

    def recognises(self, path: Path) -> bool:
        """Recognise a file by its keys, and a folder by the file in it."""
        try:
            data = json.loads((path / RESULTS if is_folder(path) else path).read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError):
            return False
        return isinstance(data, dict) and set(data) == set(KEYS)

    def read(self, path: str | Path) -> Run:
        """Return both sides of each configuration as records `baseline` and `bsa`."""
        place = Path(path) / RESULTS if is_folder(path) else Path(path)
        data = parse(read_text(place), f"import: {place}", RESULTS)
        if not isinstance(data, dict) or set(data) != set(KEYS) or not isinstance(data["results"], list):
            raise RunFileError(refusal("import", "path", place, "is not seed-000", f"the keys {', '.join(KEYS)}"))
        counts = [_count(str(place), name, data[name]) for name in KEYS[1:3]]
        records = [
            record
            for index, row in enumerate(data["results"])
            for record in _records(f"{place}: results[{index}]", row, counts[1])
        ]
        run = imported_run(self.name, path, records)
        settings = Settings(warmup=counts[0], iterations=counts[1], baseline=DENSE)
        return dataclasses.replace(run, settings=settings, environments=_environments(data["device_info"]))


# ── writing ────────────────────────────────────────────────────────────────────────────────────────


def _parts(run: Run) -> dict[str, Run]:
    """Return the run, or its parts if the columns cannot distinguish them."""
    if not timed(run.records):
        raise UsageError(refusal("seed-000", "records", 0, "have a time", "a run with at least one timed record"))
    for record in run.records:
        if not all(type(record.case.get(axis)) is int for axis in CONFIG.values()):
            raise UsageError(refusal("seed-000", "workload", record.workload, "has no blocks", "a run of hstu"))
    seen: dict[tuple[Any, ...], Record] = {}
    axes: dict[str, None] = {}
    for record in run.records:
        first = seen.setdefault((*_config(record).values(), record.replicate), record)
        axes |= dict.fromkeys(name for name, value in record.case.items() if first.case.get(name) != value)
    return split(run, list(axes)) if axes else {"": run}


def _sides(run: Run) -> tuple[str | None, str | None]:
    """Return the names of the run's dense and block-sparse backend."""
    measured = {record.backend for record in timed(run.records)}
    own = run.settings.baseline
    first = (own,) if own is not None and not own.startswith((BSA, "hstu-bsa")) else ()
    return tuple(
        next((name for name in names if name in measured), None)  # type: ignore[return-value]  # a pair
        for names in ((*first, *DENSES), BSAS)
    )


def _pairs(run: Run) -> list[_Pair]:
    groups: dict[tuple[str, int], list[Record]] = {}
    for record in run.records:
        groups.setdefault((record.group, record.replicate), []).append(record)
    dense, bsa = _sides(run)
    pairs = []
    for records in groups.values():
        there = {record.backend: record for record in timed(records)}
        lost = [record for record in records if record.time is None]
        pairs.append(_Pair(_config(records[0]), there.get(dense or ""), there.get(bsa or ""), lost))
    return pairs


def _config(record: Record) -> dict[str, Any]:
    return {name: record.case[axis] for name, axis in CONFIG.items()}


def _results(run: Run) -> str:
    results = [{"config": pair.config, DENSE: _side(pair.dense), BSA: _side(pair.bsa), "speedup": pair.speedup,
                "baseline_slower_by": pair.slower_by} for pair in _pairs(run)]  # fmt: skip
    values = (_device(run), run.settings.warmup, run.settings.iterations, results)
    return json.dumps(dict(zip(KEYS, values, strict=True)), indent=2) + "\n"


def _side(record: Record | None) -> dict[str, float | None] | None:
    if record is None:
        return None
    times = {name: getattr(record.time, name) for name in TIMES} | {"std_ms": _std(record)}
    return times | {name: _memory(record, field) for name, field in MEMORIES.items()}


def _std(record: Record) -> float | None:
    time = record.time
    assert time is not None  # guaranteed by `timed`
    return 0.0 if time.std_ms is None and time.num_samples == 1 else time.std_ms


def _memory(record: Record, field: str = "peak_allocated_mb") -> float | None:
    memory: float | None = getattr(record.memory, field) if record.memory else None
    return memory


def _device(run: Run) -> str | None:
    for environment in run.environments:
        if (run.settings.device.startswith("cpu") or environment.gpu is None) and environment.cpu:
            return PLACES[1] + environment.cpu
        return None if environment.gpu is None else PLACES[0] + environment.gpu
    return None


def _console(run: Run) -> Iterator[str]:
    pairs, (dense, bsa) = _pairs(run), _sides(run)
    yield from (RULE, "HSTU attention: dense against block-sparse (BSA)", RULE, f"device {_device(run) or UNKNOWN}", "")
    for number, pair in enumerate(pairs, 1):
        shape = ", ".join(
            f"{name}={pair.config[key]}"
            for name, key in (
                ("B", "B"),
                ("N", "N"),
                ("H", "num_heads"),
                ("ATTN_DIM", "attention_dim"),
                ("LINEAR_DIM", "linear_dim"),
            )
        )
        yield from (f"[{number}/{len(pairs)}] configuration: {shape}", LINE)
        yield from _block(f"HSTU dense ({dense or UNKNOWN})", pair.dense)
        yield from ("", *_block(f"HSTU BSA ({bsa or UNKNOWN})", pair.bsa), "", *_meaning(pair))
        for record in pair.lost:
            reason = " ".join((record.reason or "").split()).removeprefix(f"{record.backend}: ")
            yield f"{record.backend}: {record.status.value}: {reason}"
        yield ""
    ratios = [pair.speedup for pair in pairs if pair.speedup is not None]
    yield from (RULE, "summary", RULE)
    for words, pick in (("mean", statistics.fmean), ("best", max), ("worst", min)):
        yield f"{words + ' speed-up:':<16} {f'{pick(ratios):.2f}x' if ratios else UNKNOWN}"


def _block(title: str, record: Record | None) -> Iterator[str]:
    if record is None or record.time is None:
        yield f"{title}: no time"
        return
    time, std = record.time, _std(record)
    yield f"{title}:"
    yield f"  mean:       {_ms(time.mean_ms)} ms (±{_ms(std, beside=time.mean_ms)})"
    yield f"  median:     {_ms(time.median_ms)} ms"
    yield f"  min/max:    {_ms(time.min_ms)} / {_ms(time.max_ms)} ms"
    memory = _memory(record)
    yield f"  memory:     {UNKNOWN if memory is None else f'{memory:.2f}'} MB"


def _meaning(pair: _Pair) -> Iterator[str]:
    """Yield which side is faster, symmetrically, and the gain."""
    ratio, percent = pair.speedup, pair.slower_by
    if ratio is None or percent is None:
        yield "no speed-up: one of the two has no time"
        return
    shown, gain = f"{ratio:.2f}x", "none"
    if shown == "1.00x":
        yield f"= HSTU BSA as fast: {shown}"
    elif ratio > 1:
        gain = next(words for least, words in BANDS if ratio > least or (ratio == least != BANDS[0][0]))
        yield f"✓ HSTU BSA faster: {shown}"
    else:
        yield f"✗ HSTU BSA slower: {shown} ({percent:.1f}% slower)"
    assert pair.dense is not None  # there is a speed-up
    assert pair.bsa is not None
    memories = _memory(pair.bsa), _memory(pair.dense)
    share = f"{memories[0] / memories[1]:.2f}x of the dense" if memories[0] is not None and memories[1] else "not known"
    yield f"  gain: {gain}; memory: {share}"


def _ms(value: float | None, beside: float | None = None) -> str:
    """Return three decimals as in the script, more if the time (or the time beside it) is short."""
    if value is None:
        return UNKNOWN
    return f"{value:.3f}" if value == 0 or (beside or value) >= 1 else plain(value, 4)


# ── reading ────────────────────────────────────────────────────────────────────────────────────────


def _records(who: str, row: Any, samples: int | None) -> Iterator[Record]:
    fields = ("config", DENSE, BSA, "speedup", "baseline_slower_by")
    if not isinstance(row, dict) or not set(fields) <= set(row) or not isinstance(row["config"], dict):
        raise RunFileError(f"{who} is not a result; an object with {', '.join(fields)}")
    case = {axis: _count(f"{who}.config", name, row["config"].get(name)) for name, axis in CONFIG.items()}
    for name, size in zip(CONFIG, case.values(), strict=True):
        if not size:
            raise RunFileError(refusal(f"{who}.config", name, size, "is not a size", "a whole number from 1"))
    ratio = _number(who, "speedup", row["speedup"])
    for side in (DENSE, BSA):
        if row[side] is None:
            continue
        if not isinstance(row[side], dict):
            raise RunFileError(refusal(who, side, row[side], "is not a side", "an object or null"))
        values = {name: _number(f"{who}.{side}", name, row[side].get(name)) for name in (*TIMES, *MEMORIES)}
        if not values["mean_ms"] or values["mean_ms"] < 0:
            wrong = refusal(f"{who}.{side}", "mean_ms", values["mean_ms"], "is not a time", "milliseconds above 0")
            raise RunFileError(wrong)
        memory = Memory(**{field: values[name] for name, field in MEMORIES.items()})
        speedup = Speedup(baseline=DENSE, ratio=ratio) if side == BSA and ratio is not None else None
        time = imported_time(**{name: values[name] for name in TIMES}, num_samples=samples)
        yield imported_record("seed-000", case, side, time, workload="hstu", memory=memory, speedup=speedup)


def _number(who: str, field: str, value: Any) -> float | None:
    if value is not None and (type(value) not in (int, float) or not abs(value) < float("inf")):
        raise RunFileError(refusal(who, field, value, "is not a number", "a finite number or null"))
    return None if value is None else float(value)


def _count(who: str, field: str, value: Any) -> int | None:
    if value is not None and (type(value) is not int or not 0 <= value < 2**31):
        raise RunFileError(refusal(who, field, value, "is not a count", "a whole number or null"))
    return value


def _environments(device: Any) -> tuple[Environment, ...]:
    """Return the known part of the machine: its name."""
    for prefix in PLACES:
        if isinstance(device, str) and device.startswith(prefix):
            known, name = Environment(os="", python=""), device.removeprefix(prefix)
            gpu = prefix == PLACES[0]
            return (dataclasses.replace(known, gpu=name) if gpu else dataclasses.replace(known, cpu=name),)
    return ()


LAYOUT = Seed000()
