"""`attnbench history` from the command line, and the runs that are added automatically."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from attnbench.store.runfile import read

QUICK = "run quick --device cpu --backends eager --quiet"
KEPT = Path("results/history.sqlite")


@pytest.fixture
def run(attnbench, sweep):
    def measure(more=""):
        answer = attnbench(f"{QUICK} {more}")
        assert answer.code == 0
        return Path(answer.out.strip()), answer

    return measure


def test_a_finished_run_is_in_the_list(attnbench, run):
    path, answer = run()
    assert answer.err == ""
    listed = attnbench("history")
    assert listed.code == 0
    assert listed.out.splitlines()[0].split() == ["id", "started", "suite", "machine", "rows", "outcomes"]
    assert listed.out.splitlines()[1].split()[0] == read(path).id
    assert f"{len(read(path).records)} passed" in listed.out


def test_what_is_not_saved_is_not_kept(attnbench, run, sweep):
    attnbench(f"{QUICK} --no-save")
    attnbench(f"{QUICK} --dry-run")
    assert not KEPT.exists()


def test_an_import_is_kept(attnbench, run):
    path, _ = run()
    assert attnbench(f"export {path} --layout seed-001 --to sweep.csv").code == 0
    assert attnbench(f"import {next(Path().glob('sweep*.csv'))} --out imported").code == 0
    assert "seed-001" in attnbench("history --out imported").out


def test_a_run_that_is_resumed_is_there_once(attnbench, sweep):
    sweep.stop_after = 1
    assert attnbench("run quick --device cpu --backends eager").code == 130
    [path] = Path("results").glob("*.json")
    assert attnbench("history --add results").out == f"{KEPT}: 1 added\n"
    sweep.stop_after = None
    assert attnbench(f"run --resume {path}").code == 0
    rows = json.loads(attnbench("history --json -").out)
    assert [row["rows"] for row in rows] == [len(read(path).records)]


@pytest.mark.parametrize("spoil", ["locked", "newer", "nonsense"])
def test_a_run_ends_as_ever_where_the_history_cannot_be_written(attnbench, run, monkeypatch, spoil):
    monkeypatch.setattr("attnbench.store.history.writing.SHORT_PATIENCE_S", 0.05)
    run()
    with closing(sqlite3.connect(KEPT, isolation_level=None)) as other:
        if spoil == "locked":
            other.execute("BEGIN IMMEDIATE")
        elif spoil == "newer":
            other.execute("UPDATE attnbench_version SET version_num = '9000'")
        else:
            KEPT.write_bytes(b"nonsense" * 4096)
        path, answer = run()
    assert read(path).records
    assert answer.err.count("\n") == 1
    assert answer.err.startswith(f"the run is in its file, but not in the history (history: db={KEPT} is ")
    assert answer.err.endswith(f"to add it: attnbench history --add {path}\n")


def test_the_environment_can_say_that_no_history_is_kept(attnbench, run, monkeypatch):
    monkeypatch.setenv("ATTNBENCH_HISTORY", "off")
    assert run()[1].err == ""
    assert not KEPT.exists()
    answer = attnbench("history")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "ATTNBENCH_HISTORY=off says that there is no history" in answer.err


def test_without_sqlalchemy_runs_are_measured_and_history_says_what_is_missing(attnbench, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    _, answer = run()
    assert (answer.err, KEPT.exists()) == ("", False)
    answer = attnbench("history")
    assert (answer.code, answer.out) == (3, "")
    assert answer.err == "history: module=sqlalchemy is not installed; pip install sqlalchemy alembic\n"


# ── in and out ─────────────────────────────────────────────────────────────────────────────────────


def test_runs_go_in_once_and_come_out_as_files(attnbench, run):
    path, _ = run()
    text = path.read_text()
    KEPT.unlink()
    assert attnbench(f"history --add {path}").out == f"{KEPT}: 1 added\n"
    assert attnbench(f"history --add results {path}").out == f"{KEPT}: 0 added, 2 unchanged\n"
    whole = read(path)
    path.unlink()
    answer = attnbench(f"history --restore {whole.id}")
    assert answer.out == f"written: {path}\n"
    assert read(path) == whole
    assert attnbench(f"history --restore {whole.id} --to -").out == path.read_text()
    assert len(path.read_text().splitlines()) == len(text.splitlines())
    assert attnbench(f"export {whole.id} --csv rows.csv").code == 0


def test_a_file_of_another_content_is_not_overwritten(attnbench, run):
    path, _ = run()
    Path("mine.txt").write_text("mine")
    answer = attnbench(f"history --restore {read(path).id} --to mine.txt")
    assert (answer.code, Path("mine.txt").read_text()) == (2, "mine")
    assert answer.err == (
        "attnbench history: --to=mine.txt is there and has another content; a new name; nothing was written\n"
    )


def test_files_that_are_no_runs_are_said_and_the_others_added(attnbench, run):
    path, _ = run()
    KEPT.unlink()
    (path.parent / "theirs.json").write_text("[1, 2")
    answer = attnbench("history --add results")
    assert (answer.code, answer.out) == (0, f"{KEPT}: 1 added\n")
    assert "theirs.json" in answer.err
    answer = attnbench(f"history --add nowhere.json {path}")
    assert (answer.code, answer.out) == (1, f"{KEPT}: 0 added, 1 unchanged\n")
    assert "nowhere.json is not there" in answer.err


# ── showing ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def row(run):
    path, _ = run()
    run()
    first = read(path).records[0]
    return f"{first.case_id}/{first.backend}"


def test_a_trend_is_drawn_and_written(attnbench, row):
    answer = attnbench(["history", row])
    assert answer.code == 0
    assert answer.out.startswith(f"{row}   a CPU, timer wall")
    assert "no change is looked for in fewer than 12 runs" in answer.out
    answer = attnbench(["history", row, "--csv", "-"])
    lines = list(csv.DictReader(io.StringIO(answer.out)))
    assert [(line["case_id"], line["backend"], line["timer"]) for line in lines] == [(*row.split("/"), "wall")] * 2
    assert answer.err.startswith(row)
    data = json.loads(attnbench(["history", row, "--json", "-"]).out)
    [series] = data["series"]
    assert [point["median_ms"] for point in series["points"]] == [float(line["median_ms"]) for line in lines]
    assert (series["changes"], data["losses"]) == ([], [])


def test_lists_are_written_and_cut(attnbench, row):
    assert len(attnbench("history --limit 1").out.splitlines()) == 2
    assert len(list(csv.DictReader(io.StringIO(attnbench("history --csv -").out)))) == 2
    assert "no run that fits" in attnbench("history --suite nothing").out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--limit 0", "--limit=0 cannot be used; a whole number, at least 1"),
        ("--limit ²", "--limit=² cannot be used"),
        ("--since soon", "--since=soon is no time; a date such as 2026-11-20, or days back such as 30d"),
        ("--to x", "--to=x goes with --restore"),
        ("--add a --restore b", "--add does not go with --restore; one of them"),
        ("x --add a", "--add does not go with ROW; one of them"),
        ("x --backend y", "ROW does not go with --case or --backend"),
        ("--csv - --json -", "--json=- wants stdout, as --csv does"),
        ("--csv /nowhere/at/all\0", "cannot be written"),
        ("--db --csv", "--db=--csv starts like a flag"),
        ("nothing/here", "ROW=nothing/here fits no row in the history"),
        ("postgresql://me:secret@host/x", "ROW is a URL"),
        ("--out elsewhere", "db=elsewhere/history.sqlite is not there"),
        ("--restore ffffffff", "RUN=ffffffff is not in the history"),
    ],
)
def test_a_mistake_is_answered_in_one_line(attnbench, row, words, said):
    answer = attnbench(f"history {words}")
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert said in answer.err
    assert "secret" not in answer.err
