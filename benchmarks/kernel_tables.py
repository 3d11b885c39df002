"""Rows of the tables that hold our kernels against others: run files of `flash.py`, `hstu.py`,
`hstu_bsa.py`, `hstu_jagged.py`, and captures of `attnbench profile ncu`.

`tables.py` writes them down.  A ratio is ours over the peer's speed, median within rounds, with its interval.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import flash
import flash_sparse
import hstu
import hstu_bsa
import hstu_jagged

from attnbench.record import Record, Run
from attnbench.store.runfile import read

SPARSE_DENSITIES = (0.1, 0.3, 0.5, 0.7, 1.0)
DENSE = ("hstu-fbgemm", "hstu-triton")
"""Dense backends that block-sparse attention is held against."""
LADDER = {
    128: (
        ("portable", "m128n64w8s3"),
        ("tensor maps", "m128n64w8s3-tma"),
        ("large tiles", "m128n128w8s2-tma"),
        ("fused", "m128n128w8s2-tma-fused"),
        ("portable persistent", "m128n64w8s3-tma-fused-persistent"),
        ("ws", "m128n128w8s2-tma-ws"),
        ("pp", "m128n128w8s2-tma-pp"),
        ("persistent", "m128n128w8s2-tma-ws-persistent"),
        ("few", "m128n128w8s2-tma-ws-few"),
        ("ticket", "m128n128w8s2-tma-ws-ticket"),
        ("lazy", "m128n128w8s2-tma-ws-lazy-ticket"),
        ("deep", "m128n128w8s2-tma-ws-deep-lazy-ticket"),
        ("section", "m128n128w8s2-tma-ws-deep-lazy-ticket-l16"),
    ),
    64: (
        ("portable", "m128n64w8s3"),
        ("large tiles", "m128n128w8s2-tma"),
        ("portable mix", "m128n128w8s2-tma-fused-mix"),
        ("ws", "m128n128w8s3-tma-ws"),
        ("pp", "m128n128w8s3-tma-pp"),
        ("three", "m192n64w12s3-tma-ws"),
        ("three wide", "m192n128w12s2-tma-ws"),
        ("ticket", "m192n128w12s2-tma-ws-ticket"),
        ("mix", "m192n128w12s2-tma-ws-mix-ticket"),
        ("four", "m256n64w16s2-tma-ws-ticket"),
        ("deep lazy", "m192n128w12s2-tma-ws-deep-lazy-ticket"),
    ),
    256: (
        ("portable", "m128n64w8s2"),
        ("tensor maps", "m128n64w8s2-tma"),
        ("ws", "m128n64w8s2-tma-ws"),
        ("ticket", "m128n64w8s2-tma-ws-ticket"),
        ("split", "m128n64w8s2-tma-ws-split-ticket"),
        ("section", "m128n64w8s2-tma-ws-split-ticket-l16"),
    ),
}
"""Steps of the flash forward by head dim; of what a race of them has measured, each is held against the one before."""


def flash_rows(run: Run, mode: str, ours: str = "flash-triton") -> list[list[str]]:
    """A row a shape of one mode: dims, length, mask, TFLOP/s of ours and the peers, then the bar and the aim."""
    found = []
    for row in flash.rows_of(run, [ours]):
        if row.mode != mode:
            continue
        bar = flash.bar_of(row.mode, row.headdim, row.seqlen)
        peers = [_tflops(row.peers[name][0]) if name in row.peers else "" for name in flash.PEERS[mode]]
        found.append(
            [
                str(row.headdim),
                str(row.seqlen),
                "causal" if row.causal else "full",
                _tflops(row.ours),
                *peers,
                *held(row, bar.least),
                *held(row, bar.aim),
            ]
        )
    return found


def few_rows(run: Run) -> list[list[str]]:
    """A row a case of dense HSTU: dims, rows, rounds over 132 SMs of tiles of 128 rows, both times, and the gain."""
    found = []
    for records in groups(run).values():
        case = records[0].case
        by_rows = {
            rows: one
            for one in records
            for rows in (128, 192)
            if one.time and any(re.match(rf"forward {rows}x(?!.*parts)", note) for note in one.notes)
        }
        tiles = case["batch"] * case["nheads"] * -(-case["seqlen"] // 128)
        large, small = (by_rows[rows] for rows in (192, 128))
        times = [f"{1e3 * one.time.median_ms:.1f}" for one in (large, small) if one.time]
        gain = flash.ratio_of(large, small)[0]
        found.append([str(case["attn_dim"]), str(case["seqlen"]), str(-(-tiles // 132)), *times, f"{gain:.2f}x"])
    return found


def held(row: flash.Row, wanted: Mapping[str, float]) -> tuple[str, str]:
    """The measured peer with the least room, as a ratio, and whether all are reached; empty where nothing is wanted."""
    room = {peer: row.peers[peer][1] / ratio for peer, ratio in wanted.items() if peer in row.peers}
    if not room:
        return "", ""
    peer = min(room, key=room.__getitem__)
    return f"{_ratio(row.peers[peer][1:])} of `{peer}`, {wanted[peer]:g} wanted", _met(room[peer] >= 1)


def ladder_rows(run: Run) -> list[list[str]]:
    """A row a step of a head dim, at 4096 rows: of each mask TFLOP/s, the share of the best peer, and the gain."""
    found = []
    for dim, steps in LADDER.items():
        sides = [_ladder_side(run, dim, causal) for causal in (True, False)]
        found += [
            [str(dim), step, f"`{form}`", *(cell for side in sides for cell in side.get(form, [""] * 3))]
            for step, form in steps
            if any(form in side for side in sides)
        ]
    return found


def _ladder_side(run: Run, dim: int, causal: bool) -> dict[str, list[str]]:
    """Of one mask, by form: TFLOP/s, share of the best peer, gain over the step measured before."""
    case = {"seqlen": 4096, "headdim": dim, "causal": causal}
    records = {
        one.backend: one
        for one in run.records
        if one.time and one.rate and all(one.case[name] == value for name, value in case.items())
    }
    peers = [one.rate.tflops for name in (flash.CUDNN, flash.FA2, flash.FA3) if (one := records.get(name)) and one.rate]
    best = max((rate for rate in peers if rate), default=None)
    found: dict[str, list[str]] = {}
    before = None
    for _step, form in LADDER[dim]:
        own = records.get(f"flash-triton[{form}]")
        if own is None or own.rate is None or own.rate.tflops is None:
            continue
        gain = _ratio(flash.ratio_of(before, own)) if before else ""
        found[form] = [_tflops(own.rate.tflops), f"{100 * own.rate.tflops / best:.0f} %" if best else "", gain]
        before = own
    return found


def hstu_rows(run: Run, mode: str, peer: str = "hstu-fbgemm") -> list[list[str]]:
    """A row a shape of one mode, and one for each further form of ours: the bar is for the fastest."""
    found = []
    for row in hstu.rows_of(run, peer):
        if row.mode != mode:
            continue
        word = row.verdict
        shape = [*map(str, row.shape), _tflops(row.peer), "" if row.drift is None else f"{round(100 * row.drift):+d} %"]
        for index, (name, (tflops, *ratio)) in enumerate(row.ours.items()):
            judged = [f"{row.bar[0]:g}", _met(word.endswith("reached")), f"{row.bar[1]:g}", _met(word == "aim reached")]
            found.append(
                [
                    *(shape if index == 0 else [""] * 5),
                    f"`{name}`",
                    _tflops(tflops),
                    _ratio(ratio),
                    *(judged if index == 0 else [""] * 4),
                ]
            )
    return found


def bsa_rows(run: Run, ours: str = "hstu-bsa-triton") -> list[list[str]]:
    """A row a shape and form of ours: milliseconds, the dense times over it with their intervals, and the bar."""
    groups: dict[str, dict[str, Record]] = {}
    for one in run.records:
        if one.time:
            groups.setdefault(one.group, {})[one.backend] = one
    return [
        _bsa_row({dense: records[dense] for dense in DENSE if dense in records}, own)
        for records in groups.values()
        for name, own in sorted(records.items())
        if name.partition("[")[0] == ours
    ]


def _bsa_row(dense: Mapping[str, Record], own: Record) -> list[str]:
    """One form of ours; bar and aim are for NVIDIA's dense one."""
    ratios = {name: hstu_bsa.ratio(one, own) for name, one in dense.items()}
    bar = hstu_bsa.BARS.get((own.case["mode"], own.case["seqlen"]))
    judged = [""] * 4
    if bar and hstu_bsa.PEER in ratios:
        reached = ratios[hstu_bsa.PEER][0]
        judged = [text for wanted in bar for text in (f"{wanted:g}", _met(reached >= wanted))]
    dims = "→".join(dict.fromkeys(str(own.case[name]) for name in ("attn_dim", "linear_dim")))
    return [
        str(own.case["nheads"]),
        dims,
        str(own.case["seqlen"]),
        f"`{own.backend}`",
        f"{own.time.median_ms:.3f}" if own.time else "",
        *(_ratio(ratios[name]) if name in ratios else "" for name in DENSE),
        *judged,
    ]


