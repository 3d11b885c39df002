"""Two runs on one page: overlaid lines, ratios with intervals, and a sentence if they cannot be compared."""

from __future__ import annotations

import dataclasses
import re

import pytest

from attnbench.report.charts import figures
from attnbench.report.compared import compare, letter
from attnbench.report.html.assemble import assemble
from attnbench.report.html.comparison import comparison
from attnbench.report.plots import picture, write_plots
from attnbench.store.derive import derive
from made_up_run import make_case, make_group, make_record, make_run

RATES = {"sdpa-flash": 300.0, "flex": 400.0, "mine": 500.0}


def two(lengths=(1024, 4096), faster="mine", factor=1.25, **changed):
    """A run, and another in which one backend is faster and has another version."""
    cases = [make_case(seqlen=length, seqlen_k=length) for length in lengths]
    first = [record for case in cases for record in make_group(case, RATES, samples=30)]
    later = [record if record.backend != faster else dataclasses.replace(
                 make_record(record.case, faster, tflops=RATES[faster] * factor, samples=30), version="2")
             for record in first]  # fmt: skip
    return derive(make_run(first)), derive(
        make_run(later, id="0000000b")
        if not changed
        else make_run(
            [dataclasses.replace(one, time=dataclasses.replace(one.time, **changed)) for one in later], id="0000000b"
        )
    )


def of_two(runs):
    return [one for one in figures(runs) if one.run is None]


def test_times_are_overlaid_and_their_ratio_has_an_interval():
    time, ratio = of_two(two())
    assert (time.kind, ratio.kind) == ("overlay", "ratio")
    assert (time.stem, ratio.stem) == ("A-and-B/time_ms_causal_false", "A-and-B/ratio_causal_false")
    rows = time.spec["datasets"]["rows"]
    assert {one["b"] for one in rows} == {f"{name} · {run}" for name in RATES for run in "AB"}
    dashes = {one["b"][-1]: tuple(one["d"]) for one in rows}
    assert dashes["A"] != dashes["B"] == (1, 0)
    assert len({(one["c"], one["g"]) for one in rows}) == 3, "a backend has one colour and sign in both"
    for one in ratio.spec["datasets"]["rows"]:
        expected = 0.8 if one["b"] == "mine" else 1.0
        assert one["m"] == pytest.approx(expected, abs=0.01)
        assert one["l"] < one["m"] < one["h"]
    texts = re.findall(r">([^<>]+)</text>", picture(ratio, "svg").decode())
    assert "time of B / time of A (95 % intervals)" in texts
    assert not [text for text in texts if text.startswith(("0.0", "-", "−"))], "seen from 1, not from 0"


def test_one_length_has_its_ratios_row_by_row():
    (ratio,) = of_two(two(lengths=(1024,)))
    assert ratio.kind == "ratio"
    words = {one["b"]: one["t"] for one in ratio.spec["datasets"]["rows"]}
    assert re.fullmatch(r"0\.80\d*x ±[0-9.]+ faster", words["mine"])
    assert "mine" in ratio.alt


def test_what_only_one_run_has_is_not_overlaid():
    first, later = two(lengths=(1024, 4096, 8192))
    later = dataclasses.replace(later, records=tuple(
        one for one in later.records if one.case["seqlen"] != 8192 and one.backend != "flex"))  # fmt: skip
    time, ratio = of_two([first, later])
    assert {one["x"] for one in time.spec["datasets"]["rows"]} == {1024, 4096}
    assert "flex" not in {one["b"].split()[0] for one in time.spec["datasets"]["rows"]}
    assert "flex" not in {one["b"] for one in ratio.spec["datasets"]["rows"]}


def test_runs_of_two_timers_have_no_ratio_and_the_page_says_why():
    runs = two(timer="wall")
    assert of_two(runs) == []
    (found,) = compare(runs)
    assert found.found is None
    text = assemble(runs)
    assert "no ratios: timer=" in text
    assert "attnbench diff:" not in text


def test_runs_with_nothing_in_common_stand_side_by_side():
    first, later = two()
    later = dataclasses.replace(later, records=tuple(
        dataclasses.replace(one, case_id="x" + one.case_id, group="x") for one in later.records))  # fmt: skip
    assert of_two([first, later]) == []
    assert "no ratios:" in assemble([first, later])


def test_the_page_has_the_changed_rows_first_and_the_same_folded():
    text = assemble(two())
    section = text[text.index('<section id="compared-B"') : text.index('<section id="charts"')]
    changed, same = section.split("<details", 1)
    assert "2 faster, 4 same" in changed
    assert changed.count('<span class="verdict faster">') == 2
    assert same.count('<span class="verdict same">') == 4
    assert re.search(r"<td>0\.80\dx", changed)
    assert "<button>B / A</button>" in changed
    assert 'href="#r0c0"' in changed
    assert "run 3f9a01bc of 2026-11-20 12:34:56 UTC (dashed lines)" in changed
    assert '<a href="#compared-B">A and B</a>' in text


@pytest.mark.parametrize(
    ("b_ms", "low", "high", "shown"), [(182.8, -9.0, 20.0, "183x"), (1.0123, 0.010, 0.014, "1.0123x")]
)
def test_a_ratio_has_the_digits_that_the_change_supports(b_ms, low, high, shown):
    (found,) = compare(two())
    middle = (low + high) / 2
    changes = [
        dataclasses.replace(one, a_ms=1.0, b_ms=b_ms, change=middle, low=low, high=high) for one in found.found.changes
    ]
    made = comparison(dataclasses.replace(found, found=dataclasses.replace(found.found, changes=changes)), {}, [])
    cells = [{column.key: text for column, text in line} for _, line in (made.changed or made.same).lines]
    assert {line["ratio"] for line in cells} == {shown}


def test_of_three_runs_each_later_one_is_compared_with_the_first():
    first, later = two()
    third = dataclasses.replace(later, id="0000000c")
    drawn = of_two([first, later, third])
    assert [one.folder for one in drawn] == ["A-and-B"] * 2 + ["A-and-C"] * 2
    assert {one["b"][-1] for one in drawn[2].spec["datasets"]["rows"]} == {"A", "C"}
    text = assemble([first, later, third])
    assert 'id="compared-C"' in text
    assert "<button>C / A</button>" in text
    assert [letter(place) for place in (0, 25, 26)] == ["A", "Z", "run 27"]


def test_pictures_of_two_runs_have_a_folder_of_their_own(tmp_path):
    written = {path.relative_to(tmp_path).as_posix() for path in write_plots(two(), tmp_path, formats=("svg",))}
    assert {"A-and-B/time_ms_causal_false.svg", "A-and-B/ratio_causal_false.svg"} <= written


def test_one_run_has_no_comparison():
    assert of_two([two()[0]]) == []
    assert "compared-" not in assemble([two()[0]])
