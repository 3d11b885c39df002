"""Databases of the history, damaged in every way, with every verb that reads one."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress

from attack import NUMBERS, TEXTS, bytes_spoilt, value
from history_places import numbered

from attnbench.store import runfile
from attnbench.store.history.opening import open_history
from attnbench.store.history.place import Place
from attnbench.store.history.writing import add

RUNS = 14
VERSIONS = ["0000", "", "0002", "9999", "x", "00010", "-1", "0001 ", "\x1b[2J", None, 1, 2**40, b"\xff"]


def made(folder):
    """The bytes of a history with a change of level in it."""
    path = folder / "whole.sqlite"
    with open_history(Place("whole", path), write=True) as history:
        for number in range(RUNS):
            add(history, numbered(number, factor=1.0 if number < 7 else 1.3))
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode=DELETE")
    return path.read_bytes()


def edited(path, source):
    """What an editor, another program or a broken disk could have done to the tables."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.create_function("chance", 0, source.random)  # SQLite's own random() has a seed of its own
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = source.choice(names)
        columns = [line[1] for line in database.execute(f'PRAGMA table_info("{table}")')]
        column, kind = source.choice(columns), source.randrange(12)
        item = value(source)
        if not isinstance(item, str | float | None) and not (isinstance(item, int) and abs(item) < 2**63):
            item = source.choice([b"", b"\xff\x00", b"x\x9c\x03\x00\x00\x00\x00\x01", 2**62])
        item = item.encode("utf-8", "replace").decode() if isinstance(item, str) else item
        if kind == 0:
            database.execute(f'DROP TABLE "{table}"')
        elif kind == 1:
            database.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO gone')
        elif kind == 2:
            database.execute(f'DELETE FROM "{table}" WHERE {source.choice(("1", "chance() < 0.5"))}')
        elif kind == 3:
            database.execute("UPDATE attnbench_version SET version_num = ?", (source.choice(VERSIONS),))
        elif kind == 4:
            with suppress(sqlite3.Error):
                database.execute("INSERT INTO attnbench_version VALUES (?)", (source.choice(VERSIONS),))
        elif kind == 5:
            database.execute("DELETE FROM attnbench_version")
        elif kind == 6:
            database.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = CAST("{column}" AS BLOB)')
        elif kind == 7:
            database.execute(f'CREATE TABLE again AS SELECT * FROM "{table}" ')
            database.execute(f'DROP TABLE "{table}"')
            database.execute(f'ALTER TABLE again RENAME TO "{table}"')
            database.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}"')
        else:
            where = source.choice(("1", "1", "rowid = 1", "chance() < 0.33"))
            where = "1" if table == "attnbench_points" and "rowid" in where else where
            with suppress(sqlite3.IntegrityError):
                database.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = ? WHERE {where}', (item,))


COMMANDS = [
    ["history"],
    ["history", "--limit", "3", "--json", "-"],
    ["history", "--csv", "-", "--since", "2026-01-03"],
    ["history", "sdpa-cudnn"],
    ["history", "--backend", "cudnn", "--json", "-"],
    ["history", "sdpa-flash", "--csv", "-"],
    ["history", "--restore", "00000003", "--to", "-"],
    ["history", "--restore", "00000004"],
    ["history", "--restore", "0000000"],
    ["history", "--add", "."],
    ["history", "--add", "run.json"],
    ["export", "00000005", "--csv", "-"],
    ["diff", "00000001", "0000000d"],
    ["report", "00000002", "--html", "x.html"],
]


def test_history(attack):
    whole = made(attack.folder)
    path = attack.folder / "results" / "history.sqlite"
    path.parent.mkdir()
    path.write_bytes(whole)
    (attack.folder / "run.json").write_text(runfile.dumps(numbered(3)))
    (attack.folder / "more.json").write_text(runfile.dumps(numbered(RUNS)))
    (attack.folder / "other.json").write_text('{"no": "run"}')
    for source in attack.seeds():
        kind = source.random()
        if kind < 0.75:
            for _ in range(source.choice((1, 1, 2))):
                with suppress(sqlite3.Error):  # what the edit before made impossible
                    edited(path, source)
        elif kind < 0.95:
            path.write_bytes(bytes_spoilt(whole, source))
        else:
            odd = [b"", b"\0" * 4096, b"SQLite format 3\0", source.randbytes(8192)]
            path.write_bytes(source.choice([*odd, *(str(item).encode("utf-8", "replace") for item in TEXTS + NUMBERS)]))
        for words in source.sample(COMMANDS, 4):
            attack.call(words)
