"""A damaged database is reported in one line, whatever it contains; one bad file does not stop a folder."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest
from history_places import fill, numbered, sqlite  # noqa: F401 (fixture)

from attnbench.cli import main
from attnbench.store import runfile
from attnbench.store.history import opening
from attnbench.store.history.entry import pack
from attnbench.store.history.opening import LATEST, STEPS, steps

RUNS = 13
WORDS = "is damaged"
DAMAGES = {
    "a table is gone": "DROP TABLE attnbench_points",
    "the runs are gone": "DROP TABLE attnbench_runs",
    "a column is gone": "ALTER TABLE attnbench_runs RENAME COLUMN started TO gone",
    "a column of series is gone": "ALTER TABLE attnbench_series RENAME COLUMN timer TO gone",
    "a number is text": "UPDATE attnbench_points SET median_ms = 'fast'",
    "a number is none": "UPDATE attnbench_points SET median_ms = NULL",
    "a number is too large": "UPDATE attnbench_points SET median_ms = 9e999",
    "a time is negative": "UPDATE attnbench_points SET median_ms = -1.0",
    "a text is bytes": "UPDATE attnbench_runs SET started = x'ff00'",
    "a text is no UTF-8": "UPDATE attnbench_runs SET suite = CAST(x'ff00' AS TEXT)",
    "counts are no JSON": "UPDATE attnbench_runs SET outcomes = '{'",
    "counts are a list": "UPDATE attnbench_runs SET outcomes = '[]'",
    "counts are texts": 'UPDATE attnbench_runs SET outcomes = \'{"passed": "4"}\'',
    "an environment is none": "UPDATE attnbench_environments SET body = '{}'",
    "an environment is deep": f"UPDATE attnbench_environments SET body = '{'[' * 9000}'",
    "no version": "DELETE FROM attnbench_version",
    "no table of versions": "DROP TABLE attnbench_version",
    "version 0000": "UPDATE attnbench_version SET version_num = '0000'",
    "an empty version": "UPDATE attnbench_version SET version_num = ''",
    "a version in words": "UPDATE attnbench_version SET version_num = 'latest'",
    "two versions": "INSERT INTO attnbench_version VALUES ('0000')",
    "a text is not packed": "UPDATE attnbench_runs SET head = 'x'",
}
COMMANDS = (
    ["history"],
    ["history", "sdpa-flash"],
    ["history", "--restore", "00000003"],
    ["export", "00000003", "--md", "-"],
)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A folder of results with a history of a change of level."""
    monkeypatch.chdir(tmp_path)
    from attnbench.store.history.place import find_place

    place = find_place(None, tmp_path / "results", {})
    fill(place, [numbered(number, factor=1.0 if number < 6 else 1.4) for number in range(RUNS)])
    return place.path


def change(path, *statements):
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for statement in statements:
            database.execute(*statement) if isinstance(statement, tuple) else database.execute(statement)


def said(words, capsys):
    code = main(words)
    found = capsys.readouterr()
    assert len(found.err.splitlines()) <= 1
    return code, found.err


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_database_is_called_so(kept, capsys, damage):
    change(kept, DAMAGES[damage])
    answers = [said(words, capsys) for words in COMMANDS]
    assert all(code in (0, 2) for code, _ in answers)
    errors = [error for _, error in answers if error]
    assert errors
    assert all(WORDS in error for error in errors)


@pytest.mark.parametrize("body", [b"", b"x", pack("["), pack("[]"), pack('{"kernels": 3}'), pack('{"kernels": [3]}')])
def test_a_damaged_line_beside_a_change_is_called_so(kept, capsys, body):
    change(kept, ("UPDATE attnbench_records SET body = ?", (body,)))
    code, error = said(["history", "sdpa-flash"], capsys)
    assert (code, WORDS in error) == (2, True)


