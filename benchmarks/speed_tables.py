"""Speeds of our flash and HSTU kernels on an H200 against what is wanted of them, each wish a row, out of many runs.

Of a wish the worst and the best row count, not the mean.  Rows of `flash-triton` are those of configurations that are
the defaults today, whatever they were when they were measured.  `tables.py` writes the table down.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import flash
import hstu
import hstu_bsa
import hstu_jagged
import kernel_tables

from attnbench.backends.registry import all_backends
from attnbench.kernels.hstu.dense.configs import hopper_columns_config
from attnbench.record import Record
from attnbench.workloads.attention.case import AttentionCase

HEAD = ("what", "measured at", "bar", "worst to best", "rows at the bar", "aim", "rows at the aim", "runs")
HOPPER = (9, 0)
COPY = 16, 0.8, 0.9
LONG = 131072, 0.5, 0.75
"Decode, of the copy rate: the least batch, or the keys at batch 1, that a bar and an aim are for."
FEW_US = 25.0, 15.0
"Bar and aim of a call with few queries on a long cache."
MANY_PAIRS = 512
"Heads of all sequences in the measured shapes, at least."


@dataclass(frozen=True)
class Point:
    """One measured row: where, and the figure."""

    at: Mapping[str, int]
    value: float


@dataclass(frozen=True)
class Wish:
    """What is wanted, and how its figures are read from runs."""

    what: str
    bar: float | None
    aim: float | None
    runs: tuple[str, ...]
    points: Callable[[Path], Iterable[Point]]
    most: bool = False
    "At most the bar, in µs; else at least, a ratio."

    def row(self, paths: Mapping[str, Path]) -> list[str]:
        """Cells of `HEAD`."""
        found = [point for name in self.runs for point in self.points(paths[name])]
        if not found:
            return [self.what, "", self._text(self.bar), "not measured", "", self._text(self.aim), "", ""]
        values = sorted((point.value for point in found), reverse=self.most)
        digits = ".1f" if self.most else ".3f"
        return [
            self.what,
            places(point.at for point in found),
            self._text(self.bar),
            f"{values[0]:{digits}} to {values[-1]:{digits}}" + " µs" * self.most,
            self._reached(values, self.bar),
            self._text(self.aim),
            self._reached(values, self.aim),
            ", ".join(f"`{paths[name].stem}`" for name in self.runs),
        ]

    def _text(self, wanted: float | None) -> str:
        return "" if wanted is None else f"at most {wanted:g} µs" if self.most else f"{wanted:g}"

    def _reached(self, values: Sequence[float], wanted: float | None) -> str:
        if wanted is None:
            return ""
        there = sum(value <= wanted if self.most else value >= wanted for value in values)
        return f"{there} of {len(values)}" + (", **missed**" if there < len(values) else "")


def places(found: Iterable[Mapping[str, int]]) -> str:
    """Every value of each axis: ``dims 64, 128; rows 4096``."""
    axes: dict[str, set[int]] = {}
    for at in found:
        for name, value in at.items():
            axes.setdefault(name, set()).add(value)
    return "; ".join(f"{name} {', '.join(map(str, sorted(values)))}" for name, values in axes.items())


def is_default(record: Record) -> bool:
    """Whether a record's configuration is today's default of its case on an H200, with a Triton that all are for."""
    backend = all_backends()["flash-triton"]
    names = {field: record.case[field] for field in AttentionCase.__dataclass_fields__ if field in record.case}
    shape = replace(backend.shape(AttentionCase(**names), HOPPER), triton=None)
    return any(
        note.partition(",")[0] == f"{part.side} {part.default(shape)}"
        for part in backend.family().parts
        for note in record.notes
    )


def flash_points(mode: str, dims: Sequence[int], lengths: range, peer: str) -> Callable[[Path], list[Point]]:
    """Ours over a peer in one mode, of today's defaults, where rows are as many as keys."""

    def points(path: Path) -> list[Point]:
        run = kernel_tables.load(path)
        ours = {one.backend for one in run.records if one.backend.partition("[")[0] == "flash-triton"}
        return [
            Point({"dims": row.headdim, "rows": row.seqlen}, row.peers[peer][1])
            for row in flash.rows_of(replace(run, records=of_defaults(run.records)), sorted(ours))
            if row.mode == mode and row.headdim in dims and row.seqlen in lengths and peer in row.peers
        ]

    return points


