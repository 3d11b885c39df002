"""A history that cannot be opened, read or written is reported in one line, and is not changed."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from history_places import fill, numbered, python
from sqlalchemy import inspect, text

from attnbench.errors import Unavailable, UsageError
from attnbench.store import runfile
from attnbench.store.history import opening
from attnbench.store.history import place as place_module
from attnbench.store.history.opening import LATEST, STEPS, open_history
from attnbench.store.history.place import find_place
from attnbench.store.history.reading import list_runs, text_of
from attnbench.store.history.writing import add, keep

NOBODY = 65534


def listed(place):
    with open_history(place, write=False) as history:
        return [run.id for run in list_runs(history)]


def one_line(error):
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith("history: ")
    return message


@contextmanager
def no_rights(folder):
    """As somebody who may read `folder` and not write to it."""
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)


@pytest.fixture
def open_folder():
    """A folder that everybody may enter, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


# ── locked, full, read-only ────────────────────────────────────────────────────────────────────────


def test_a_locked_file_is_waited_for_and_then_said(sqlite):
    fill(sqlite, [numbered(0)])
    with closing(sqlite3.connect(sqlite.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UsageError) as error, open_history(sqlite, write=True, patience_s=0.1) as history:
            add(history, numbered(1))
        assert one_line(error) == f"history: db={sqlite.name} is locked by another process; try again when that is done"
        assert listed(sqlite) == ["00000000"]  # readers are not kept waiting
    assert fill(sqlite, [numbered(1)]) == ["added"]


def test_a_locked_table_of_a_server_is_waited_for_and_then_said(postgresql, tmp_path):
    place = find_place(postgresql, tmp_path)
    fill(place, [numbered(0)])
    with open_history(place, write=True) as other, other.begin():
        other.execute(text("LOCK TABLE attnbench_runs IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(UsageError) as error, open_history(place, write=True, patience_s=0.1) as history:
            add(history, numbered(1))
    assert "is locked by another process; try again" in one_line(error)
    assert fill(place, [numbered(1)]) == ["added"]


def test_a_full_database_is_said_and_keeps_what_it_has(sqlite, monkeypatch):
    fill(sqlite, [numbered(0)])
    share = opening._share

    def small(connection):
        share(connection)
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages + 2}")

    monkeypatch.setattr(opening, "_share", small)
    with pytest.raises(UsageError) as error:
        fill(sqlite, [numbered(number) for number in range(1, 30)])
    assert one_line(error).endswith("has no room to grow; a disk with room")
    monkeypatch.undo()
    kept = listed(sqlite)
    with open_history(sqlite, write=False) as history:
        for name in kept:
            assert text_of(history, name)[1] == runfile.dumps(numbered(int(name, 16)))
    assert "00000000" in kept
    assert fill(sqlite, [numbered(40)]) == ["added"]


def test_a_disk_that_takes_no_more_is_said_by_the_command(sqlite, tmp_path):
    fill(sqlite, [numbered(0)])
    runfile.write(numbered(1), tmp_path / "one.json")

    code = """if True:
        import resource, sys
        from attnbench.cli import main
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
        sys.exit(main(["history", "--add", *sys.argv[2:]]))
    """
    process = python(code, sqlite.path.stat().st_size // 2, tmp_path / "one.json", "--out", tmp_path)
    out, err = process.communicate()
    assert (process.returncode, out, err.count("\n")) == (2, "", 1), err
    assert "cannot be read or written" in err or "has no room" in err
    assert listed(sqlite) == ["00000000"]


def test_a_file_that_may_only_be_read_is_read(open_folder):
    place = find_place(None, open_folder, {})
    fill(place, [numbered(0)])
    fill(place, [numbered(1)])
    listed(place)  # imports what it needs, as long as it may
    before = place.path.read_bytes()
    with no_rights(open_folder):
        assert listed(place) == ["00000001", "00000000"]
        with pytest.raises(UsageError) as error:
            fill(place, [numbered(2)])
    assert "may only be read; a file and folder you may write to" in one_line(error)
    assert place.path.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as error:
        fill(find_place(None, tmp_path / "file" / "results", {}), [numbered(0)])
    assert "cannot be opened (Not a directory); a file in a folder you may read and write" in one_line(error)


def test_a_folder_that_may_not_be_looked_into_is_said(open_folder):
    inner = find_place(None, open_folder / "inner", {})
    fill(inner, [numbered(0)])
    listed(inner)  # imports what it needs, as long as it may
    with no_rights(open_folder):
        for write in (False, True):
            with pytest.raises(UsageError) as error, open_history(inner, write=write):
                pass
            assert "cannot be opened" in one_line(error)
    inner.path.parent.chmod(0o700)


def test_a_folder_that_takes_no_file_is_said(open_folder):
    place = find_place(None, open_folder, {})
    fill(find_place(None, open_folder / "other", {}), [numbered(0)])
    (open_folder / "other").rename(open_folder.with_suffix(".away"))
    shutil.rmtree(open_folder.with_suffix(".away"))
    with no_rights(open_folder), pytest.raises(UsageError) as error:
        fill(place, [numbered(0)])
    assert "cannot be opened" in one_line(error)
    assert not place.path.exists()


# ── not ours, newer, older ─────────────────────────────────────────────────────────────────────────


def set_version(place, version):
    with open_history(place, write=True) as history, history.begin():
        history.execute(text("UPDATE attnbench_version SET version_num = :version"), {"version": version})


@pytest.mark.parametrize("write", [False, True])
def test_a_newer_history_is_refused_and_not_touched(place, write):
    fill(place, [numbered(0)])
    set_version(place, "9000")
    with pytest.raises(UsageError) as error, open_history(place, write=write):
        pass
    assert one_line(error) == (
        f"history: db={place.name} is of schema 9000, newer than this attnbench reads; "
        f"at most {LATEST}; upgrade attnbench"
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            b"not a database, but long enough to be read as one" * 40,
            "is not a database; a history written by attnbench",
        ),
        (b'{"schema": 1}', "is not a database"),
    ],
)
@pytest.mark.parametrize("write", [False, True])
def test_what_is_no_database_is_not_overwritten(sqlite, content, words, write):
    sqlite.path.write_bytes(content)
    with pytest.raises(UsageError) as error, open_history(sqlite, write=write):
        pass
    assert words in one_line(error)
    assert sqlite.path.read_bytes() == content


@pytest.mark.parametrize("write", [False, True])
def test_the_database_of_another_program_is_left_alone(sqlite, write):
    with closing(sqlite3.connect(sqlite.path)) as other:
        other.execute("CREATE TABLE theirs (x)")
    with pytest.raises(UsageError) as error, open_history(sqlite, write=write):
        pass
    assert "is a database of another program; a history written by attnbench, or a new file" in one_line(error)
    with closing(sqlite3.connect(sqlite.path)) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]


