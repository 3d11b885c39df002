"""Reading help: sentences that interpret a table, each shown only if it is true.

The rules are data (reading.toml); their facts are computed here.  A fact is a number, a word or
None if it is unknown; a rule about an unknown fact does not apply.

    of a row     backend, baseline, verdict, speedup_low, speedup_high, gain (speedup_low, never rounded up),
                 memory_ratio, memory_inverse,
                 bound (compute, memory), share and percent (its words; of the measured ceiling that
                 bounds the case), samples, busy_share, busy_percent, idle_percent, host_share, host (time),
                 plain (of the fastest: the best row of plain PyTorch beside it), over_plain_low,
                 over_plain_high (how often as fast as that), over_plain (the low end, never rounded up)
    of a table   device (gpu, cpu), dtype, tiles, sm_count, tiles_per_sm, celsius, clock_lowest,
                 clock_most, clock_share, baseline, plain_baseline, slower_than_baseline, rivals_left
"""

from __future__ import annotations

import math
import operator
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from attnbench.presentation import figures
from attnbench.presentation.block import backend_name
from attnbench.record import Record, Run
from attnbench.store.environments import environment_of
from attnbench.store.replicates import case_of

Facts = dict[str, Any]

PLAIN = ("eager", "sdpa-math", "hstu-eager")
"Backends in plain PyTorch, which fused kernels are expected to beat."
ALWAYS_BUSY = 0.97
"Share of a call's time in which kernels run, from which on the device does not wait for the host."
TILE_ROWS = 128
"Query rows per program of a typical attention kernel."
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """One sentence and its conditions."""

    name: str
    of: str
    when: Mapping[str, str]
    say: str
    brief: str

    def holds(self, facts: Facts) -> bool:
        """Return whether every condition is true; conditions on unknown facts are false."""
        return all(_is(facts.get(name), condition) for name, condition in self.when.items())


@cache
def rules() -> tuple[Rule, ...]:
    """All rules, in the order of their sentences."""
    data = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return tuple(Rule(**entry) for entry in data["rule"])


def read_table(run: Run, records: Sequence[Record]) -> list[str]:
    """Return sentences that interpret the table of these records.

    Args:
        run: with the environments.
        records: all timed ones, of one case and under the same conditions; replicates combined.
    """
    return [sentence for rule in rules() if (sentence := _sentence(rule, rule.say, *_facts(run, records)))]


def read_sweep(run: Run, records: Sequence[Record]) -> list[str]:
    """Interpret a table of many cases: each rule once, with the number of cases for which it holds."""
    cases: dict[str, list[Record]] = {}
    for record in records:
        cases.setdefault(case_of(record), []).append(record)
    facts = [_facts(run, members) for members in cases.values()]
    sentences = []
    for rule in rules():
        said = [sentence for one in facts if (sentence := _sentence(rule, rule.brief, *one))]
        if said:
            sentences.append(f"{len(said)} of {len(cases)} cases: {said[0]}")
    return sentences


def _sentence(rule: Rule, words: str, table: Facts, rows: Sequence[Facts]) -> str | None:
    """Return the sentence of a rule, or None if it does not hold."""
    candidates = {"table": [table], "fastest": rows[:1], "each": rows}[rule.of]
    true = [facts for facts in candidates if rule.holds(table | facts)]
    if not true:
        return None
    return words.format(**table | true[0] | {"backends": ", ".join(facts.get("backend", "") for facts in true)})


def _facts(run: Run, records: Sequence[Record]) -> tuple[Facts, list[Facts]]:
    """Return the facts of the table, and of its rows, the fastest first."""
    ordered = sorted((record for record in records if record.time and record.time.median_ms is not None),
                     key=lambda record: record.time.median_ms or math.inf if record.time else math.inf)  # fmt: skip
    base = next((record.speedup.baseline for record in ordered if record.speedup), None)
    own = next((record for record in ordered if record.backend == base), None)
    rows = [_row_facts(record, own) for record in ordered]
    if rows:
        rows[0] |= _over_plain(ordered, base)
    return _table_facts(run, ordered, base), rows


def _over_plain(ordered: Sequence[Record], baseline: str | None) -> Facts:
    """Return how many times as fast the fastest is as plain PyTorch, from the ends of both speed-ups' intervals."""
    fastest, *others = ordered
    plain = next((record for record in others if record.backend in PLAIN), None)
    if plain is None or fastest.backend in PLAIN or _is_wild(fastest) or _is_wild(plain):
        return {}
    (low, high), (plain_low, plain_high) = _interval(fastest, baseline), _interval(plain, baseline)
    if not (low and high and plain_low and plain_high):
        return {}
    over = low / plain_high
    return {
        "plain": backend_name(plain),
        "over_plain_low": over,
        "over_plain_high": high / plain_low,
        "over_plain": math.floor(100 * over) / 100,
    }


def _is_wild(record: Record) -> bool:
    """Return whether the interval of its time is wider than the value, so that nothing is said about it."""
    return record.time is not None and figures.wild_time(record.time)