@pytest.mark.parametrize("head", [b"x", pack("["), pack("[]"), pack("{}")])
def test_a_run_is_not_put_over_a_damaged_one(kept, capsys, head, tmp_path):
    change(kept, ("UPDATE attnbench_runs SET head = ?, digest = 'x'", (head,)))
    (tmp_path / "run.json").write_text(runfile.dumps(numbered(3)))
    code, error = said(["history", "--add", "run.json"], capsys)
    assert code in (1, 2)
    assert WORDS in error or "is the id of another run there" in error


def test_several_runs_of_one_key_are_damage(kept, capsys, tmp_path):
    change(
        kept,
        "CREATE TABLE again AS SELECT * FROM attnbench_runs",
        "DROP TABLE attnbench_runs",
        "ALTER TABLE again RENAME TO attnbench_runs",
        "INSERT INTO attnbench_runs SELECT * FROM attnbench_runs",
        "UPDATE attnbench_runs SET digest = 'x'",
    )
    (tmp_path / "run.json").write_text(runfile.dumps(numbered(3)))
    code, error = said(["history", "--add", "run.json"], capsys)
    assert (code, WORDS in error) == (2, True)


def test_a_complaint_of_sqlite_that_is_no_text_says_damaged(kept, capsys):
    change(
        kept,
        "PRAGMA writable_schema = 1",
        "UPDATE sqlite_master SET name = CAST(x'eb61' AS TEXT), sql = 'CREATE' WHERE name = 'attnbench_points'",
    )
    for words in (*COMMANDS, ["history", "--add", "x.json"]):
        code, error = said(words, capsys)
        assert (code, WORDS in error) == (2, True)


def test_a_version_to_come_is_newer_and_not_damaged(kept, capsys):
    change(kept, "UPDATE attnbench_version SET version_num = '0002'")
    assert (
        "is of schema 0002, newer than this attnbench reads; at most 0001; upgrade attnbench"
        in said(["history"], capsys)[1]
    )


def test_the_steps_are_known_by_their_files(monkeypatch, tmp_path):
    assert steps()[-1] == LATEST
    assert steps() == [path.stem[1:5] for path in sorted((STEPS / "versions").glob("v*.py"))]
    monkeypatch.setattr(opening, "STEPS", tmp_path)
    assert steps() == []


def test_one_bad_file_stops_no_folder(tmp_path, monkeypatch, capsys):
    """Files that are cut, are no runs, break rules of the database, or say one thing twice stand among good ones."""
    monkeypatch.chdir(tmp_path)
    good = [numbered(number) for number in range(3)]
    text = runfile.dumps(good[0])
    data = json.loads(runfile.dumps(numbered(7)))
    record = data["records"][0]
    record["timers"] = {"cupti": record["time"], "again": record["time"]}
    spoilt = {
        "a.json": text[: len(text) // 2], "b.json": "[]", "c.json": "[" * 100_000, "d.json": '{"schema": 9}',
        "e.json": text.replace('"00000000"', '"../../x"'), "f.json": text.replace('"suite": "', '"suite": 0.5, "x": "'),
        "g.json": text.replace('"seqlen": 16384', '"seqlen": 1e999'), "h.json": "", "i.json": "\x00\xff",
        "j.json": text.replace('"seqlen": 16384', '"seqlen": ' + "[" * 800 + "]" * 800),
        "twice.json": json.dumps(data),
    }  # fmt: skip
    for name, content in spoilt.items():
        (tmp_path / name).write_bytes(content.encode("latin-1") if name == "i.json" else content.encode())
    for number, run in enumerate(good):
        runfile.write(run, tmp_path / f"{'az'[number % 2]}-{number}.json")
    assert main(["history", "--add", "."]) == 0
    found = capsys.readouterr()
    assert found.out == "results/history.sqlite: 4 added\n"
    assert len(found.err.splitlines()) == len(spoilt) - 1
    assert all(f"{name}: " in found.err or f"={name} " in found.err for name in spoilt if name != "twice.json")