def test_tables_of_others_on_a_server_are_neighbours(postgresql, tmp_path):
    from sqlalchemy import create_engine

    engine = create_engine(postgresql.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE alembic_version (version_num text)")
        connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('theirs')")
    place = find_place(postgresql, tmp_path)
    fill(place, [numbered(0)])
    assert listed(place) == ["00000000"]
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == "theirs"
    engine.dispose()


def test_a_file_cut_short_is_said(sqlite):
    fill(sqlite, [numbered(number) for number in range(5)])
    whole = sqlite.path.read_bytes()
    sqlite.path.write_bytes(whole[: len(whole) // 3])
    with pytest.raises(UsageError) as error, open_history(sqlite, write=False) as history:
        text_of(history, list_runs(history)[0].id)
    assert "damaged" in one_line(error)


def test_reading_makes_no_history(place):
    with pytest.raises(UsageError) as error, open_history(place, write=False):
        pass
    assert "attnbench history --add RESULTS" in one_line(error)
    if place.path is not None:
        assert not place.path.exists()


# ── steps of the schema ────────────────────────────────────────────────────────────────────────────

SECOND = """
revision = "0002"
down_revision = "0001"


def upgrade():
    import sqlalchemy as sa
    from alembic import op

    op.add_column("attnbench_runs", sa.Column("comment", sa.Text))
    op.execute("UPDATE attnbench_runs SET comment = 'from step two'")
"""


def test_the_last_step_is_the_one_that_the_program_expects():
    from alembic.script import ScriptDirectory

    assert ScriptDirectory(str(STEPS)).get_heads() == [LATEST]


@pytest.fixture
def later(tmp_path, monkeypatch):
    """The program of a later release, which has one step more; gives its file."""
    steps = tmp_path / "steps"
    shutil.copytree(STEPS, steps, ignore=shutil.ignore_patterns("__pycache__"))
    step = steps / "versions" / "v0002_second.py"
    step.write_text(SECOND)

    def release():
        monkeypatch.setattr(opening, "STEPS", steps)
        monkeypatch.setattr(opening, "LATEST", "0002")
        return step

    return release


def test_an_older_history_is_brought_up_with_its_runs(place, later):
    fill(place, [numbered(0)])
    later()
    with pytest.raises(UsageError) as error, open_history(place, write=False):
        pass
    assert "is of schema 0001, older than this attnbench reads" in one_line(error)
    assert fill(place, [numbered(1)]) == ["added"]
    assert listed(place) == ["00000001", "00000000"]
    with open_history(place, write=False) as history, history.begin():
        assert history.execute(text("SELECT id, comment FROM attnbench_runs ORDER BY id")).all() == [
            ("00000000", "from step two"),
            ("00000001", None),
        ]


def test_a_step_that_fails_leaves_the_history_as_it_was(place, later, monkeypatch):
    fill(place, [numbered(0)])
    step = later()
    step.write_text(SECOND.replace("UPDATE attnbench_runs", "UPDATE attnbench_nothing"))
    with pytest.raises(UsageError):
        fill(place, [numbered(1)])
    monkeypatch.undo()
    assert listed(place) == ["00000000"]
    with open_history(place, write=True) as history:
        assert "comment" not in {column["name"] for column in inspect(history).get_columns("attnbench_runs")}


# ── addresses ──────────────────────────────────────────────────────────────────────────────────────

SECRET = "s3cr3t-p4ss"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"postgresql://me:{SECRET}@localhost:1/x?connect_timeout=2", "db=postgresql://localhost:1/x "),
        (f"postgres://me:{SECRET}@/x?host=/nowhere", "db=postgresql:///nowhere/x "),
        (f"postgresql://me@localhost:1/x?password={SECRET}&connect_timeout=2", "db=postgresql://localhost:1/x "),
        (f"postgresql://me:{SECRET}@localhost:1/x?nonsense=1", "db=postgresql://localhost:1/x "),
        (f"postgresql://me:{SECRET}@localhost:port/x", "is not the URL of a database"),
        (f"me:{SECRET}@localhost", "is not the URL of a database"),
        (
            "/data/runs.db",
            "is not the URL of a database; postgresql://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE, or "
            "sqlite:///FILE; did you mean sqlite:////data/runs.db?",
        ),
        (f"mysql://me:{SECRET}@localhost/x", "--db=mysql: is a database that is not supported"),
        (f"nonsense://me:{SECRET}@localhost/x", "is a database that is not supported"),
        (f"postgresql://me:begin@{SECRET}@localhost/x", "an @ in a password is written %40"),
        ("sqlite://", "--db=sqlite: names no file; sqlite:///FILE"),
        ("sqlite:///a%00b", "--db=sqlite: names no file; sqlite:///FILE"),
        ("sqlite:///" + 300 * "x", "cannot be opened (File name too long)"),
    ],
)
def test_a_wrong_address_is_said_without_its_password(url, words, tmp_path):
    with pytest.raises((UsageError, Unavailable)) as error, open_history(find_place(url, tmp_path), write=False):
        pass
    message = one_line(error)
    assert words in message
    assert SECRET not in message
    assert SECRET not in repr(error.value)


