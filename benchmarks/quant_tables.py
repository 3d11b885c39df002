"""Rows of the tables of the result files of `flash_quant.py`, `flash_sparse_quant.py` and `ladder.py`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import flash_quant
import flash_sparse_quant
import ladder

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
    "of a copy",
    "bar",
)
FORMS = ("head dim", "length", "mask", "configuration", "default", "kernel, ms", "TFLOP/s", "of `fa3-fwd` in e4m3")
SPARSE = (
    "block",
    "head dim",
    "length",
    "mask",
    "density",
    "whole op, ms",
    "executed TFLOP/s",
    "E",
    "bar",
    "of `flash-sparse`",
    "bar",
    "kernel, ms",
    "executed TFLOP/s",
    "E",
)
SPARSE_FORMS = (
    "block",
    "head dim",
    "length",
    "mask",
    "configuration",
    "default",
    *(f"at {kept:g}" for kept in flash_sparse_quant.DENSITIES),
)


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
        preparation = flash_quant.preparation_ms(group, sweep.default)
        rate, share = flash_quant.preparation_rate(group, sweep.default)
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
                "?" if preparation is None else f"{preparation:.3f}",
                "?" if rate is None else f"{rate / 1e12:.2f}",
                "?" if rate is None else "" if share is None else f"{share:.2f}",
                "" if share is None else _bar((share, ""), flash_quant.COPY_BAR),
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


def sparse_rows(data: Mapping[str, Any]) -> list[list[str]]:
    """A row a shape and density of our block-sparse attention in 8 bits: the default's whole op, and its kernel."""
    found = []
    for group in data["groups"]:
        sweep = flash_sparse_quant.sweep_of(group)
        there = {(row["what"], row["density"]): row for row in group["rows"] if row["config"] in ("", sweep.default)}
        for what, density in there:
            if what != "op":
                continue
            op, kernel = there[what, density], there["kernel", density]
            efficiency, ratio = (flash_sparse_quant.speed_up(group, over, op) for over in ("dense op", "sparse"))
            of_kernel = flash_sparse_quant.speed_up(group, "dense kernel", kernel)
            found.append(
                [
                    *_sparse_shape(sweep),
                    f"{density:.2f}",
                    *_sparse_speed(sweep, op),
                    f"{efficiency * density:.2f}",
                    _bar((efficiency * density, ""), flash_sparse_quant.e_bar(sweep, density)),
                    f"{ratio:.3f}",
                    _bar((ratio, ""), 1.0 if sweep.seqlen >= flash_sparse_quant.FASTER_FROM else None),
                    *_sparse_speed(sweep, kernel),
                    f"{of_kernel * density:.2f}",
                ]
            )
    return found


def sparse_form_rows(data: Mapping[str, Any]) -> list[list[str]]:
    """A row a configuration of the groups that raced several: rates of its kernel over density."""
    found = []
    for group in data["groups"]:
        sweep = flash_sparse_quant.sweep_of(group)
        kernels = [row for row in group["rows"] if row["what"] == "kernel"]
        for config in dict.fromkeys(row["config"] for row in kernels):
            rates = [_sparse_speed(sweep, row)[1] for row in kernels if row["config"] == config]
            found.append([*_sparse_shape(sweep), f"`{config}`", "yes" if config == sweep.default else "", *rates])
    return found


def ladder_table(data: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A row a shape and step: TFLOP/s of each case, and the gain over the step it is held against; head and rows."""
    columns: dict[str, None] = {}
    found: dict[tuple[str, ...], dict[str, tuple[str, str]]] = {}
    for group in data["groups"]:
        column = ladder.of_group(group).said
        columns[column] = None
        shape = [group["block"]] * bool(group["block"]) + [str(group["headdim"])]
        for index, row in enumerate(group["rows"]):
            over = "" if index == 0 else row["over"] or group["rows"][index - 1]["name"]
            key = *shape, row["name"], f"`{row['config']}`", over
            gained = ladder.gain(group, index)
            cells = f"{ladder.tflops(group, row):.0f}", _interval(gained) if gained else ""
            found.setdefault(key, {})[column] = cells
    blocks = ["block"] if any(group["block"] for group in data["groups"]) else []
    head = [*blocks, "head dim", "step", "configuration", "over", *(one for name in columns for one in (name, "gain"))]
    rows = [[*key, *(cell for name in columns for cell in cells.get(name, ("", "")))] for key, cells in found.items()]
    return head, rows


def _interval(found: tuple[float, float | None, float | None]) -> str:
    ratio, low, high = found
    return f"{ratio:.3f}" + ("" if low is None or high is None else f" [{low:.3f}, {high:.3f}]")


def clock(data: Mapping[str, Any]) -> str:
    """SM clock of the rows, the median of each: lowest and highest."""
    read_out = [[mhz for mhz in row["sm_mhz"] if mhz] for group in data["groups"] for row in group["rows"]]
    seen = [statistics.median(clocks) for clocks in read_out if clocks]
    return f"SM clock {min(seen):.0f}-{max(seen):.0f} MHz" if seen else "SM clock not read"


def _shape(sweep: flash_quant.Sweep) -> list[str]:
    return [str(sweep.headdim), str(sweep.seqlen), "causal" if sweep.causal else "full"]


def _sparse_shape(sweep: flash_sparse_quant.Sweep) -> list[str]:
    return [sweep.block, str(sweep.headdim), str(sweep.seqlen), "causal" if sweep.causal else "full"]


def _sparse_speed(sweep: flash_sparse_quant.Sweep, row: Mapping[str, Any]) -> list[str]:
    return [f"{_ms(row):.3f}", f"{sweep.flops * row['density'] / _ms(row) / 1e9:.0f}"]


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
