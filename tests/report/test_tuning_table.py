"""The table of a race, from made-up outcomes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from attnbench.report.tuning import regret, render_tuning
from attnbench.stats.race_data import Outcome, Standing

STANDINGS = (
    Standing(name="b[fast]", ratio=1.0, ci_low=None, ci_high=None, median_ms=0.9, rounds=100, stage=3, ended="picked"),
    Standing(
        name="b[near]",
        ratio=1.0042,
        ci_low=1.0031,
        ci_high=1.0055,
        median_ms=0.9038,
        rounds=100,
        stage=3,
        ended="final",
    ),
    Standing(name="b", ratio=1.034, ci_low=1.03, ci_high=1.038, median_ms=0.93, rounds=10, stage=2, ended="dropped"),
    Standing(name="b[cut]", ratio=1.01, ci_low=None, ci_high=None, median_ms=0.91, rounds=5, stage=1, ended="cut"),
)
FAILURES = [
    ("failed", "big", "out of resource: shared memory"),
    ("failed", "huge", "out of resource: shared memory"),
    ("incorrect", "odd", "out: wrong values"),
]


def outcome(**changed):
    return Outcome(
        **(
            {
                "pick": "b[fast]",
                "standings": STANDINGS,
                "regret": 0.0004,
                "most": 0.002,
                "close": 0.998,
                "sampled_s": 1.0,
                "exhaustive_s": 10.0,
            }
            | changed
        )
    )


def shown(found, width=100, encoding="utf-8"):
    text = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    render_tuning(
        Console(file=text, width=width, highlight=False),
        title="b  case",
        conditions="a card",
        outcome=found,
        flops=10**12,
        short=lambda name: name.partition("[")[2].rstrip("]") or "default",
        failures=FAILURES,
        remarks={"time": "1 s"},
        rerun="attnbench compare --backends 'b,b[fast]'",
    )
    text.flush()
    return text.buffer.getvalue().decode(encoding)


def test_every_configuration_has_its_ratio_its_interval_and_where_it_ended():
    lines = shown(outcome()).splitlines()
    assert lines[0] == "b  case   a card"
    cells = {line.split()[0]: line.split() for line in lines[2:6]}
    assert cells["fast"][1:] == ["0.9000", "1111", "100", "picked"]
    assert cells["near"][1:] == ["1.0042x", "±0.0013", "0.9038", "1106", "100", "final"]
    assert cells["default"][1:] == ["1.034x", "±0.004", "0.9300", "1075", "10", "dropped", "in", "stage", "2"]
    assert cells["cut"][1:] == ["1.01x", "0.9100", "1099", "5", "no", "room", "in", "the", "final"]


def test_what_failed_alike_has_one_line_and_the_pick_its_default():
    text = shown(outcome())
    assert "failed     2 configurations  out of resource: shared memory (big, huge)" in text
    assert "incorrect  odd               out: wrong values" in text
    assert "pick  b[fast], against which the default takes 1.034x (±0.004)" in text
    assert text.endswith("rerun\n  attnbench compare --backends 'b,b[fast]'\n")
    best = tuple(one for one in STANDINGS if one.name == "b")
    assert "pick  b, the default: nothing is faster" in shown(outcome(pick="b", standings=best))


@pytest.mark.parametrize(("close", "words"), [(0.9995, "over 99.9 %"), (0.998, "99.8 %"), (0.5, "50 %")])
def test_the_loss_is_said_with_its_chance(close, words):
    assert regret(outcome(close=close)) == (
        "the pick is expected to be 0.04 % slower than the best of all that were raced, at most 0.2 % with a "
        f"chance of 95 %, and within 1 % of it with a chance of {words}"
    )


def test_a_plain_terminal_shows_it_too():
    text = shown(outcome(), width=60, encoding="ascii")
    assert "TFLOP/s" not in text
    assert "dropped" in text
    assert "1.0042x" in text
    assert "+-0.0013" in text