def test_a_place_shows_no_password():
    place = find_place(f"postgresql://me:{SECRET}@server:5433/runs", ".")
    assert place.name == "postgresql://server:5433/runs"
    assert SECRET not in repr(place)


def test_a_missing_driver_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setattr(place_module, "is_installed", lambda module: module != "psycopg")
    with pytest.raises(
        Unavailable,
        match=r"db=postgresql://server/x needs the driver psycopg, which is not installed; "
        r"pip install 'attnbench\[postgresql\]'",
    ):
        find_place("postgresql://server/x", ".")


def test_a_database_that_is_not_there_is_said(server_url, tmp_path):
    place = find_place(server_url.replace("/postgres?", "/nowhere?"), tmp_path)
    with pytest.raises(UsageError) as error, open_history(place, write=True):
        pass
    assert "cannot be reached" in one_line(error)
    assert 'database "nowhere" does not exist' in one_line(error)


def test_the_environment_names_the_history_after_the_flag(tmp_path):
    inside = {"ATTNBENCH_HISTORY": f"sqlite:///{tmp_path}/named.sqlite"}
    assert find_place(None, tmp_path, inside).path == tmp_path / "named.sqlite"
    assert find_place(f"sqlite:///{tmp_path}/flag.sqlite", tmp_path, inside).path == tmp_path / "flag.sqlite"
    assert find_place(None, tmp_path, {"ATTNBENCH_HISTORY": ""}).path == tmp_path / "history.sqlite"
    assert find_place(None, tmp_path, {"ATTNBENCH_HISTORY": "off"}) is None


