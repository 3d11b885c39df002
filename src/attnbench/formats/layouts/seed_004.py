"""seed-004: the console block and ``results.json`` of `minimal`, the console table of `compare`.

All figures are of mean times.  `Flash Attention` is FlashAttention 2, or torch's copy of it if that was not measured
(`notes` says so); speed-up is its time over the row's, so 0.15x is slower.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench.errors import RunFileError, UsageError, refusal
from attnbench.formats.layouts.base import (
    Layout,
    imported_record,
    imported_run,
    imported_time,
    mean_of,
    number,
    read_text,
    timed,
)
from attnbench.presentation.block import backend_name
from attnbench.presentation.figures import plain
from attnbench.record import Memory, Rate, Record, Run, Speedup
from attnbench.store.files import is_file, is_folder, write_bytes

RESULTS, BLOCK, TABLE = "results.json", "baseline_benchmark.txt", "comparison_results.txt"
KEYS = ("time_ms", "tflops", "memory_gb")
FLASH = "Flash Attention"
FLASHES = (FLASH, "flash-attn-2", "sdpa-flash")
"Candidates for `Flash Attention`; the first that was measured is chosen."
XFORMERS = "xFormers"
SEVERAL = {FLASH: FLASHES, XFORMERS: (XFORMERS, "xformers-flash", "xformers-cutlass")}
"The seed's names that fit several backends; the first that was measured is chosen."
LABELS = {"eager": "PyTorch Standard", "sdpa": "PyTorch SDPA"}
PASSES = {"fwd": "Forward", "bwd": "Backward", "fwd-bwd": "Forward+Backward"}
HEADER = f"{'Implementation':<26}{'Time (ms)':<16}{'Memory (MB)':<16}Speedup"
RULE = "-" * 80
UNKNOWN = "-"
PEAK = "tflops_peak"
"Counter for an imported rate at the shortest time, which no other field holds."


class Seed004(Layout):
    """A block for one backend, a table for several."""

    name = "seed-004"
    title = "console block, results.json {time_ms, tflops, memory_gb} and the comparison table"

    def write(self, run: Run, path: str | Path) -> list[Path]:
        """Write ``results.json`` to a path that ends so, the console text to any other file.

        A folder (existing, or a name without suffix) gets the files that the seed wrote.
        """
        path = Path(path)
        if path.suffix == ".json":
            contents = {path: _results(run)}
        elif path.suffix and not is_folder(path):
            contents = {path: self.console(run)}
        elif _is_comparison(run):
            contents = {path / TABLE: self.console(run)}
        else:
            contents = {path / RESULTS: _results(run), path / BLOCK: self.console(run)}
        for place, text in contents.items():
            write_bytes(place, text.encode())
        return list(contents)

    def console(self, run: Run) -> str:
        """What the seed's program printed, case after case.

        Raises:
            UsageError: the run is one of `check`, which times nothing.
        """
        if not run.settings.measure:
            raise UsageError(refusal("seed-004", "records", 0, "have a time", "a run with at least one timed record"))
        groups: dict[tuple[str, int], list[Record]] = {}
        for record in run.records:
            groups.setdefault((record.group, record.replicate), []).append(record)
        draw = _table if _is_comparison(run) else _blocks
        texts = ["\n".join(draw(records)) + "\n" for records in groups.values()]
        if len(texts) > 1:
            texts = [f"{records[0].case_id}\n{text}" for records, text in zip(groups.values(), texts, strict=True)]
        return "\n".join(texts)

    def notes(self, run: Run) -> tuple[str, ...]:
        """Return which backend a name of the seed stands for, if the name does not say so."""
        named = {label: name for name, label in _labels(run.records).items()}
        notes = []
        if FLASH not in named:
            notes.append(f"seed-004: no {FLASH}: neither {' nor '.join(FLASHES[1:])} was measured")
        elif named[FLASH] == FLASHES[2]:
            notes.append(f"seed-004: {FLASH} is torch's own SDPA flash: flash-attn-2 was not measured")
        if named.get(XFORMERS, XFORMERS) != XFORMERS:
            notes.append(f"seed-004: {XFORMERS} is {named[XFORMERS]}")
        return tuple(notes)

    def recognises(self, path: Path) -> bool:
        """Recognise ``results.json`` by its keys, a text by its headings, a folder by one of these files."""
        if is_folder(path):
            return any(is_file(path / name) for name in (RESULTS, BLOCK, TABLE))
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, ValueError):
            return False
        return _as_results(text) is not None or "Pass Results:" in text or HEADER in text

    def read(self, path: str | Path) -> Run:
        """Return means and derived figures; for a folder, of all its files that are the seed's."""
        path = Path(path)
        files = [path / name for name in (BLOCK, RESULTS, TABLE) if is_file(path / name)] if is_folder(path) else [path]
        if len(files) > 1 and files[0].name == BLOCK and files[1].name == RESULTS:
            del files[0]  # results.json has the same figures with more digits
        records = [record for file in files for record in _records(file)]
        if not records:
            wrong, accepted = "holds no figures of seed-004", f"{RESULTS}, a console block or the table"
            raise RunFileError(refusal("import", "path", path, wrong, accepted))
        return imported_run(self.name, path, records)


