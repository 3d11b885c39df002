"""Tables of rows that generate video: a step and its attention, whole generations, distances of latents.

They contain every row whose launch has the counter `denoising_steps`.  The attention is timed in place (phase
`attention`), and so are the copies that a backend needs (phase `copies`).  The column `without it` is the speed-up of a
step if attention took no time; the table of `reconcile` has the predicted gain of another attention.
"""

from __future__ import annotations

from collections.abc import Sequence

from attnbench.presentation import figures
from attnbench.presentation.block import Block, Column, Line, backend_name, filled
from attnbench.presentation.ranges import limit_cells
from attnbench.presentation.reconcile import attention_ms, limit_of
from attnbench.record import Record

STEPS = "denoising_steps"
MIB_OF_A_GIB = 1024
MOST_STEPS_SHOWN = 6
DISTANCE, COSINE = "latents_rel_l1_", "latents_cosine_"


def video(title: str, records: Sequence[Record], baseline: str | None) -> list[Block]:
    """Return a line for each record of a denoising step; nothing if there is none."""
    rows = [record for record in records if record.counters.get(STEPS) and record.time]
    if not rows:
        return []
    return [_steps(title, rows, baseline), *_latents(title, rows)]


def attention_share(record: Record) -> float | None:
    """Return the share of attention and its copies in a step, below 1; None if they take longer than the step."""
    step, attention = _step_ms(record), attention_ms(record)
    return attention / step if step and attention is not None and attention < step else None


def _step_ms(record: Record) -> float | None:
    return record.time.median_ms if record.time else None


def _steps(title: str, rows: Sequence[Record], baseline: str | None) -> Block:
    first = next((record for record in rows if record.backend == baseline), None)
    unit = figures.unit_for(ms for record in rows if (ms := _step_ms(record)) is not None)
    columns = [
        Column("backend", f"denoising step, {unit.name}", 0, number=False),
        Column("step", "step", 0),
        Column("attention", "attention", 1),
        Column("share", "attention %", 2),
        Column("measured", "measured x", 2),
        Column("measured_margin", "95 %", 3),
        Column("limit", "without it", 6),
        Column("limit_margin", "95 %", 7),
        Column("sparsity", "sparsity %", 3),
        Column("random", "predicted sparsity %, random weights", 3),
        Column("predicted", "predicted sparsity %", 3),
        Column("generation", "generation s", 4),
        Column("decode", "VAE s", 5),
        Column("peak", "peak GiB", 5),
        Column("calls", "calls", 8),
        Column("breaks", "graph breaks", 7),
        Column("recompiles", "recompiles", 8),
    ]
    lines = [Line(record, _cells(record, first, unit)) for record in rows]
    late = [
        backend_name(record)
        for record in rows
        if (step := _step_ms(record)) is not None
        and (attention := attention_ms(record)) is not None
        and attention >= step
    ]
    notes = [
        f"no share: {', '.join(late)}: attention took longer than the whole step; it has few samples, and another "
        "program or the host's launches may have delayed it"
    ] * bool(late)
    return Block(title, None, filled(columns, lines), lines, notes=tuple(notes))


def _cells(record: Record, first: Record | None, unit: figures.Unit) -> dict[str, str]:
    counters, share, step = record.counters, attention_share(record), _step_ms(record)
    gain = record.speedup if first and record is not first else None
    measured = figures.ratio(gain) if gain and first and gain.baseline == first.backend else ("", "")
    peak = counters.get("generation_peak_mb")
    return {
        "backend": backend_name(record),
        "step": figures.plain(unit.of(step)),
        "attention": figures.plain(unit.of(attention_ms(record))),
        "share": "" if share is None else f"{100 * share:.0f}",
        "measured": measured[0],
        "measured_margin": measured[1],
        **limit_cells(limit_of(record)),
        **_sparsity(record),
        "generation": figures.plain(counters.get("generation_s")),
        "decode": figures.plain(counters.get("decode_s")),
        "peak": figures.plain(None if peak is None else peak / MIB_OF_A_GIB),
        "calls": _count(counters.get("attention_calls")),
        "breaks": _count(counters.get("graph_breaks")),
        "recompiles": _count(counters.get("recompiles")),
    }


def _sparsity(record: Record) -> dict[str, str]:
    """Format the share of pairs that a map omits; if it was predicted from random weights, always with these words."""
    share = record.counters.get("actual_sparsity")
    if share is None:
        return {}
    random = record.case.get("weights") is None
    key = "sparsity" if not record.counters.get("maps_predicted") else "random" if random else "predicted"
    return {key: figures.plain(100 * share, 3)}


def _latents(title: str, rows: Sequence[Record]) -> list[Block]:
    """Return the distance of the latents from the baseline's, by step; nothing if no other row generated."""
    steps = sorted(
        {int(name.removeprefix(DISTANCE)) for record in rows for name in record.counters if name.startswith(DISTANCE)}
    )
    if not steps:
        return []
    shown = sorted({steps[round(n * (len(steps) - 1) / (MOST_STEPS_SHOWN - 1))] for n in range(MOST_STEPS_SHOWN)})
    columns = [
        Column("backend", "latents, relative L1 after step", 0, number=False),
        *(Column(f"{DISTANCE}{step}", str(step), 1 + (step != steps[-1])) for step in shown),
        Column("cosine", "cosine at the end", 4),
        Column("psnr", "PSNR dB", 3),
        Column("ssim", "SSIM", 3),
        Column("lpips", "LPIPS", 3),
    ]
    lines = [
        Line(
            record,
            {
                "backend": backend_name(record),
                "cosine": _cosine(record.counters.get(f"{COSINE}{steps[-1]}")),
                "psnr": figures.plain(record.counters.get("frames_psnr_db")),
                "ssim": figures.plain(record.counters.get("frames_ssim")),
                "lpips": _distance(record.counters.get("frames_lpips")),
                **{
                    key: _distance(record.counters[key])
                    for step in shown
                    if (key := f"{DISTANCE}{step}") in record.counters
                },
            },
        )
        for record in rows
        if f"{DISTANCE}{steps[-1]}" in record.counters
    ]
    return [Block(title, None, filled(columns, lines), lines)] if lines else []


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _distance(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _cosine(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"
