"""Tables of profiles on a terminal: complete if they fit, and marked as cut if not."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from attnbench.report.profile import render_profile_table

HEADS = ("backend", "kernel", "ms", "cycles", "regs", "remark")
ROWS = [
    ["sdpa-flash", "flash_fwd_kernel_with_a_long_name", "0.1050", "188,412", "168", "so it is " * 9],
    ["eager", "gemm", "12.5", "1,000", "", ""],
]


def shown(width, **more):
    stream = io.StringIO()
    options = {"numbers": [False, False, True, True, True, False], "ranks": (0, 0, 0, 1, 2, 0), "notes": ("a note",)}
    render_profile_table(Console(file=stream, width=width), "a title", HEADS, ROWS, **(options | more))
    return stream.getvalue()


def test_with_room_everything_is_there():
    text = shown(200)
    for word in (*HEADS, "flash_fwd_kernel_with_a_long_name", "188,412", "a note", "a title"):
        assert word in text
    assert "for want of room" not in text


@pytest.mark.parametrize("width", [50, 60, 80, 100])
def test_without_room_nothing_runs_over_and_what_is_left_out_is_said(width):
    text = shown(width)
    assert max(map(len, text.splitlines())) <= width
    assert "0.1050" in text
    assert ("regs" in text.splitlines()[2]) or "for want of room without" in text
    assert "so it is so it is" in text  # a remark is wrapped, never cut


def test_the_highest_rank_goes_first():
    text = shown(88)
    assert "for want of room without regs" in text
    assert "cycles" in text


def test_decimal_points_stand_in_one_column():
    lines = [line for line in shown(200).splitlines() if "sdpa-flash" in line or "eager" in line]
    assert len({line.index(".") for line in lines}) == 1


def test_markup_and_odd_letters_stay_text():
    rows = [["[red]x[/red]", "a\x1b[31mb", "1", "2", "3", ""]]
    stream = io.StringIO()
    render_profile_table(Console(file=stream, width=120), "[bold]t", HEADS, rows, numbers=[False] * 6)
    assert "[red]x[/red]" in stream.getvalue()
    assert "[bold]t" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