# ── writing ────────────────────────────────────────────────────────────────────────────────────────


def _is_comparison(run: Run) -> bool:
    return len({record.backend for record in run.records}) > 1


def _results(run: Run) -> str:
    records = timed(run.records)
    if len(records) != 1:
        accepted, todo = "one case and one backend", "export the table, or choose with --backends"
        raise UsageError(refusal("seed-004", "records", len(records), f"do not fit {RESULTS}", accepted, todo))
    record = records[0]
    memory = _memory(record)
    values = (mean_of(record), _tflops(record, mean_of(record)), None if memory is None else memory / 1024)
    return json.dumps(dict(zip(KEYS, values, strict=True))) + "\n"


def _blocks(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        if record.time is None or not record.time.mean_ms:
            yield _lost(record)
            continue
        shortest, peak = record.time.min_ms, record.counters.get(PEAK)
        if peak is None and shortest:
            peak = _tflops(record, shortest)
        yield f"{PASSES.get(str(record.case.get('mode', 'fwd')), 'Forward')} Pass Results:"
        yield f"  Time (min):      {_ms(shortest)} ms"
        yield f"  Time (avg):      {_ms(mean_of(record))} ms"
        yield f"  TFLOPs/s (peak): {_fixed(peak, 2)} TFLOPs/s"
        yield f"  TFLOPs/s (avg):  {_fixed(_tflops(record, mean_of(record)), 2)} TFLOPs/s"


def _table(records: Sequence[Record]) -> Iterator[str]:
    rows = timed(records)
    labels = _labels(rows)
    rows.sort(key=lambda record: labels.get(record.backend) != FLASH)
    base = mean_of(rows[0]) if rows and labels.get(rows[0].backend) == FLASH else None
    yield from (HEADER, RULE)
    for record in rows:
        speedup = UNKNOWN if base is None else f"{base / mean_of(record):.2f}x"
        weight = _fixed(_memory(record), 1)
        yield f"{_label(record, labels):<25}{_ms(mean_of(record)):>9}{weight:>15}{speedup:>14}"
    if rows:
        fastest = min(rows, key=mean_of)
        yield from ("", f"🏆 Fastest: {_label(fastest, labels)} ({_ms(mean_of(fastest))} ms)")
    weighed = [(memory, record) for record in rows if (memory := _memory(record)) is not None]
    if weighed:
        least, record = min(weighed, key=lambda pair: pair[0])
        yield f"💾 Lowest Memory: {_label(record, labels)} ({least:.1f} MB)"
    lost = [record for record in records if record.time is None]
    if lost:
        yield from ("", *map(_lost, lost))


def _lost(record: Record) -> str:
    reason = " ".join((record.reason or "").split()).removeprefix(f"{record.backend}: ")
    return f"{_label(record, LABELS)}: {record.status.value}: {reason}"


def _labels(records: Sequence[Record]) -> dict[str, str]:
    """Return the seed's names of the measured backends, and of those that can have no other name."""
    measured = {record.backend for record in records if record.time is not None}
    found = {}
    for label, names in SEVERAL.items():
        name = next((name for name in names if name in measured), None)
        if name is not None:
            found[name] = label
    return LABELS | found


def _label(record: Record, labels: Mapping[str, str]) -> str:
    return labels.get(record.backend, backend_name(record))


def _tflops(record: Record, time_ms: float) -> float | None:
    if record.work is not None:
        return record.work.flops / time_ms / 1e9
    imported = record.rate.tflops if record.rate else None
    return None if imported is None else imported * mean_of(record) / time_ms


def _memory(record: Record) -> float | None:
    return record.memory.peak_allocated_mb if record.memory else None


def _ms(value: float | None) -> str:
    """Return three decimals as the seed does, more if four digits need them."""
    if value is None:
        return UNKNOWN
    return f"{value:.3f}" if value >= 1 else plain(value, 4)


def _fixed(value: float | None, decimals: int) -> str:
    return UNKNOWN if value is None else f"{value:.{decimals}f}"


# ── reading ────────────────────────────────────────────────────────────────────────────────────────

LINE = re.compile(r"\s+(Time|TFLOPs/s) \((min|avg|peak)\):\s+(\S+) (?:ms|TFLOPs/s)")
ROW = re.compile(r"(\S.*?)\s+(\S+)\s+(\S+)\s+(\S+x|-)\s*")


def _records(path: Path) -> Iterator[Record]:
    text = read_text(path)
    results = _as_results(text)
    if results is not None:
        yield _from_results(str(path), results)
        return
    lines = text.splitlines()
    for index, line in enumerate(lines):
        who = f"{path}:{index + 1}"
        if line.endswith(" Pass Results:"):
            yield _from_block(who, line.removesuffix(" Pass Results:").strip(), lines[index + 1 : index + 5])
        elif line.rstrip() == HEADER:
            yield from _from_table(path, index + 3, lines[index + 2 :])


def _as_results(text: str) -> Mapping[str, Any] | None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) and set(data) == set(KEYS) else None


