"""The recorded differences between two runs of one row: versions, source, environment and kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnbench.record import Environment

if TYPE_CHECKING:
    from attnbench.store.history.trends import TrendPoint

NAMES = {
    "torch": "torch",
    "triton": "triton",
    "cuda": "CUDA",
    "driver": "driver",
    "cudnn": "cuDNN",
    "python": "Python",
    "os": "system",
    "power_limit_w": "power limit (W)",
    "cpu": "CPU",
    "cores": "cores",
    "sm_count": "SMs",
    "sm_max_mhz": "highest SM clock (MHz)",
}
"""Fields of an environment that affect times, the likeliest first."""

MOST_PACKAGES = 3
HASH = 8
"Letters of a source hash shown."


def differences(before: TrendPoint, after: TrendPoint) -> list[str]:
    """Return the differences between two consecutive points as texts such as ``torch 2.11.0 → 2.12.0``."""
    found = [
        *_changed("version", before.version, after.version),
        *_changed("source", _short(before.source_hash), _short(after.source_hash)),
    ]
    if before.environment is not None and after.environment is not None:
        found += _environment(before.environment, after.environment)
    if before.kernels and after.kernels and before.kernels != after.kernels:
        found.append(f"kernels {_list(before.kernels)} → {_list(after.kernels)}")
    return found


def _environment(before: Environment, after: Environment) -> Iterator[str]:
    for field, name in NAMES.items():
        yield from _changed(name, getattr(before, field), getattr(after, field))
    if before.gpu_uuid and after.gpu_uuid and before.gpu_uuid != after.gpu_uuid:
        yield "another card of the same kind"
    packages = [
        text
        for name in sorted(set(before.packages) | set(after.packages))
        for text in _changed(name, before.packages.get(name), after.packages.get(name))
    ]
    yield from packages[:MOST_PACKAGES]
    if len(packages) > MOST_PACKAGES:
        yield f"{len(packages) - MOST_PACKAGES} more packages"


def _changed(name: str, before: object, after: object) -> list[str]:
    if before == after:
        return []
    return [f"{name} {_shown(before)} → {_shown(after)}"]


def _shown(value: object) -> str:
    return "not known" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _short(text: str | None) -> str | None:
    return text[:HASH] if text else text


def _list(kernels: tuple[str, ...]) -> str:
    first = kernels[0] if len(kernels[0]) <= 40 else kernels[0][:39] + "…"
    return first if len(kernels) == 1 else f"{first} and {len(kernels) - 1} more"
