"""Names that become paths: no name in a run file or a database leads out of a folder."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from attnbench.cli import main
from attnbench.errors import RunFileError
from attnbench.formats.exports import export
from attnbench.formats.layouts import layout_names, load_layout
from attnbench.report.charts import figures
from attnbench.report.charts.base.by_axis import figures_over
from attnbench.store import runfile
from attnbench.store.history.entry import pack
from attnbench.store.history.opening import open_history
from attnbench.store.history.place import Place
from attnbench.store.history.writing import add
from made_up_run import make_case, make_group, make_run

EVIL_IDS = [
    "../../evil",
    "/tmp/evil",
    "..",
    ".",
    "",
    "a/b",
    "a\\b",
    "3f9a01bc\n",
    "3F9A01BC",
    "3f9a01bc.json",
    "x" * 9,
    "0" * 17,
    "abc",
    "\u0661\u0662\u0663\u0664",
    "nul",
    "3f9a01bc\u0000",
    7,
    None,
    ["3f9a01bc"],
]
EVIL = "../../evil\\..\\evil:nul/~\x1b[31m"


def text_with(**changes):
    data = json.loads(runfile.dumps(make_run()))
    data["run"] |= changes
    return json.dumps(data)


def paths_below(folder):
    """Files, but for the marks that readers of a database leave beside it."""
    return {path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("history.sqlite")}


@pytest.mark.parametrize("run_id", EVIL_IDS)
def test_an_id_that_is_none_is_refused_on_reading(run_id):
    with pytest.raises(RunFileError) as error:
        runfile.loads(text_with(id=run_id), who="x.json")
    assert str(error.value).startswith("x.json: id")
    assert "\n" not in str(error.value)


def test_an_id_that_is_none_makes_no_run():
    with pytest.raises(RunFileError, match="is not the id of a run; 4 to 16 of the digits 0-9 and a-f"):
        make_run(id="../evil")


@pytest.mark.parametrize("axis", ["../up", "a/b", "a b", "", "x" * 65, "ключ", "a\x1b", "-a", "9"])
def test_the_name_of_an_axis_is_a_plain_one(axis):
    data = json.loads(runfile.dumps(make_run()))
    for place in (data["records"][0], data["run"]["plan"][0]):
        spoilt = json.loads(json.dumps(data).replace(json.dumps(place["case"]), json.dumps({axis: 1}), 1))
        with pytest.raises(RunFileError, match="is not the name of an axis; letters, digits and _"):
            runfile.loads(json.dumps(spoilt))


@pytest.mark.parametrize("value", [{}, {"a": 1}, [[1]], [{}]])
def test_the_value_of_an_axis_is_plain(value):
    data = json.loads(runfile.dumps(make_run()))
    data["records"][0]["case"]["seqlen"] = value
    with pytest.raises(RunFileError, match=r"case\.seqlen=.* is not the value of an axis"):
        runfile.loads(json.dumps(data))


@pytest.mark.parametrize("levels", [9, 100, 800, 5000])
def test_what_nests_deeply_is_refused_in_one_line(levels):
    text = runfile.dumps(make_run()).replace('"seqlen": 16384', f'"seqlen": {"[" * levels}{"]" * levels}')
    with pytest.raises(RunFileError) as error:
        runfile.loads(text)
    assert "nested too deeply" in str(error.value)
    assert len(str(error.value)) < 300


@pytest.fixture
def kept(tmp_path):
    """A history in ``deep/results`` whose only run claims an evil id, in its columns and in its text."""
    folder = tmp_path / "deep" / "results"
    place = Place("history.sqlite", folder / "history.sqlite")
    with open_history(place, write=True) as history:
        add(history, make_run())
    return folder


@pytest.mark.parametrize("evil", ["../../evil", "..", "/tmp/evil", "3f9a01bc/../../x"])
@pytest.mark.parametrize("asked", ["3f9a01bc", "whole"])
def test_no_id_of_a_database_leads_out_of_its_folder(kept, evil, asked, tmp_path, capsys):
    head = runfile.head(make_run()).replace('"3f9a01bc"', json.dumps(evil))
    column = evil if asked == "whole" else "3f9a01bc"
    with closing(sqlite3.connect(kept / "history.sqlite")) as database, database:
        database.execute("UPDATE attnbench_runs SET head = ?, id = ?", (pack(head), column))
    before = paths_below(tmp_path)
    for words in (
        ["history", "--restore", column],
        ["history", "--restore", column, "--to", "-"],
        ["history", "--restore", column, "--to", str(tmp_path / "there.json")],
        ["report", column],
        ["export", column, "--csv", "-"],
        ["diff", column, column],
    ):
        code = main([*words, "--out", str(kept)])
        said = capsys.readouterr()
        assert code == 2
        assert len(said.err.splitlines()) == 1
        assert said.out == ""
    assert paths_below(tmp_path) == before


def test_every_text_of_a_file_stays_inside_the_folder_of_what_is_written(tmp_path):
    """Case ids, suites, backends, groups, phases, timers and values of axes: all of them at once."""
    case = make_case()
    records = [dataclasses.replace(item, case=item.case | {"seqlen": size, "dtype": EVIL}, case_id=f"{EVIL}{size}",
                                   group=f"{EVIL}{size}", backend=EVIL + item.backend, config=EVIL,
                                   phases={EVIL: item.time}, timers={EVIL: item.time, "b": item.time})
               for size in (512, 1024) for item in make_group(case)]  # fmt: skip
    runs = [make_run(records, suite=EVIL, started=EVIL * 9, id=name) for name in ("0badcafe", "00000001")]
    inside = tmp_path / "outer" / "inside"
    written = [runfile.write(runs[0], runfile.default_path(runs[0], inside))]
    for name in ("csv", "md", "json"):
        written += export(runs[0], name, inside / f"rows.{name}", by="dtype")
    seed = load_layout("seed-001").write(runs[0], inside / "sweep.csv")
    for path in [*written, *seed]:
        assert path.parent == inside
        assert path.is_file()
    assert paths_below(tmp_path) == {*written, *seed}
    for figure in [*figures(runs), *figures_over(runs, "seqlen", None)]:
        place = Path(figure.stem)
        assert not place.is_absolute()
        assert ".." not in place.parts
        assert len(place.parts) <= 3
    assert layout_names()