def ours_rows(runs: Mapping[str, Run]) -> list[list[str]]:
    """A row a kernel of ours and shape: kernel, shape, TFLOP/s, the fastest peer, its TFLOP/s, ours over it.

    Args:
        runs: `flash fwd`, `flash bwd`, `flash bwd 256`, `dense fwd`, `dense bwd` and `sparse fwd`.
    """
    found = []
    for name, mode in (("flash fwd", "fwd"), ("flash bwd", "bwd"), ("flash bwd 256", "bwd")):
        for row in flash.rows_of(runs[name], ["flash-triton"]):
            if row.mode == mode and row.seqlen == 4096 and row.causal and row.peers:
                peer = max(row.peers, key=lambda name: row.peers[name][0])
                found.append(
                    [
                        f"`flash-triton` {mode}",
                        f"d{row.headdim}-s4096-causal",
                        _tflops(row.ours),
                        f"`{peer}`",
                        _tflops(row.peers[peer][0]),
                        f"{row.peers[peer][1]:.2f}",
                    ]
                )
    for mode in ("fwd", "bwd"):
        for dense in hstu.rows_of(runs[f"dense {mode}"], hstu_bsa.PEER):
            if dense.mode == mode and dense.shape[1:] == (128, 8192) and dense.ours:
                tflops, *ratio = next(iter(dense.ours.values()))
                found.append(
                    [
                        f"`hstu-triton` {mode}",
                        f"d{dense.shape[1]}-s8192",
                        _tflops(tflops),
                        f"`{hstu_bsa.PEER}`",
                        _tflops(dense.peer),
                        f"{ratio[0]:.2f}",
                    ]
                )
    rates = {
        (one.case["seqlen"], one.case["attn_dim"], one.backend): one
        for one in runs["sparse fwd"].records
        if one.time and one.rate
    }
    for (seqlen, dim, name), own in rates.items():
        peer_record = rates.get((seqlen, dim, hstu_bsa.PEER))
        if name == "hstu-bsa-triton" and (seqlen, dim) == (8192, 128) and peer_record and own.rate and peer_record.rate:
            found.append(
                [
                    f"`{name}` fwd",
                    f"d{dim}-s8192",
                    _tflops(own.rate.tflops),
                    f"`{hstu_bsa.PEER}`",
                    _tflops(peer_record.rate.tflops),
                    f"{hstu_bsa.ratio(peer_record, own)[0]:.2f}",
                ]
            )
    return found


