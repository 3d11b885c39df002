"""What all fuzzers share: seeds until the time is over, hostile values, and a command that is watched.

``ATTNBENCH_FUZZ_SECONDS`` is the time of all fuzzers together (60 by default), and ``ATTNBENCH_FUZZ_SEED`` the
first seed.  By default that is a new one each time, in CI one that is made of the commit: new for each commit, but the
verdict on a commit does not change by chance.  One seed is one input in a folder as it was at first, so a failure is
repeated by its own seed.
"""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import json
import os
import random
import secrets
import subprocess
import time
from pathlib import Path

from attnbench.cli import main
from attnbench.text import UNSHOWN

SECONDS = float(os.environ.get("ATTNBENCH_FUZZ_SECONDS", "60"))
SEED = os.environ.get("ATTNBENCH_FUZZ_SEED")
FUZZERS = len(list(Path(__file__).parent.glob("test_*.py")))
"""They share the time."""
SECRET = "postgresql://me:secret@host/db"

TEXTS = [
    "",
    " ",
    "a",
    "\x1b[2J",
    "\r",
    "\n",
    "\x00",
    "\x9b1m",
    "\u202eabc",
    "\ufeff",
    "\udc80",
    "\ud800\udc00",
    "\ufffe",
    "../../evil",
    "/etc/passwd",
    "..",
    ".",
    "~root/x",
    "C:\\x",
    "a/b",
    "a\\b",
    "-",
    "--",
    "--help",
    "-1",
    "=1+1",
    "@x",
    "%s%n",
    "{0.__class__}",
    "{x}",
    "[red]x[/red]",
    "[/x]",
    "<script>alert(1)</script>",
    "&amp;",
    "`x`|*_",
    "'",
    '"',
    "' OR 1=1 --",
    "x" * 5000,
    "9" * 400,
    "1e999",
    "NaN",
    "inf",
    "null",
    "true",
    "0",
    "0x10",
    "1_000",
    "٣",
    "É",
    "🏆" * 40,
    "@deep@",
    SECRET,
    "b1-s1-h1-d1-fp16-fwd",
    "passed",
    "2026-11-20T12:34:56Z",
    "0000-00-00T99:99:99Z",
    "9999-12-31T23:59:59+23:59",
    "cupti",
    "seed-001",
    "sdpa-flash",
    "imported",
    "auto",
    "cold",
    "#0",
    "a#1",
    "a,b",
    "*",
]
NUMBERS = [
    0,
    1,
    -1,
    2,
    7,
    2**31 - 1,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    10**30,
    10**400,
    0.0,
    -0.0,
    0.5,
    1e-300,
    5e-324,
    1e300,
    1.7e308,
    -1e300,
    3.14,
    1e12,
    999999999999.9,
]
PLAIN = [None, True, False, [], {}, [[]], [{}], {"": {}}, {"a": 1}, [1, "a", None], ["a"] * 3, [1.0] * 40, [None] * 40]


def first_seed() -> int:
    """The seed asked for, in CI the commit's, else a new one."""
    if SEED is not None:
        return int(SEED)
    if os.environ.get("CI"):
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent)
        if commit.returncode == 0:
            return int(commit.stdout[:10], 16)
    return secrets.randbits(40)


