"""The notes and remarks of a diff: where each appears and where it does not."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import pytest
from test_verdict_diff import CARD, edit, make_run

from attnbench.verdict.diff import diff
from attnbench.verdict.judge import Judged
from attnbench.verdict.notes import percent, remark_of
from attnbench.verdict.together import Move

ALONE = (
    "{} measured by only one process on a side: a spread of 0.5 % between processes is assumed where unchanged rows do "
    "not show it; `--replicates 3`, or more files per side, would measure it"
)
BARE = (
    "{} with no unchanged backend and no yardstick beside: the change of the machine is taken from unchanged rows of "
    "other cases, or assumed as 1 % per run where there are fewer than 5"
)


def notes(a, b, **options):
    return diff([a], [b], **options).notes


def test_rows_of_one_process_are_counted():
    assert notes(make_run(1), make_run(2)) == (ALONE.format("all rows"),)
    assert notes(make_run(1, replicates=2), make_run(2, replicates=2)) == ()
    three = make_run(1, replicates=3), make_run(2, replicates=3)
    once = edit(three[1], lambda one: one.replicate and one.backend == "mine", time=None)
    assert notes(three[0], once) == (ALONE.format("4 of 20 rows"),)


def test_rows_without_anything_beside_them_are_counted():
    alone = {"backends": {"mine": 1.0}, "replicates": 3}
    assert notes(make_run(1, cases=1, **alone), make_run(2, cases=1, **alone)) == (BARE.format("the row"),)
    run = make_run(3, cases=2, replicates=3), make_run(4, cases=2, replicates=3, factors={"mine": 1.0}, source="two")
    assert notes(*run) == ()
    assert notes(*run, references=[])[0] == BARE.format("all rows")


def test_unchanged_rows_that_left_the_yardsticks_are_said():
    moved = "backends of the same version and source moved against the yardsticks"
    a, b, still = (
        make_run(seed, cases=12, yardsticks=1.0, replicates=3, code=code)
        for seed, code in ((5, 1.0), (6, 1.05), (7, 1.0))
    )
    assert [note.startswith(moved) for note in notes(a, b)] == [True]
    assert notes(a, still) == ()


@pytest.mark.parametrize(("machine", "said"), [(1.03, "+2.9 %"), (1.0, None), (0.95, "-5.1 %")])
def test_what_the_machine_did_is_said_where_not_all_rows_did(machine, said):
    """A changed backend that went the other way: no shift of all rows."""
    a = make_run(8, replicates=3, offset=1e-4)
    b = make_run(9, replicates=3, offset=1e-4, machine=machine, factors={"mine": 1 / machine**2}, source="two")
    took = (
        f"unchanged backends and yardsticks took {said} in B: a change of the machine, subtracted from the changes "
        "but not from the times"
    )
    assert notes(a, b) == ((took,) if said else ())


def test_what_all_rows_did_is_the_first_line_and_no_note():
    found = diff([make_run(8, replicates=3)], [make_run(9, replicates=3, machine=1.05)])
    assert found.shift is not None
    assert found.notes == ()


def test_another_clock_is_said_by_its_size():
    a, b = (make_run(seed, clock=clock, replicates=3) for seed, clock in ((10, 1700.0), (11, 1615.0)))
    (found,) = [note for note in notes(a, b) if "clock" in note]
    assert found.startswith("the SM clock differed by -5.")
    assert found.endswith(" % in B: changes are given at the same clock")
    assert not [note for note in notes(a, make_run(12, clock=1708.0, replicates=3)) if "clock" in note]


def test_other_tools_and_cards_are_said():
    def on(**changed):
        return make_run(13, replicates=3, environments=(dataclasses.replace(CARD, **changed),))

    torch = "different torch: its matmul, a yardstick, may differ too"
    triton = "different Triton: it may compile references differently, although their sources are unchanged"
    card = "different card: two of one model differ by percents, which only a reference corrects"
    here = make_run(14, replicates=3)
    assert notes(here, on(torch="2.12")) == (torch,)
    assert notes(here, on(triton="3.8")) == (triton,)
    assert notes(here, on(gpu_uuid="GPU-7"), across=["gpu"])[-1] == card
    assert card not in notes(here, on(gpu_uuid="GPU-7"))
    assert card not in notes(here, on(), across=["gpu"])


def test_a_named_reference_that_changed_is_said():
    a = make_run(15, replicates=3)
    b = make_run(16, replicates=3, factors={"base": 1.0, "third": 1.0}, source="two")
    (found,) = notes(a, b, references=["third", "base", "other"])
    assert found == "base, third: named as reference, but its version or source differs in B or is unknown"


# ── remarks ────────────────────────────────────────────────────────────────────────────────────────

SAMPLED = SimpleNamespace(samples_ms=(1.0,), median_ms=None)


def remark(judged, *, time=0.0, clock=None, times=(SAMPLED,)):
    row = SimpleNamespace(timed=lambda side: {place: SimpleNamespace(time=one) for place, one in enumerate(times)})
    return remark_of(row, judged, time, clock)


def judged(verdict="same", change=0.01, low=0.005, high=0.02, **changed):
    return Judged(verdict, change, low, high, **changed)


def test_a_plain_verdict_has_no_remark_and_an_unknown_one_says_why():
    assert remark(judged()) is None
    why = "one process per side and fewer than three samples: the spread between processes is unknown"
    assert remark(Judged("unclear")) == why
    assert remark(Judged("unclear", 0.1)) == why


@pytest.mark.parametrize(("median", "what"), [(2.0, "medians"), (None, "means")])
def test_times_without_samples_are_said(median, what):
    bare = SimpleNamespace(samples_ms=(), median_ms=median)
    said = f"based on {what} from another program's file, without samples: their spread is assumed"
    assert remark(judged(), times=(bare,)) == said
    assert remark(judged(), times=(SAMPLED, bare)) == said
    for side in (0, 1):
        row = SimpleNamespace(
            timed=lambda which, side=side: {0: SimpleNamespace(time=bare if which == side else SAMPLED)}
        )
        assert remark_of(row, judged(), 0.0, None) == said


def test_a_row_called_with_its_group_says_by_how_much_that_moved():
    along = judged("slower", together=Move(0.03, 0.02, 0.04, 12))
    assert remark(along) == ("one of the rows that moved together, by +3.0 % over 12 cases; alone it would be unclear")
    assert remark(dataclasses.replace(along, verdict="unclear")) is None


def test_a_change_that_two_processes_may_differ_by_names_replicates():
    said = (
        "+2.0 % with one process per side may be the difference between two processes; "
        "`--replicates 3`, or more files per side, would tell"
    )
    change = math.log1p(0.02)
    assert remark(judged("unclear", change, 0.001, 0.04, placement=0.04)) == said
    assert remark(judged("unclear", -change, -0.04, -0.001, placement=0.04)) == said.replace("+", "-").replace(
        "-2.0", percent(-change).removesuffix(" %")
    )
    assert remark(judged("unclear", change, 0.0, 0.04, placement=0.04)) is None, "its samples do not show it"
    assert remark(judged("unclear", -change, -0.04, 0.0, placement=0.04)) is None
    assert remark(judged("unclear", change, 0.001, 0.04, placement=0.019)) is None
    assert remark(judged("same", change, 0.001, 0.04, placement=0.04)) is None


@pytest.mark.parametrize(
    ("clock", "time", "said"),
    [
        (-0.05, 0.05, "slower clock, same cycles (clock -4.9 %, time +5.1 %, cycles +0.0 %)"),
        (0.05, -0.05, "faster clock, same cycles (clock +5.1 %, time -4.9 %, cycles +0.0 %)"),
        (0.05, 0.0, "other clock, same time (clock +5.1 %, time +0.0 %, cycles +5.1 %)"),
        (0.05, 0.05, "clock +5.1 %, time +5.1 %, cycles +10.5 %"),
        (-0.05, 0.02, "clock -4.9 %, time +2.0 %, cycles -3.0 %"),
        (0.0099, 0.05, None),
        (-0.0099, 0.05, None),
    ],
)
def test_clock_time_and_cycles_are_told_apart(clock, time, said):
    assert remark(judged(), clock=clock, time=time) == said
    if said:
        assert remark(Judged("unclear"), clock=clock, time=time).endswith(f"; {said}")