def of_defaults(records: Iterable[Record]) -> tuple[Record, ...]:
    """Records without the other configurations of ours."""
    return tuple(one for one in records if one.backend.partition("[")[0] != "flash-triton" or is_default(one))


def decode_points(of: Callable[[Record, Record | None], float | None]) -> Callable[[Path], list[Point]]:
    """A figure of each group with 32 query heads on 8, from our record and that of the fastest peer in it."""

    def points(path: Path) -> list[Point]:
        found = []
        for group in kernel_tables.groups(kernel_tables.load(path)).values():
            by_name = {one.backend: one for one in group if one.time}
            own = by_name.get("flash-triton")
            if own is None or (own.case["nheads"], own.case["nheads_kv"]) != (32, 8):
                continue
            at = {"queries": own.case["seqlen"], "keys": own.case["seqlen_k"], "batch": own.case["batch"]}
            peers = {
                one.time.median_ms: one
                for name, one in by_name.items()
                if one.time and name.startswith(("fa3-fwd", "flashinfer"))
            }
            if (value := of(own, peers[min(peers)] if peers else None)) is not None:
                found.append(Point(at, value))
        return found

    return points


def copy_rate(fits: Callable[[Mapping[str, Any]], bool]) -> Callable[[Record, Record | None], float | None]:
    """Of cases that fit: the rate of ours over the copy rate of that run."""

    def of(own: Record, _: Record | None) -> float | None:
        if not fits(own.case) or own.rate is None or own.rate.gbps is None:
            return None
        return own.rate.gbps / own.ceilings["copy_gbps"]

    return of


def hstu_backward(path: Path) -> list[Point]:
    """Ours over NVIDIA's, with today's default: named in a run, or the default of the run if that had its form of dQ."""
    found = []
    for row in hstu.rows_of(kernel_tables.load(path), hstu_bsa.PEER):
        if row.mode != "bwd" or not row.peer:
            continue
        _, dim, length = row.shape
        default = hopper_columns_config(HOPPER, 2, dim, dim, length, MANY_PAIRS)
        name = f"hstu-triton[a{default.short}]" if default and default.serial else "hstu-triton"
        if name in row.ours:
            found.append(Point({"dims": dim, "rows": length}, row.ours[name][1]))
    return found


def uneven(path: Path) -> list[Point]:
    """Uneven lengths over whole ones, 2048 rows."""
    return [
        Point({"dims": int(row[1]), "rows": int(row[2])}, float(row[5]))
        for row in kernel_tables.jagged_rows(kernel_tables.load(path))
        if row[2] == "2048"
    ]


def few_queries(path: Path) -> list[Point]:
    """Microseconds of a layer in a graph: 256 new rows and 128 candidates on 4,096 cached ones, as one user's step."""
    return [
        Point({"queries": 384, "keys": 4480, "dims": int(item["row"].split("-d")[1])}, item["us"]["contiguous"])
        for item in json.loads(path.read_text("utf-8"))["rows"]
        if item["row"].startswith("1x128-")
    ]


def sparse(length: int) -> Callable[[Path], list[Point]]:
    """NVIDIA's dense time over ours at one length."""

    def points(path: Path) -> list[Point]:
        found = []
        for group in kernel_tables.groups(kernel_tables.load(path)).values():
            by_name = {one.backend: one for one in group if one.time}
            own, dense = by_name.get("hstu-bsa-triton"), by_name.get(hstu_bsa.PEER)
            if own and dense and own.case["seqlen"] == length:
                found.append(Point({"dims": own.case["attn_dim"], "rows": length}, hstu_bsa.ratio(dense, own)[0]))
        return found

    return points


