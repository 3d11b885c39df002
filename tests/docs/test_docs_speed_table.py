"""The table of what is wanted of our kernels: the worst row decides, and old configurations do not count."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import flash
import kernel_tables
import pytest
import speed_tables
import tables
from speed_tables import Point, Wish

PATHS = {"a": Path("a-h200.json"), "b": Path("b-h200.json")}
FOUND = {"a-h200": [Point({"dims": 128, "rows": 512}, 0.9)], "b-h200": [Point({"dims": 64, "rows": 512}, 1.2)]}


def wish(*runs: str, bar: float | None = 1.0, aim: float | None = 0.8, most: bool = False) -> list[str]:
    return Wish("w", bar, aim, runs, lambda path: FOUND[path.stem], most=most).row(PATHS)


@pytest.mark.parametrize(
    ("row", "cells"),
    [
        (wish("a", "b"), ["0.900 to 1.200", "1 of 2, **missed**", "0.8", "2 of 2", "`a-h200`, `b-h200`"]),
        (wish("a", bar=None), ["0.900 to 0.900", "", "0.8", "1 of 1", "`a-h200`"]),
        (wish("a", "b", aim=None), ["0.900 to 1.200", "1 of 2, **missed**", "", "", "`a-h200`, `b-h200`"]),
        (
            wish("a", "b", most=True),
            ["1.2 to 0.9 µs", "1 of 2, **missed**", "at most 0.8 µs", "0 of 2, **missed**", "`a-h200`, `b-h200`"],
        ),
        (wish(), ["not measured", "", "0.8", "", ""]),
    ],
)
def test_a_wish_shows_its_worst_row_first_and_counts_those_that_reach_it(row, cells):
    assert row[3:] == cells


def test_the_places_are_those_that_were_measured():
    assert wish("a", "b")[1] == "dims 64, 128; rows 512"
    assert wish()[1] == ""


def record(note: str, **case) -> SimpleNamespace:
    case = {
        "seqlen": 4096,
        "nheads": 16,
        "batch": 4,
        "headdim": 96,
        "causal": True,
        "dtype": "bf16",
        "mode": "fwd",
    } | case
    return SimpleNamespace(backend="flash-triton", case=case, notes=(note,))


def test_only_todays_defaults_count():
    default = "m128n128w8s3-tma-ws-lazy-pieces-double-ticket-l16"
    assert speed_tables.is_default(record(f"forward {default}"))
    assert speed_tables.is_default(record(f"forward {default}, and more words"))
    assert not speed_tables.is_default(record("forward m128n128w8s3-tma-ws-pieces-ticket-l16"))
    assert not speed_tables.is_default(record(f"forward {default}", seqlen=2048))
    records = (record("forward x"), SimpleNamespace(backend="fa3-fwd"))
    assert speed_tables.of_defaults(records) == records[1:]


def test_bars_and_aims_are_those_that_were_set_and_every_run_is_there():
    wanted = {one.what: (one.bar, one.aim) for one in speed_tables.wishes()}
    assert list(wanted.values()) == [
        (0.97, 1.0),
        (0.95, 1.0),
        (0.98, 1.0),
        (0.95, None),
        (0.8, 0.9),
        (0.5, 0.75),
        (0.9, 1.0),
        (1.0, 1.1),
        (None, 0.95),
        (1.3, 1.5),
        (1.3, 1.5),
        (0.9, 0.95),
        (25.0, 15.0),
        (2.8, 3.0),
        (4.6, 5.0),
    ]
    assert {run for one in speed_tables.wishes() for run in one.runs} <= set(tables.SPEED)


def test_a_flash_row_is_the_ratio_within_rounds_of_its_run():
    path = tables.RESULTS / tables.SPEED["flash fwd"]
    rows = flash.rows_of(kernel_tables.load(path), ["flash-triton"])
    wanted = next(one for one in rows if (one.headdim, one.seqlen, one.causal) == (128, 16384, True))
    points = speed_tables.flash_points("fwd", (128,), range(16384, 16385), flash.FA3)(path)
    assert [point.at for point in points] == [{"dims": 128, "rows": 16384}] * 2
    assert wanted.peers[flash.FA3][1] in [point.value for point in points]


def test_few_queries_are_those_of_one_users_step():
    points = speed_tables.few_queries(tables.RESULTS / tables.SPEED["few queries"])
    assert [point.at for point in points] == [{"queries": 384, "keys": 4480, "dims": dim} for dim in (256, 128)]