# ── at the end of a run ────────────────────────────────────────────────────────────────────────────


def test_a_finished_run_is_kept_without_a_word(tmp_path):
    path = runfile.write(numbered(0), tmp_path / "run.json")
    assert keep(path) is None
    assert keep(path) is None
    assert listed(find_place(None, tmp_path, {})) == ["00000000"]


def test_a_script_adds_to_a_history_that_is_there_and_makes_none(tmp_path, monkeypatch):
    first, second = (runfile.write(numbered(number), tmp_path / f"{number}.json") for number in (0, 1))
    monkeypatch.delenv("ATTNBENCH_HISTORY", raising=False)
    assert keep(first, make=False) is None
    assert not (tmp_path / "history.sqlite").exists()
    keep(first)
    assert keep(second, make=False) is None
    assert listed(find_place(None, tmp_path, {})) == ["00000001", "00000000"]
    monkeypatch.setenv("ATTNBENCH_HISTORY", f"sqlite:///{tmp_path}/named.sqlite")
    assert keep(first, make=False) is None
    assert listed(find_place(f"sqlite:///{tmp_path}/named.sqlite", tmp_path)) == ["00000000"]


def test_where_sqlalchemy_is_missing_nothing_is_kept_and_nothing_said(tmp_path, monkeypatch):
    monkeypatch.setattr("attnbench.store.history.writing.is_installed", lambda module: module != "sqlalchemy")
    assert keep(runfile.write(numbered(0), tmp_path / "run.json")) is None
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_even_a_mistake_of_ours_does_not_take_the_run_along(tmp_path, monkeypatch):
    def broken(*words):
        raise TypeError("a mistake\nof ours")

    monkeypatch.setattr("attnbench.store.history.writing.add", broken)
    note = keep(runfile.write(numbered(0), tmp_path / "run.json"))
    assert note == (
        f"the run is in its file, but not in the history (a mistake of ours); to add it: "
        f"attnbench history --add {tmp_path / 'run.json'}"
    )