class Attack:
    """Seeds for one fuzzer, and the command line under attack in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.outside = folder
        self.folder = folder / "in" / "side"
        self.folder.mkdir(parents=True)
        self._watched = self._around()
        self.seed: int | None = None
        "of the input that is tried"
        self.last: list[str] = []
        "the command that was given last"

    def seeds(self):
        """A generator of numbers for each input; ends with the time of this fuzzer, after one at least."""
        first = first_seed()
        files = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        end = time.monotonic() + SECONDS / FUZZERS
        for self.seed in itertools.count(first):
            self._put_back(files)
            yield random.Random(self.seed)
            if time.monotonic() >= end:
                return

    def _put_back(self, files):
        """Remove what the input before has left."""
        for path in sorted(self.folder.rglob("*"), reverse=True):
            if path.is_dir():
                with contextlib.suppress(OSError):  # files lie in it
                    path.rmdir()
            elif path not in files:
                path.unlink()
        for path, data in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def call(self, words, note=""):
        """Run a command; whatever it was given it ends with a code, one line where it refuses, and nothing outside."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))
        self.last = words
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
            out.flush()
            err.flush()
        said, told = (stream.buffer.getvalue() for stream in (out, err))
        where = f"{words!r} {note}"
        assert code in (0, 1, 2, 3), where
        lines = told.decode().splitlines()
        assert b"Traceback" not in told, where
        if code in (2, 3):
            # A comparison that judged nothing is still shown, beside a document on stdout, and its reason comes last.
            shown = code == 3 and words[0] == "diff" and said.strip()
            if shown:
                assert [line.startswith("attnbench diff: ") for line in lines].index(True) == len(lines) - 1, where
            elif words[:2] == ["history", "--add"]:  # files that it passes over are named before
                assert lines, where
                assert all(line.partition(":")[0].endswith(".json") for line in lines[:-1]), f"{where}: {lines}"
            else:
                assert len(lines) == 1, f"{where}: {lines}"
        assert not UNSHOWN.search(told.decode()), where
        assert b"secret@" not in told, where
        assert "-" in words or b"secret@" not in said, where
        if not any(f"--{name}" in words for name in ("html", "xlsx")):
            assert not UNSHOWN.search(said.decode()), where
        assert self._around() == self._watched, where
        return code, said, told

    def _around(self):
        return sorted(str(path) for path in self.outside.rglob("*") if self.folder not in path.parents)


def value(source: random.Random):
    """Something that was not expected there."""
    kind = source.randrange(10)
    if kind < 4:
        return source.choice(TEXTS)
    if kind < 7:
        return source.choice(NUMBERS)
    if kind < 9:
        return copy.deepcopy(source.choice(PLAIN))
    deep: object = source.choice(TEXTS)
    for _ in range(source.choice((3, 9, 40))):
        deep = [deep] if source.random() < 0.5 else {"a": deep}
    return deep


def dumps(data) -> str:
    """JSON, in which one hostile text stands for lists too deep for most readers."""
    return json.dumps(data).replace('"@deep@"', "[" * 800 + "]" * 800)


def spoilt(data, source: random.Random, times: int | None = None):
    """JSON data with some of its places replaced, renamed, repeated or taken out."""
    data = copy.deepcopy(data)
    for _ in range(times or source.choice((1, 1, 1, 2, 3, 8))):
        holder = source.choice(list(_holders(data)) or [data])
        if not holder:
            continue
        key = source.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        kind = source.randrange(12)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[source.choice(TEXTS)] = holder.pop(key)
        elif kind == 2 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[source.randrange(len(holder))]))
        elif kind == 3:
            other = source.choice(list(_holders(data)))
            holder[key] = copy.deepcopy(other)
        elif kind == 4 and isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
            factor = source.choice((0, -1, None, 10**9, 2))
            holder[key] = holder[key] // 10**9 if factor is None else holder[key] * factor
        elif kind == 5 and isinstance(holder[key], str):
            holder[key] += source.choice(TEXTS)
        else:
            holder[key] = value(source)
    return data


def bytes_spoilt(data: bytes, source: random.Random) -> bytes:
    """Bytes cut, flipped, doubled or overwritten; a URL is not: nobody can tell its password without its beginning."""
    data = bytearray(data.replace(SECRET.encode(), b""))
    for _ in range(source.choice((1, 1, 2, 5, 30))):
        at = source.randrange(len(data) + 1)
        kind = source.randrange(6)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            del data[at : at + source.randrange(1, 200)]
        elif kind == 2:
            data[at:at] = source.choice([text for text in TEXTS if text != SECRET]).encode("utf-8", "surrogatepass")
        elif kind == 3:
            data[at:at] = data[at : at + source.randrange(1, 200)]
        elif kind == 4:
            data[at : at + 1] = bytes([source.randrange(256)])
        elif at < len(data):
            data[at] ^= 1 << source.randrange(8)
    if source.random() < 0.05:
        at = source.randrange(len(data) + 1)
        data[at:at] = SECRET.encode()
    return bytes(data)


def _holders(data):
    waiting = [data]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict | list):
            yield one
            waiting += one.values() if isinstance(one, dict) else one