def jagged_rows(run: Run, ours: str = "hstu-triton") -> list[list[str]]:
    """A row a shape: heads, dims, length, TFLOP/s of whole sequences and of uneven ones, the share, and its bar."""
    rates: dict[tuple[int, int, int], dict[str, float]] = {}
    for one in run.records:
        if one.backend == ours and one.rate and one.rate.tflops:
            shape = one.case["nheads"], one.case["attn_dim"], one.case["seqlen"]
            rates.setdefault(shape, {})[one.case["lengths"]] = one.rate.tflops
    return [
        [
            *map(str, shape),
            _tflops(found["full"]),
            _tflops(found["uniform"]),
            f"{found['uniform'] / found['full']:.3f}",
            f"{hstu_jagged.BAR:g}",
            _met(found["uniform"] / found["full"] >= hstu_jagged.BAR),
        ]
        for shape, found in rates.items()
        if {"full", "uniform"} <= {*found}
    ]


def counter_rows(captures: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A row an attention kernel: case, backend, cycles, and what ncu says of tensor cores, code and waits."""
    found = []
    for capture in captures:
        kernel = max(capture["kernels"], key=lambda one: one["total_ms"])
        seen = kernel["counters"]
        # A stall is warps for each instruction issued; of all, it is the part of a warp's time.
        waits = [
            f"{100 * seen[name] / sum(value for key, value in seen.items() if key.startswith('stall_')):.1f} %"
            for name in ("stall_no_instruction", "stall_long_scoreboard")
        ]
        found.append(
            [
                f"`{kernel['case']}`",
                f"`{kernel['backend']}`",
                f"{seen['cycles']:,.0f}",
                f"{seen['sm_mhz']:.0f}",
                f"{seen['tensor_percent']:.1f} %",
                f"{seen['l2_percent']:.0f} %",
                f"{seen['code_hit_percent']:.1f} %",
                *waits,
            ]
        )
    return found


def launch_rows(captures: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A row a kernel of more than a hundredth of its call: time, what is busy, and the two largest stalls."""
    found = []
    for kernel in (kernel for capture in captures for kernel in capture["kernels"]):
        whole = sum(
            one["total_ms"] for capture in captures for one in capture["kernels"] if one["case"] == kernel["case"]
        )
        if kernel["total_ms"] < 0.01 * whole:
            continue
        seen = kernel["counters"]
        stalls = {key.removeprefix("stall_"): value for key, value in seen.items() if key.startswith("stall_")}
        most = sorted(stalls, key=stalls.__getitem__, reverse=True)[:2]
        found.append(
            [
                f"`{kernel['case']}`",
                f"`{kernel['name']}`",
                f"{kernel['total_ms'] * 1e3:.0f}",
                *(
                    f"{seen[name]:.0f} %"
                    for name in ("tensor_percent", "l2_percent", "dram_percent", "code_hit_percent")
                ),
                f"{seen['dram_bytes'] / 1e6:.0f}",
                ", ".join(f"{name} {100 * stalls[name] / sum(stalls.values()):.0f} %" for name in most),
            ]
        )
    return found


def drift(run: Run, mode: str, peer: str = "hstu-fbgemm") -> tuple[float, float]:
    """How far the peer's figures of a mode lie from the earlier ones, least and most."""
    seen = [row.drift for row in hstu.rows_of(run, peer) if row.mode == mode and row.drift is not None]
    return min(seen), max(seen)


def clock(run: Run, mode: str) -> str:
    """SM clock of the records of a mode, the median of each: lowest and highest."""
    read_out = [
        [mhz for mhz in one.time.sm_mhz or () if mhz is not None]
        for one in run.records
        if one.time and one.case["mode"] == mode
    ]
    seen = [statistics.median(clocks) for clocks in read_out if clocks]
    return f"SM clock {min(seen):.0f}-{max(seen):.0f} MHz" if seen else "SM clock not read"


@cache  # a file is in several tables
def load(path: Path) -> Run:
    """The run of a file."""
    return read(path)


def groups(run: Run) -> dict[str, list[Record]]:
    """Records by their group."""
    found: dict[str, list[Record]] = {}
    for record in run.records:
        found.setdefault(record.group, []).append(record)
    return found


def _tflops(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _ratio(ratio: Sequence[float | None]) -> str:
    center, low, high = ratio
    return f"{center:.3f}" + ("" if low is None or high is None else f" [{low:.3f}, {high:.3f}]")


def _met(reached: bool) -> str:
    return "reached" if reached else "**missed**"


def sparse_rows(data: Mapping[str, Any]) -> list[list[str]]:
    """A row a shape and density of `flash_sparse.py`: dense ms, ours and E on equal and unequal rows, bar, lists.

    Of several configurations it is today's default, or the fastest where that was not measured.
    """
    found = []
    for group in data["groups"]:
        sweep = flash_sparse.sweep_of(group)
        dense = statistics.median(group["rows"][0]["samples_ms"])
        shape = [sweep.block, str(sweep.headdim), str(sweep.seqlen), "causal" if sweep.causal else "full"]
        default = _shown_form(group, sweep.default)
        for kept in sweep.densities:
            rows = [row for row in group["rows"][1:] if (row["density"], row["config"]) == (kept, default)]
            of = {row["pattern"]: row for row in rows if row["what"] == "sparse"}
            sides = [of.get("full" if kept == 1 else "random"), of.get("random-uneven")]
            cells = [cell for row in sides for cell in (_sparse_cells(group, row) if row else ("", ""))]
            least = sweep.bar(kept)
            met = (
                ""
                if least is None
                else _met(all(flash_sparse.efficiency(group, row)[0] >= least for row in sides if row))
            )
            lists = statistics.median(next(row for row in rows if row["what"] == flash_sparse.LISTS)["samples_ms"])
            found.append(
                [
                    *shape,
                    f"{kept:g}",
                    f"{dense:.2f}",
                    *cells,
                    "" if least is None else f"{least:.2f}",
                    met,
                    f"{100 * lists / dense:.1f} %",
                ]
            )
    return found


def _shown_form(group: Mapping[str, Any], default: str) -> str:
    """The configuration of a group that the table of measured rows shows."""
    total: dict[str, float] = {}
    for row in group["rows"][1:]:
        if row["what"] == "sparse":
            total[row["config"]] = total.get(row["config"], 0.0) + statistics.median(row["samples_ms"])
    return default if default in total else min(total, key=total.__getitem__)


def _sparse_cells(group: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[str, str]:
    """Milliseconds of a row, and its E with the interval."""
    return f"{statistics.median(row['samples_ms']):.2f}", _ratio(flash_sparse.efficiency(group, row))


def sparse_form_rows(data: Mapping[str, Any]) -> list[list[str]]:
    """A row a configuration of the groups that raced several: whether it is the default, and E on equal rows."""
    found = []
    for group in data["groups"]:
        sweep = flash_sparse.sweep_of(group)
        for form in sweep.forms if len(sweep.forms) > 1 else ():
            rows = {
                row["density"]: row
                for row in group["rows"][1:]
                if (row["what"], row["config"]) == ("sparse", form) and row["pattern"] != "random-uneven"
            }
            found.append(
                [
                    sweep.block,
                    str(sweep.headdim),
                    str(sweep.seqlen),
                    f"`{form}`",
                    "yes" if form == sweep.default else "",
                    *(_sparse_cells(group, rows[kept])[1] if kept in rows else "" for kept in SPARSE_DENSITIES),
                ]
            )
    return found


def sparse_clock(data: Mapping[str, Any]) -> str:
    """SM clock of the rows, the median of each: lowest and highest."""
    read_out = [[mhz for mhz in row["sm_mhz"] if mhz] for group in data["groups"] for row in group["rows"]]
    seen = [statistics.median(clocks) for clocks in read_out if clocks]
    return f"SM clock {min(seen):.0f}-{max(seen):.0f} MHz" if seen else "SM clock not read"
