"""Read KuaiRand-1K's own files: two logs and the users, from their folder or from the published archive.

https://kuairand.com; https://zenodo.org/records/10439422.  The standard logs of both periods are joined by user (only
users in both); each user's interactions are in order of time, equal times in order of the files.  A number takes eight
bytes of memory: 0.6 GB for the 11.7 million rows.
"""

from __future__ import annotations

import csv
import io
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import IO

import numpy as np

from attnbench.datasets.history import ACTIONS, FEATURES, LISTS, History
from attnbench.errors import UsageError, absent, refusal
from attnbench.text import shown

WHO = "kuairand-1k"
LOGS = ("log_standard_4_08_to_4_21_1k.csv", "log_standard_4_22_to_5_08_1k.csv")
USERS = "user_features_1k.csv"
FETCH = "curl -LO https://zenodo.org/records/10439422/files/KuaiRand-1K.tar.gz"
NUMBERS = ("user_id", "video_id", "date", "time_ms", "play_time_ms", "duration_ms")
PLACES = ("", "data", "KuaiRand-1K/data")
BEGINNING = "its beginning"
LARGEST = 2**62
AT_ONCE, EVERY = 100_000, 1_000_000
"Rows read at once, and rows between two reports of progress."


def read(source: Path, on_progress: Callable[[str], None] = lambda words: None) -> list[History]:
    """Return the users of both periods, in the order of the users' file.

    Args:
        source: the folder of the files, its parent, or the archive.
        on_progress: called with the progress as text.

    Raises:
        UsageError: a file is missing or cannot be read, or has an invalid line; the message names file, line and
            column.
    """
    periods: dict[str, dict[int, list[np.ndarray]]] = {}
    features: dict[int, tuple[int, ...]] = {}
    last = BEGINNING
    try:
        for name, file in _files(source):
            last = name
            if name == USERS:
                features = _features(file)
            else:
                periods[name] = _log(name, file, on_progress)
    except (OSError, EOFError, tarfile.TarError, zlib.error, UnicodeError) as error:
        words = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        wrong, accepted = f"cannot be read at {last} ({words})", "the folder of KuaiRand-1K, or its archive"
        if last == BEGINNING and isinstance(error, tarfile.ReadError):  # its text lists what each decompressor said
            wrong = "is no archive, or damaged at its beginning"
        raise UsageError(refusal(WHO, "--source", source, wrong, accepted)) from None
    both = [user for user in features if all(user in periods[name] for name in LOGS)]
    if not both:
        raise UsageError(refusal(WHO, "users", 0, f"are in {USERS} and in both logs", "at least one"))
    return [_history(user, features[user], [periods[name] for name in LOGS]) for user in both]


def _files(source: Path) -> Iterator[tuple[str, IO[str]]]:
    """Name and text of the three files, of an archive in its own order.

    Raises:
        UsageError: one is missing.
    """
    if not source.is_file():
        paths = {name: [path for at in PLACES if (path := source / at / name).is_file()] for name in (USERS, *LOGS)}
        _check_there(source, [name for name, found in paths.items() if found])
        for name, (path, *_) in paths.items():
            with path.open(encoding="utf-8-sig", newline="") as file:
                yield name, file
        return
    read: list[str] = []
    with tarfile.open(source) as archive:
        for member in archive:
            name = Path(member.name).name
            if member.isfile() and name in (USERS, *LOGS) and name not in read:
                inside = archive.extractfile(member)
                assert inside is not None  # a file has content
                yield name, io.TextIOWrapper(inside, encoding="utf-8-sig", newline="")
                read.append(name)
        # To the end, where the checksum of the compressed data stands: damaged numbers may still be numbers.
        while archive.fileobj is not None and archive.fileobj.read(AT_ONCE):
            pass
    _check_there(source, read)


def _check_there(source: Path, found: Collection[str]) -> None:
    missing = [name for name in (USERS, *LOGS) if name not in found]
    if missing:
        raise _missing(source, missing[0])


def _missing(source: Path, name: str) -> UsageError:
    wrong = f"has no {name}" if source.exists() else absent(source)
    accepted = "the folder of KuaiRand-1K, or its archive"
    return UsageError(refusal(WHO, "--source", source, wrong, accepted, f"get it by: {FETCH}"))


