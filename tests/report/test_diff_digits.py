"""Digits of a diff: no more than the interval of a change supports."""

from __future__ import annotations

import pytest

from attnbench.report.diff import table_of
from attnbench.verdict.change import Change
from made_up_run import make_case, make_record


def cells(change, half):
    record = make_record(make_case(), "own", tflops=100.0)
    ends = (None, None) if half is None else (change - half, change + half)
    one = Change(
        record, record, "unclear", change, *ends, half, 1.0, 1.1, 0.1, None, None, None, (1, 1), references=()
    )  # fmt: skip
    (line,) = table_of([one])[1]
    return line["change"], line["margin"], line["smallest"]


@pytest.mark.parametrize(
    ("change", "half", "shown"),
    [
        (0.0213, 0.0049, ("+2.1", "0.5", "0.5")),
        (-0.3012, 0.0851, ("-30.1", "8.5", "8.5")),
        (1.3541, 0.4571, ("+135", "46", "46")),
        (105.42, 99.0, ("+10542", "> 1000", "> 1000")),
        (0.1304, None, ("+13.0", "", "")),
        (3.6391, None, ("+364", "", "")),
        (None, None, ("", "", "")),
    ],
)
def test_a_change_has_the_digits_that_its_interval_supports(change, half, shown):
    assert cells(change, half) == shown
