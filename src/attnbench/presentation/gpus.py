"""Differences between the GPUs of a run, from the yardsticks measured on each.

Every group times the same matmul and the same copy in its rounds (docs/measuring.md), so a run over several GPUs needs
no separate calibration.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from attnbench.presentation import figures
from attnbench.record import Run
from attnbench.store.environments import gpu_names, gpu_of


def spread_of_gpus(run: Run) -> list[str]:
    """Return a sentence for each yardstick timed on at least two GPUs; nothing for a run on one GPU."""
    return list(_sentences(run))


def _sentences(run: Run) -> Iterator[str]:
    names = gpu_names(run)
    groups: dict[str, dict[str, dict[str, float]]] = {}
    for record in run.records:
        gpu = names.get(gpu_of(run, record) or "")
        for name, one in record.yardsticks.items() if gpu else ():
            # All records of a group that were measured together contain the same samples.
            groups.setdefault(name, {}).setdefault(gpu or "", {})[record.group] = median(one.samples_ms)
    for name, by_gpu in groups.items():
        if len(by_gpu) > 1:
            yield _sentence(name, by_gpu)


def _sentence(name: str, by_gpu: dict[str, dict[str, float]]) -> str:
    medians = {gpu: median(times.values()) for gpu, times in by_gpu.items()}
    unit = figures.unit_for(list(medians.values()))
    ordered = sorted(medians, key=lambda gpu: medians[gpu])
    apart = 100 * (medians[ordered[-1]] / medians[ordered[0]] - 1)
    shown = ", ".join(
        f"{gpu} {figures.plain(medians[gpu] * unit.per_ms, figures.STEADY_DIGITS)} {unit.name} ({len(by_gpu[gpu])})"
        for gpu in ordered
    )
    return f"GPUs {apart:.1f} % apart by the yardstick {name}: {shown}; in brackets the groups that timed it"