def wishes() -> list[Wish]:
    """Every row of the table; bars and aims are those of the benchmarks."""
    long, short = range(4096, 32769), range(512, 2049)
    powers, between = (64, 128, 256), (80, 96, 160, 192)

    def forward(what: str, dims: Sequence[int], lengths: range, *runs: str) -> Wish:
        bar = flash.bar_of("fwd", dims[0], lengths.start)
        return Wish(
            f"flash forward, share of FlashAttention 3, {what}",
            bar.least[flash.FA3],
            bar.aim[flash.FA3],
            runs,
            flash_points("fwd", dims, lengths, flash.FA3),
        )

    wide, narrow = (flash.bar_of("bwd", dim, 4096) for dim in (256, 64))
    peers = decode_points(lambda own, peer: flash.ratio_of(peer, own)[0] if peer else None)
    decoding = "decode", "decode flashinfer"
    serial = tuple(f"serial bwd {dim}" for dim in (128, 64, 32))
    return [
        forward("64, 128, 256 dims, 4096 to 32768 rows", powers, long, "flash fwd", "flash sweep", "flash fwd 32768"),
        forward("80, 96, 160, 192 dims, 4096 to 32768 rows", between, long, "flash fwd 96", "flash fwd dims"),
        forward(
            "512 to 2048 rows",
            (*powers, *between),
            short,
            *("flash fwd", "flash sweep", "flash fwd 96", "few tiles 64", "few tiles 96", "few tiles 128"),
        ),
        Wish(
            "decode, share of the fastest of FlashAttention 3 with split keys and FlashInfer",
            0.95,
            None,
            decoding,
            peers,
        ),
        Wish(
            f"decode, share of the copy rate, batch {COPY[0]} and more",
            *COPY[1:],
            decoding,
            decode_points(copy_rate(lambda case: case["batch"] >= COPY[0])),
        ),
        Wish(
            f"decode, share of the copy rate, batch 1 with {LONG[0]} keys",
            *LONG[1:],
            decoding,
            decode_points(copy_rate(lambda case: (case["batch"], case["seqlen_k"]) == (1, LONG[0]))),
        ),
        Wish(
            "flash backward, share of cuDNN, 256 dims",
            wide.least[flash.CUDNN],
            wide.aim[flash.CUDNN],
            ("flash bwd 256",),
            flash_points("bwd", (256,), range(512, 32769), flash.CUDNN),
        ),
        Wish(
            "flash backward, share of cuDNN, 64 and 128 dims, 512 to 32768 rows",
            narrow.least[flash.CUDNN],
            narrow.aim[flash.CUDNN],
            ("flash bwd",),
            flash_points("bwd", (64, 128), range(512, 32769), flash.CUDNN),
        ),
        Wish(
            "the same, share of FlashAttention 3's backward",
            None,
            narrow.least[flash.FA3_BACKWARD],
            ("flash bwd",),
            flash_points("bwd", (64, 128), range(512, 32769), flash.FA3_BACKWARD),
        ),
        Wish(
            "dense HSTU backward over NVIDIA's, whole sequences", *hstu.BACKWARD, ("dense bwd", *serial), hstu_backward
        ),
        Wish("the same, uneven lengths", *hstu.BACKWARD, ("serial bwd uneven",), hstu_backward),
        Wish(
            "dense HSTU forward, uneven lengths over whole ones, 2048 rows",
            hstu_jagged.BAR,
            hstu_jagged.AIM,
            ("uneven",),
            uneven,
        ),
        Wish("dense HSTU, few queries on a long cache, 4 heads", *FEW_US, ("few queries",), few_queries, most=True),
        *(
            Wish(
                f"block-sparse HSTU forward over NVIDIA's dense one, {length} rows",
                *hstu_bsa.BARS["fwd", length],
                (run,),
                sparse(length),
            )
            for length, run in ((8192, "sparse fwd"), (16384, "sparse 16384"))
        ),
    ]


def rows(paths: Mapping[str, Path]) -> list[list[str]]:
    """A row a wish.

    Args:
        paths: run files, by the names that `wishes` gives them.
    """
    return [wish.row(paths) for wish in wishes()]
