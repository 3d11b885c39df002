"""`attnbench show`, and the words latest and previous wherever a run is named."""

from __future__ import annotations

import os

import pytest

from attnbench.store.runfile import loads, read

RUN = "run quick --device cpu --seqlen {} --headdim 32 --no-causal --quiet"


@pytest.fixture
def two(attnbench, sweep, saved):
    """Files of two runs, the first named as if it was begun a day before."""
    attnbench(RUN.format("1,7"))
    (first,) = saved()
    attnbench(RUN.format("7,9"))
    (second,) = set(saved()) - {first}
    first = first.rename(first.with_name("20200101T000000Z-" + first.name.split("-", 1)[1]))
    return first, second


def test_show_prints_what_the_run_printed(attnbench, sweep, saved):
    answer = attnbench("run quick --device cpu --seqlen 1,7 --headdim 32 --no-causal")
    *table, written = answer.out.splitlines()
    assert written.startswith("written: ")
    shown = attnbench("show")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.splitlines() == table
    assert attnbench(f"show {saved()[0]}").out == shown.out
    assert attnbench(f"show {read(saved()[0]).id}").out == shown.out
    assert "samples" in attnbench("show --columns samples").out.splitlines()[3]


def test_show_prints_a_check(attnbench, sweep):
    answer = attnbench("check quick --device cpu --seqlen 1,7 --headdim 32 --no-causal")
    assert attnbench("show").out.splitlines() == answer.out.splitlines()[:-1]


def test_latest_and_previous_are_runs_everywhere(attnbench, two):
    first, second = two
    assert "b1-s9" in attnbench("show").out
    assert "b1-s7" in attnbench("show previous").out
    assert attnbench("export previous --csv -").out.count("\n") == 1 + len(read(first).records)
    assert loads(attnbench("export latest --json -").out).id == read(second).id
    assert f"written: {second.with_suffix('.html')}" in attnbench("report latest").out
    answer = attnbench("diff previous latest --exit-zero")
    assert (answer.code, answer.err) == (0, "")
    assert "is run" in attnbench("diff latest latest").err


def test_the_order_of_one_second_is_that_of_writing(attnbench, two):
    first, second = two
    first = first.rename(second.with_name(second.name.split("-", 1)[0] + "-zzz-" + first.name.split("-", 1)[1]))
    os.utime(first, ns=(0, 0))
    assert "b1-s9" in attnbench("show").out
    os.utime(second, ns=(0, 0))
    os.utime(first, ns=(10**18, 10**18))
    assert "b1-s7" in attnbench("show").out


def test_bare_resume_takes_up_the_latest_run(attnbench, sweep, two):
    sweep.stop_after = 1
    attnbench(RUN.format("11,13"))
    sweep.stop_after = None
    answer = attnbench("run --resume --quiet")
    assert answer.code == 0
    assert len(read(answer.out.strip()).records) == 8
    assert "b1-s13" in attnbench("show").out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "show",
            "attnbench show: RUN=latest is not there; a run file, or the id of one in results; results has no runs\n",
        ),
        (
            "diff previous latest",
            "attnbench diff: RUN=previous is not there; a run file, or the id of one in results; results has no runs\n",
        ),
        (
            "run --resume",
            "attnbench run: RUN=latest is not there; a run file, or the id of one in results; results has no runs\n",
        ),
    ],
)
def test_a_folder_without_runs_has_no_latest(attnbench, sweep, words, said):
    answer = attnbench(words)
    assert (answer.code, answer.out, answer.err) == (2, "", said)


def test_what_is_no_run_file_is_not_the_latest(attnbench, two):
    for name in ("zzz.json", "history.json"):
        two[1].with_name(name).write_text("{}")
    assert "b1-s9" in attnbench("show").out
    two[1].unlink()
    assert "b1-s7" in attnbench("show latest").out
    assert "results has 1 run\n" in attnbench("show previous").err


def test_the_latest_that_is_offered_is_one_that_can_be_read(attnbench, two):
    for name in ("zzz.json", two[1].name.replace(".json", ".load.json")):
        two[1].with_name(name).write_text("{}")
    assert attnbench("show nope").err.endswith(f"the latest is results/{two[1].name}\n")
    two[0].unlink()
    two[1].unlink()
    assert attnbench("merge nope").err.endswith("a run file, or the id of one in results\n")
