"""Additional columns of sparse rows: two rates, efficiency, quality of a predicted map, and the break-even length.

    TFLOP/s             executed: FLOPs of the visible pairs that the map keeps, over the time
    effective TFLOP/s   FLOPs of the dense problem over the same time: the rate that a dense kernel would need
    density             ratio of these FLOPs, without the time
    E                   speed-up over the dense baseline x density: 1 if time falls in proportion to work
    break-even          the length from which a backend is faster than the dense baseline

E and break-even exist where the baseline computes dense attention (``dense[…]``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attnbench.presentation import figures
from attnbench.presentation.block import Block, Column, Line, backend_name, filled
from attnbench.record import Record

WORKLOAD = "sparse"
DENSE = "dense"
LENGTHS = ("seqlen", "seqlen_k")
SAID = ("density", "causal")
"Fields that are worded separately in every break-even sentence."
CHOSEN = ("density", "mass_kept", "dense_rel_l1")
"Counters of a map chosen by a launch (`workloads.sparse.choice`)."


def effective(record: Record) -> float | None:
    """Dense FLOPs over the median time, TFLOP/s."""
    return record.rate.effective_tflops if record.rate else None


def density(record: Record) -> float | None:
    """Share of the dense problem's work that the row computes; None for other workloads."""
    work = record.work
    return work.flops / work.dense_flops if work and work.dense_flops else None


def efficiency(record: Record) -> float | None:
    """Speed-up over dense attention x density; None if the baseline is not dense, or the row is."""
    share, speedup = density(record), record.speedup
    if share is None or speedup is None or not _dense(speedup.baseline) or _dense(record.backend):
        return None
    return speedup.ratio * share


def cells(record: Record) -> dict[str, str]:
    """Texts of the three columns."""
    return {
        "effective": figures.plain(effective(record)),
        "density": figures.plain(density(record), 3),
        "efficiency": figures.plain(efficiency(record), 3),
    }


def maps(title: str, records: Sequence[Record]) -> list[Block]:
    """Return the quality of maps that launches predicted; nothing if none did."""
    chosen = [record for record in records if all(record.counters.get(name) is not None for name in CHOSEN)]
    if not chosen:
        return []
    columns = [
        Column("backend", "map by", 0, number=False),
        Column("density", "density", 0),
        Column("sparsity", "sparsity %", 1),
        Column("mass", "softmax mass kept %", 0),
        Column("distance", "rel L1 to dense", 0),
    ]
    lines = [Line(record, _map_cells(record.counters, backend_name(record))) for record in chosen]
    return [Block(title, None, filled(columns, lines), lines)]


def break_even(records: Sequence[Record]) -> list[str]:
    """Return a sentence for each backend that was compared with dense attention at several lengths."""
    found: dict[tuple[Any, ...], dict[int, Record]] = {}
    for record in records:
        if record.workload == WORKLOAD and efficiency(record) is not None:
            key = tuple((name, value) for name, value in sorted(record.case.items()) if name not in LENGTHS)
            found.setdefault((record.backend, key), {})[int(record.case["seqlen"])] = record
    several = {key: by_length for key, by_length in found.items() if len(by_length) > 1}
    cases = [dict(key) for _, key in several]
    varied = [
        name
        for name in (cases[0] if cases else ())
        if name not in SAID and any(case.get(name) != cases[0][name] for case in cases)
    ]
    sentences = []
    for (backend, key), by_length in several.items():
        case = dict(key)
        which = "".join(f", {name}={case.get(name)}" for name in varied) + ", causal" * bool(case.get("causal"))
        sentences.append(f"break-even: {backend} {_pays(by_length)} (density {_share(by_length)}{which})")
    return sentences


def _pays(by_length: Mapping[int, Record]) -> str:
    lengths = sorted(by_length)
    ratios = [speedup.ratio if (speedup := by_length[length].speedup) else math.nan for length in lengths]
    speedup = by_length[lengths[0]].speedup
    baseline = speedup.baseline if speedup else DENSE
    # First index from which on all are faster.
    start = next((i for i in range(len(lengths)) if all(ratio >= 1 for ratio in ratios[i:])), None)
    if start is None:
        return f"is not faster than {baseline} at {lengths[-1]} rows"
    if start == 0:
        return f"is faster than {baseline} at every length from {lengths[0]} rows on"
    below, above = math.log(ratios[start - 1]), math.log(ratios[start])
    share = below / (below - above) if below != above else 1.0
    at = math.exp(math.log(lengths[start - 1]) + share * math.log(lengths[start] / lengths[start - 1]))
    return f"is faster than {baseline} from about {at:.0f} rows on"


def _share(by_length: Mapping[int, Record]) -> str:
    shares = [share for record in by_length.values() if (share := density(record)) is not None]
    low, high = (figures.plain(edge(shares), 2) for edge in (min, max))
    return low if low == high else f"{low} to {high}"


def _map_cells(counters: Mapping[str, float | None], name: str) -> dict[str, str]:
    share, kept, distance = (counters[one] or 0.0 for one in CHOSEN)
    return {
        "backend": name,
        "density": figures.plain(share, 3),
        "sparsity": figures.plain(100 * (1 - share), 3),
        "mass": figures.plain(100 * kept, 4),
        "distance": f"{distance:.2g}",
    }


def _dense(backend: str) -> bool:
    return backend.partition("[")[0] == DENSE