def _interval(record: Record, baseline: str | None) -> tuple[float | None, float | None]:
    """Return the ends of the speed-up's interval; 1 for the baseline."""
    if record.backend == baseline:
        return 1.0, 1.0
    return (record.speedup.ci_low, record.speedup.ci_high) if record.speedup else (None, None)


def _table_facts(run: Run, records: Sequence[Record], baseline: str | None) -> Facts:
    if not records:
        return {}
    environment, case = environment_of(run, records[0]), records[0].case
    rivals = [record for record in records if record.speedup and record.backend != baseline]
    slower = [record for record in rivals if record.speedup and record.speedup.verdict == "slower"]
    dtype = case.get("dtype")
    facts: Facts = {
        "device": None if environment is None else "gpu" if environment.gpu else "cpu",
        "dtype": dtype if isinstance(dtype, str) else None,
        "baseline": baseline,
        "plain_baseline": "yes" if baseline in PLAIN else "no",
        "slower_than_baseline": len(slower),
        "rivals_left": len(rivals) - len(slower),
        "celsius": max((heat for record in records if record.power_w for heat in record.power_w.celsius
                        if heat is not None), default=None),
    }  # fmt: skip
    clocks = [clock for record in records if record.time for clock in record.time.sm_mhz if clock is not None]
    most = environment.sm_max_mhz if environment else None
    if clocks and most:
        facts |= {"clock_lowest": min(clocks), "clock_most": most, "clock_share": min(clocks) / most}
    count = environment.sm_count if environment else None
    tiles = _tiles(case)
    if count and tiles:
        facts |= {"tiles": tiles, "sm_count": count, "tiles_per_sm": tiles / count}
    return facts


def _tiles(case: Mapping[str, Any]) -> int | None:
    sizes = [case.get(name) for name in ("batch", "nheads", "seqlen")]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    batch, nheads, seqlen = (int(size or 0) for size in sizes)
    return batch * nheads * math.ceil(seqlen / TILE_ROWS)


def _row_facts(record: Record, baseline: Record | None) -> Facts:
    time, speedup = record.time, record.speedup
    facts: Facts = {"backend": backend_name(record)}
    if speedup and speedup.baseline != record.backend:
        low, high = (None, None) if speedup.verdict == "unclear" else (speedup.ci_low, speedup.ci_high)
        facts |= {"verdict": speedup.verdict, "speedup_low": low, "speedup_high": high}
        facts["gain"] = None if low is None else math.floor(100 * low) / 100
        facts |= _memory_facts(record, baseline)
    if time is None or not time.median_ms:
        return facts
    facts["samples"] = time.num_samples
    if _is_wild(record):
        return facts
    facts |= _roofline_facts(record)
    if time.busy_ms is not None:
        busy = time.busy_ms / time.median_ms
        facts |= {"busy_share": busy, "busy_percent": 100 * busy, "idle_percent": 100 * (1.0 - busy)}
    # A launch of many kernels fills the queue, so that the host waits for the device, which is never idle.
    if time.host_ms is not None and facts.get("busy_share", 0.0) < ALWAYS_BUSY:
        unit = figures.unit_for([time.host_ms])
        host = f"{figures.plain(time.host_ms * unit.per_ms)} {unit.name}"
        facts |= {"host_share": time.host_ms / time.median_ms, "host": host}
    return facts


def _memory_facts(record: Record, baseline: Record | None) -> Facts:
    own = record.memory.peak_allocated_mb if record.memory else None
    other = baseline.memory.peak_allocated_mb if baseline and baseline.memory else None
    return {"memory_ratio": other / own, "memory_inverse": own / other} if own and other else {}


def _roofline_facts(record: Record) -> Facts:
    """Return which measured ceiling bounds the case, and how much of it the row reaches.

    Executed FLOPs are used if the launch states them: a block-sparse kernel does fewer than the useful
    FLOPs of its case, and would seem to exceed the machine.  Ceilings are those of one device; the counter `ranks` says
    how many share the work.
    """
    work, time = record.work, record.time
    matmul, copy = (record.ceilings.get(name) for name in ("matmul_tflops", "copy_gbps"))
    if work is None or time is None or not time.median_ms or not matmul or not copy:
        return {}
    flops = work.flops if work.executed_flops is None else work.executed_flops
    compute_ms, memory_ms = flops / matmul / 1e9, work.bytes / copy / 1e6
    share = max(compute_ms, memory_ms) / (record.counters.get("ranks") or 1) / time.median_ms
    return {
        "bound": "compute" if compute_ms >= memory_ms else "memory",
        "share": share,
        "percent": figures.plain(100 * share, 2),
    }


def _is(fact: Any, condition: str) -> bool:
    """Evaluate ``">= 1.2, < 1.5"`` for a number, or equality for a word."""
    if fact is None:
        return False
    if isinstance(fact, str):
        return fact == condition
    parts = [part.split() for part in condition.split(",")]
    return all(COMPARE[sign](fact, float(bound)) for sign, bound in parts)
