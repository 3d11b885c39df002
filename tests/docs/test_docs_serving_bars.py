"""The table of serving's targets: the worst number decides, and nothing is said of what was not measured."""

from __future__ import annotations

import re

import pytest
import serving_bars as bars
from documents import ROOT

RESULTS = ROOT / "benchmarks/results"


def bar(numbers, **changes):
    return bars.Bar(
        "what", "of", "found", lambda path: iter(numbers), **{"least": 2.0, "aim": 1.0, "unit": " ms"} | changes
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "found.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("numbers", "changes", "cells"),
    [
        ([0.5, 1.0], {}, ["at most 2 ms", "1 ms", "reached", "at most 1 ms", "reached"]),
        ([0.5, 2.0], {}, ["at most 2 ms", "2 ms", "reached", "at most 1 ms", "**missed**"]),
        ([0.5, 2.01], {"aim": None}, ["at most 2 ms", "2.01 ms", "**missed**", "", ""]),
        ([9.0, 1.9], {"at_most": False, "aim": 3}, ["at least 2 ms", "1.9 ms", "**missed**", "at least 3 ms", "**missed**"]),
    ],
)  # fmt: skip
def test_the_worst_number_decides(folder, numbers, changes, cells):
    assert bar(numbers, **changes).cells(folder) == ["what", "of", *cells, "`found.json`"]


def test_without_a_result_nothing_is_said_to_be_reached(tmp_path):
    assert bar([1.0]).cells(tmp_path) == ["what", "of", "at most 2 ms", "not measured", "", "at most 1 ms", "", ""]


def test_a_result_without_the_number_is_an_error(folder):
    with pytest.raises(ValueError, match=r"found\.json has nothing about: what, of"):
        bar([]).cells(folder)


def test_every_target_reads_a_number_of_a_committed_result_or_says_not_measured():
    rows = bars.bar_rows(RESULTS)
    assert len(rows) == len(bars.BARS) >= 20
    for row in rows:
        assert len(row) == len(bars.HEAD)
        if row[3] == "not measured":
            assert row[4] == row[7] == ""
        else:
            assert re.match(r"[0-9.]+", row[3])
            assert row[4] in ("reached", "**missed**")
            assert (RESULTS / row[7].strip("`")).is_file()
    assert sum(row[3] != "not measured" for row in rows) >= 20


def test_numbers_are_those_of_the_tables_beside_it():
    found = {(row[0], row[1]): row[3] for row in bars.bar_rows(RESULTS)}
    text = (ROOT / "docs/serving.md").read_text("utf-8")
    step = next(line for line in text.splitlines() if line.startswith("| 8 × 1024 | 4096 |"))
    assert found[bars.GPU, f"{bars.STEP}, 8 × 1024"] in step
    assert found["layers alone", "`dlrm-v3`, 32 users"] == "5.1 ms"