def _places(name: str, header: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Return the positions of the wanted columns."""
    missing = [column for column in wanted if column not in header]
    if missing:
        raise UsageError(refusal(f"{WHO}: {name}:1", "columns", ",".join(missing), "are missing", ",".join(wanted)))
    return [header.index(column) for column in wanted]


def _rows(
    name: str, lines: Iterable[str], wanted: Sequence[str], header: Sequence[str] | None = None, before: int = 0
) -> Iterator[tuple[int, list[str]]]:
    """Yield line and wanted fields of each row; reads the header first unless given; `before` lines precede."""
    reader = csv.reader(lines)
    try:
        header = next(reader, []) if header is None else header
        places = _places(name, header, wanted)
        for row in reader:
            line = before + reader.line_num
            if len(row) != len(header):
                raise UsageError(
                    refusal(f"{WHO}: {name}:{line}", "fields", len(row), "are not a row", f"{len(header)}")
                )
            yield line, [row[place] for place in places]
    except csv.Error as error:
        line = before + reader.line_num
        raise UsageError(
            refusal(f"{WHO}: {name}:{line}", "line", line, f"is not CSV ({error})", "comma-separated fields")
        ) from None


def _whole(name: str, line: int, column: str, text: str, most: int = LARGEST) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
        accepted = f"0 to {most}" if most < LARGEST else "a whole number from 0"
        raise UsageError(refusal(f"{WHO}: {name}:{line}", column, shown(text), "cannot be used", accepted))
    return int(text)


def _features(file: IO[str]) -> dict[int, tuple[int, ...]]:
    numbered: list[dict[str, int]] = [{} for _ in FEATURES]
    found: dict[int, tuple[int, ...]] = {}
    for line, (user, *words) in _rows(USERS, file, ("user_id", *FEATURES)):
        number = _whole(USERS, line, "user_id", user)
        if number in found:
            raise UsageError(refusal(f"{WHO}: {USERS}:{line}", "user_id", number, "is there twice", "each user once"))
        found[number] = tuple(
            known.setdefault(word, len(known) + 1) for known, word in zip(numbered, words, strict=True)
        )
    return found


def _log(name: str, file: IO[str], on_progress: Callable[[str], None]) -> dict[int, list[np.ndarray]]:
    """Return the rows of each user in a period, int64 [rows, numbers]: those of `LISTS`, and the date."""
    found: dict[int, list[np.ndarray]] = {}
    read = 0
    for numbers in _numbers(name, file):
        user, video, date, time, play, duration = numbers[:, : len(NUMBERS)].T
        bits = numbers[:, len(NUMBERS) :] @ (1 << np.arange(len(ACTIONS)))
        rows = np.stack([video, time, bits, play, duration, date], axis=1)
        order = np.argsort(user, kind="stable")
        users, starts = np.unique(user[order], return_index=True)
        for one, some in zip(users.tolist(), np.split(rows[order], starts[1:]), strict=True):
            found.setdefault(one, []).append(some.copy())  # a copy: a view would keep the rows of all users in memory
        before, read = read, read + len(numbers)
        if read // EVERY > before // EVERY:
            on_progress(f"{name}: {read // EVERY} million rows")
    return found


def _numbers(name: str, file: IO[str]) -> Iterator[np.ndarray]:
    """Yield the used columns of a log, int64 [rows, `NUMBERS` and `ACTIONS`], some rows at a time.

    NumPy reads rows of plain numbers, twenty times as fast as Python row by row.  From the first other row on, all rows
    are read one by one, which accepts it or names its error.
    """
    wanted = (*NUMBERS, *ACTIONS)
    reader = csv.reader(file)
    header = next(reader, [])
    places, before = _places(name, header, wanted), reader.line_num
    while lines := list(islice(file, AT_ONCE)):
        plain = _plain(lines, places, len(header))
        if plain is None:
            rows = _rows(name, chain(lines, file), wanted, header, before)
            while some := list(islice(rows, AT_ONCE)):
                yield np.array([_checked(name, *one) for one in some], dtype=np.int64)
            return
        before += len(lines)
        yield plain


def _plain(lines: Sequence[str], places: Sequence[int], width: int) -> np.ndarray | None:
    """Return the wanted columns of lines of digits and commas; None if a line has anything else or a wrong number."""
    text = "".join(lines)
    if not text.isascii() or text.encode().translate(None, b"0123456789,\r\n"):
        return None
    if any(line.count(",") != width - 1 for line in lines):
        return None
    try:
        found: np.ndarray = np.loadtxt(lines, np.int64, comments=None, delimiter=",", usecols=places, ndmin=2)
    except ValueError:
        return None
    actions = found[:, len(NUMBERS) :]
    fine = len(found) == len(lines) and found.max() <= LARGEST and actions.max() <= 1
    return found if fine else None


def _checked(name: str, line: int, fields: Sequence[str]) -> list[int]:
    """Return the numbers of a row."""
    numbers = [_whole(name, line, column, text) for column, text in zip(NUMBERS, fields, strict=False)]
    actions = zip(ACTIONS, fields[len(NUMBERS) :], strict=True)
    return numbers + [_whole(name, line, column, text, most=1) for column, text in actions]


def _history(user: int, features: tuple[int, ...], periods: Sequence[dict[int, list[np.ndarray]]]) -> History:
    """Return a user's history, and remove its rows from the periods."""
    rows = np.concatenate([some for period in periods for some in period.pop(user)])
    order = np.argsort(rows[:, LISTS.index("time_ms")], kind="stable")
    return History(user, features, *rows[order].T.copy())
