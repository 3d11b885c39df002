"""Rows of the tables of `flash_quant.py`'s result file."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import flash_quant

SPEED = (
    "head dim",
    "length",
    "mask",
    "kernel, ms",
    "TFLOP/s",
    "of `fa3-fwd` in e4m3",
    "bar",
    "whole op, ms",
    "TFLOP/s",
    "of the fastest in 16 bits",
    "which",
    "bar",
    "of `sage1`",
    "preparation, ms",
    "TB/s",
)
FORMS = ("head dim", "length", "mask", "configuration", "default", "kernel, ms", "TFLOP/s", "of `fa3-fwd` in e4m3")


def speed_rows(data: Mapping[str, Any]) -> list[list[str]]:
    """A row a shape: the default's kernel and whole op, each beside what it is held against, and the preparation."""
    found = []
    for group in data["groups"]:
        sweep = flash_quant.sweep_of(group)
        rows = {row["what"]: row for row in group["rows"] if row["config"] in ("", sweep.default)}
        if "kernel" not in rows:
            continue
        kernel, op = rows["kernel"], rows["op"]
        best = flash_quant.faster(group, op, flash_quant.SIXTEEN)
        preparation = sum(_ms(row) for row in group["rows"] if row["what"] in ("smooth", "quantise"))
        found.append(
            [
                *_shape(sweep),
                *_speed(sweep, kernel),
                *_held(group, kernel, (flash_quant.FP8,), flash_quant.KERNEL_BAR),
                *_speed(sweep, op),
                _ratio(best),
                f"`{best[1]}`" if best else "",
                _bar(best, flash_quant.OP_BARS[sweep.headdim].get(sweep.seqlen)),
                _ratio(flash_quant.faster(group, op, ("sage1",))),
                f"{preparation:.3f}",
                f"{flash_quant.prepared_bytes(sweep) / preparation / 1e9:.2f}",
            ]
        )
    return found


def form_rows(data: Mapping[str, Any]) -> list[list[str]]:
    """A row a shape and configuration, where several were measured."""
    found = []
    for group in data["groups"]:
        sweep = flash_quant.sweep_of(group)
        kernels = [row for row in group["rows"] if row["what"] == "kernel"]
        for row in kernels if len(kernels) > 1 else ():
            found.append(
                [
                    *_shape(sweep),
                    f"`{row['config']}`",
                    "yes" if row["config"] == sweep.default else "",
                    *_speed(sweep, row),
                    _ratio(flash_quant.faster(group, row, (flash_quant.FP8,))),
                ]
            )
    return found


def clock(data: Mapping[str, Any]) -> str:
    """SM clock of the rows, the median of each: lowest and highest."""
    read_out = [[mhz for mhz in row["sm_mhz"] if mhz] for group in data["groups"] for row in group["rows"]]
    seen = [statistics.median(clocks) for clocks in read_out if clocks]
    return f"SM clock {min(seen):.0f}-{max(seen):.0f} MHz" if seen else "SM clock not read"


def _shape(sweep: flash_quant.Sweep) -> list[str]:
    return [str(sweep.headdim), str(sweep.seqlen), "causal" if sweep.causal else "full"]


def _ms(row: Mapping[str, Any]) -> float:
    return statistics.median(row["samples_ms"])


def _speed(sweep: flash_quant.Sweep, row: Mapping[str, Any]) -> list[str]:
    return [f"{_ms(row):.3f}", f"{sweep.flops / _ms(row) / 1e9:.0f}"]


def _ratio(found: tuple[float, str] | None) -> str:
    return f"{found[0]:.3f}" if found else ""


def _bar(found: tuple[float, str] | None, least: float | None) -> str:
    if found is None or least is None:
        return ""
    return f"{least:.2f} " + ("reached" if found[0] >= least else "**missed**")


def _held(group: Mapping[str, Any], row: Mapping[str, Any], names: tuple[str, ...], least: float) -> list[str]:
    found = flash_quant.faster(group, row, names)
    return [_ratio(found), _bar(found, least)]
