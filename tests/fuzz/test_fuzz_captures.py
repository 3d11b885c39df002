"""Captures of ncu, nsys and torch.profiler with arbitrary content, shown."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, suppress

import made_up_captures as made
from attack import NUMBERS, TEXTS, bytes_spoilt, dumps, spoilt, value

TABLES = ["all", "kernels", "summary", "ranges", "api", "advice", "metrics", "categories"]


def files(folder):
    """One capture of each format, by name."""
    whole = {path.name: path.read_bytes() for path in made.CAPTURES.iterdir() if path.suffix != ".md"}
    whole |= {
        "ncu.csv": made.ncu_raw().encode(),
        "details.csv": made.ncu_details().encode(),
        "nsys.sqlite": made.nsys_sqlite(folder / "made.sqlite").read_bytes(),
        "trace.json": json.dumps(made.torch_trace()).encode(),
    }
    return {name: data for name, data in whole.items() if len(data) < 400_000}


def database_spoilt(path, source):
    """Values of another type, and tables that lose a column or are gone."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = source.choice(names)
        columns = [line[1] for line in database.execute(f'PRAGMA table_info("{table}")')]
        column, kind = source.choice(columns), source.randrange(6)
        item = value(source)
        item = item if isinstance(item, str | float | None) else source.choice([1, -1, 2**62, b"\xff\x00"])
        item = item.encode("utf-8", "replace").decode() if isinstance(item, str) else item
        if kind == 0:
            database.execute(f'DROP TABLE "{table}"')
        elif kind == 1 and len(columns) > 1:
            database.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO x{source.randrange(9)}')
        elif kind == 2:
            database.execute(f'DELETE FROM "{table}" WHERE rowid % 2 = 0')
        else:
            place = " WHERE rowid = 1" if kind == 3 else ""
            database.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = ?{place}', (item,))


def test_captures(attack):
    whole = files(attack.folder)
    for source in attack.seeds():
        name = source.choice(sorted(whole))
        data, path = whole[name], attack.folder / name
        path.write_bytes(data)
        if name.endswith(".sqlite") and source.random() < 0.7:
            with suppress(sqlite3.Error):  # what cannot be done to it
                database_spoilt(path, source)
        elif name.endswith(".json") and source.random() < 0.7:
            path.write_text(dumps(spoilt(json.loads(data), source)))
        elif name.endswith((".csv", ".txt")) and source.random() < 0.5:
            fields = data.decode("utf-8", "replace").split(",")
            for _ in range(source.choice((1, 3, 20))):
                fields[source.randrange(len(fields))] = str(source.choice(TEXTS + [str(item) for item in NUMBERS]))
            path.write_bytes(",".join(fields).encode("utf-8", "replace"))
        else:
            path.write_bytes(bytes_spoilt(data, source))
        code, *_ = attack.call(["profile", "--from", name, "--json", "kept.json"])
        if code == 0:
            attack.call(["profile", "--from", name, "--csv", "-"])
            assert attack.call(["profile", "--from", "kept.json"])[0] == 0
            kept = json.loads((attack.folder / "kept.json").read_text())
            (attack.folder / "kept.json").write_text(dumps(spoilt(kept, source)))
            attack.call(["profile", "--from", "kept.json", "--csv", "-"])