def _from_results(who: str, data: Mapping[str, Any]) -> Record:
    for name, value in data.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise RunFileError(refusal(who, name, value, "is not a number", "a number or null"))
    mean, tflops, gigabytes = (number(who, name, "" if data[name] is None else str(data[name])) for name in KEYS)
    _check_time(who, "time_ms", mean)
    memory = None if gigabytes is None else Memory(peak_allocated_mb=gigabytes * 1024)
    rate = None if tflops is None else Rate(tflops=tflops)
    return imported_record("seed-004", {}, FLASH, imported_time(mean_ms=mean), memory=memory, rate=rate)


def _from_block(who: str, heading: str, lines: Sequence[str]) -> Record:
    found: dict[str, float | None] = {}
    for line in lines:
        if match := LINE.fullmatch(line.rstrip()):
            field = f"{match[1]} ({match[2]})"
            found[field] = number(who, field, "" if match[3] == UNKNOWN else match[3])
    _check_time(who, "Time (avg)", found.get("Time (avg)"))
    modes = {words: mode for mode, words in PASSES.items()}
    if heading not in modes:
        raise RunFileError(refusal(who, "heading", heading, "is not known", f"one of {', '.join(modes)}"))
    tflops, peak = found.get("TFLOPs/s (avg)"), found.get("TFLOPs/s (peak)")
    time = imported_time(mean_ms=found["Time (avg)"], min_ms=found.get("Time (min)"))
    return imported_record("seed-004", {"mode": modes[heading]}, FLASH, time,
                           rate=None if tflops is None else Rate(tflops=tflops),
                           counters={} if peak is None else {PEAK: peak})  # fmt: skip


def _from_table(path: Path, first: int, lines: Sequence[str]) -> Iterator[Record]:
    for index, line in enumerate(lines, first):
        if not line.strip():
            return
        match = ROW.fullmatch(line)
        if match is None:
            raise RunFileError(refusal(str(path), "line", index, "is not a row", "name, time, memory, speed-up"))
        who = f"{path}:{index}"
        fields = zip(("Time (ms)", "Memory (MB)", "Speedup"), match.groups()[1:], strict=True)
        mean, memory, ratio = (
            number(who, field, text.removesuffix("x").removesuffix(UNKNOWN)) for field, text in fields
        )
        _check_time(who, "Time (ms)", mean)
        yield imported_record("seed-004", {}, match[1], imported_time(mean_ms=mean),
                              memory=None if memory is None else Memory(peak_allocated_mb=memory),
                              speedup=None if ratio is None else Speedup(baseline=FLASH, ratio=ratio))  # fmt: skip


def _check_time(who: str, field: str, value: float | None) -> None:
    if value is None or value <= 0:
        raise RunFileError(refusal(who, field, value, "is not a time", "milliseconds above 0"))


LAYOUT = Seed004()
