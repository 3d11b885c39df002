"""The table of rows that serve requests: end-to-end latency, host and GPU times, throughput, hits, attention's share.

It contains every row whose launch has the counter `requests`.  End to end is the time of the timer `wall`; the GPU's
part is that of a timer that reads the device only.  Attention's share refers to the sum of the phases, in which the
phases of one layer count `layers` times; the column `without it` is the speed-up of a step if attention took no time,
with the range that the intervals of the phases allow.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from attnbench.presentation import figures
from attnbench.presentation.block import Block, Column, Line, backend_name, filled
from attnbench.presentation.ranges import Range, added, limit, limit_cells, range_of
from attnbench.record import Record, Time
from attnbench.stats.summary import is_supported

END_TO_END = "wall"
OF_THE_DEVICE = ("cupti", "events", "graph")
OF_A_LAYER = ("projection", "append", "attention", "output")
ATTENTION = "attention"
REQUESTS, TOKENS = "requests", "tokens"
PER_SECOND = (REQUESTS, TOKENS)
EVICTED = "evicted_users"
STEP = re.compile(r"cached (\d+)")
"Names of phases that are whole steps, in a series of growing histories."
FOUND = ("hit_tokens", "host_hit_tokens", "missed_tokens")


def serving(title: str, records: Sequence[Record]) -> list[Block]:
    """Return a line for each record that serves requests; nothing if none does."""
    served = [record for record in records if record.counters.get(REQUESTS) and record.time]
    if not served:
        return []
    unit = figures.unit_for(
        time.median_ms
        for record in served
        if (time := end_to_end(record) or record.time) and time.median_ms is not None
    )
    columns = [
        Column("backend", f"served, {unit.name}", 0, number=False),
        Column("p50", "p50", 0),
        Column("p95", "p95", 1),
        Column("p99", "p99", 0),
        Column("host", "host", 3),
        Column("gpu", "GPU", 2),
        Column(REQUESTS, "requests/s", 2),
        Column(TOKENS, "tokens/s", 4),
        Column("hit", "hit %", 4),
        Column("host_hit", "host hit %", 5),
        Column("evicted", "evicted", 5),
        Column("pool", "pool MiB", 7),
        Column("host_pool", "host pool MiB", 8),
        Column("share", "attention %", 3),
        Column("limit", "without it", 6),
        Column("limit_margin", "95 %", 7),
    ]
    lines = [Line(record, _cells(record, unit)) for record in served]
    return [Block(title, None, filled(columns, lines), lines)]


def steps_of(record: Record) -> dict[int, Time]:
    """Return the times of single steps of a record with growing histories, by a user's cached tokens; else none."""
    found = {}
    for name, time in record.phases.items():
        if (match := STEP.fullmatch(name)) is not None:
            found[int(match[1])] = time
    return found


def growth(title: str, records: Sequence[Record]) -> list[Block]:
    """Return a line for each record with growing histories: times of its first step, of doublings and of its last."""
    grown = [(record, steps) for record in records if (steps := steps_of(record))]
    if not grown:
        return []
    counts = _milestones(sorted({count for _, steps in grown for count in steps}))
    unit = figures.unit_for(time.median_ms for _, steps in grown for time in steps.values() if time.median_ms)
    columns = [Column("backend", f"p50 by cached tokens, {unit.name}", 0, number=False)]
    columns += [Column(str(count), str(count), 0 if count in (counts[0], counts[-1]) else 1) for count in counts]
    lines = [
        Line(
            record,
            {"backend": backend_name(record)}
            | {str(count): figures.plain(unit.of(steps[count].median_ms)) for count in counts if count in steps},
        )
        for record, steps in grown
    ]
    return [Block(title, None, filled(columns, lines), lines)]


def _milestones(counts: Sequence[int]) -> list[int]:
    """Return the first of ascending counts, each that is at least twice the previously chosen one, and the last."""
    found = list(counts[:1])
    for count in counts[1:]:
        if count >= 2 * found[-1] and count > found[-1]:
            found.append(count)
    return found if found[-1:] == list(counts[-1:]) else [*found, counts[-1]]


def end_to_end(record: Record) -> Time | None:
    """Return the host's time from requests to logits; None if only the device was timed."""
    return next((time for time in (record.time, *record.timers.values()) if time and time.timer == END_TO_END), None)


def of_the_device(record: Record) -> Time | None:
    """Return the device's time; None on a CPU."""
    times = {time.timer: time for time in (record.time, *record.timers.values()) if time}
    return next((times[name] for name in OF_THE_DEVICE if name in times), None)


def attention_share(record: Record) -> float | None:
    """Return attention's share of the sum of phases, from 0 to 1; None if phases or layers are unknown."""
    found = _attention_and_rest(record)
    if found is None:
        return None
    attention, rest = found
    return attention.value / (attention.value + rest.value)


def _attention_and_rest(record: Record) -> tuple[Range, Range] | None:
    """Return the attention phase of all layers and the sum of all other phases, ms; None if these are unknown."""
    layers, found = record.counters.get("layers"), {}
    for name, time in record.phases.items():
        if (phase := range_of(time)) is None or not layers:
            return None
        found[name] = phase.times(layers if name in OF_A_LAYER else 1)
    attention, rest = found.pop(ATTENTION, None), added(found.values())
    return None if attention is None or not attention.value + rest.value else (attention, rest)


def hit_share(record: Record, name: str) -> float | None:
    """Return the share of history tokens found on the device (hit_tokens) or in host memory (host_hit_tokens)."""
    own, total = record.counters.get(name), 0.0
    for one in FOUND:
        if (count := record.counters.get(one)) is None:
            return None
        total += count
    return own / total if own is not None and total else None


def _cells(record: Record, unit: figures.Unit) -> dict[str, str]:
    whole, device, counters = end_to_end(record), of_the_device(record), record.counters
    cells = {"backend": backend_name(record)}
    if whole is not None:
        cells |= {name: figures.plain(unit.of(value)) for name, value in _percentiles(whole).items()}
        seconds = whole.median_ms / 1e3 if whole.median_ms else None
        cells |= {
            name: figures.plain(count / seconds)
            for name in PER_SECOND
            if (count := counters.get(name)) is not None and seconds
        }
    if device is not None:
        cells |= {
            "gpu": figures.plain(unit.of(device.median_ms)),
            "host": figures.plain(unit.of(whole.host_ms if whole else None)),
        }
    share, parts = attention_share(record), _attention_and_rest(record)
    cells |= limit_cells(limit(*parts) if parts and parts[1].value else None)
    return cells | {
        "hit": _percent(hit_share(record, "hit_tokens")),
        "host_hit": _percent(hit_share(record, "host_hit_tokens")),
        "evicted": f"{counters[EVICTED]:g}" if EVICTED in counters else "",
        "pool": figures.plain(counters.get("pool_mb")),
        "host_pool": figures.plain(counters.get("host_pool_mb")),
        "share": _percent(share),
    }


def _percentiles(time: Time) -> dict[str, float | None]:
    """Return the percentiles that the number of samples supports; a file without that number is believed."""
    count = time.num_samples
    tails = {"p95": (0.95, time.p95_ms), "p99": (0.99, time.p99_ms)}
    known = {name: ms for name, (share, ms) in tails.items() if count is None or is_supported(share, count)}
    return {"p50": time.median_ms, **known}


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f}"
