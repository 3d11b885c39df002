"""KuaiRand-1K's own files, read: two logs and the users, from their folder or from the archive as it is published.

https://kuairand.com; https://zenodo.org/records/10439422.  Both periods' standard logs, joined by user (only users in
both), each user's interactions in the order of time (equal times in the order of the files).  About 8 bytes a number
are held: 0.6 GB for the 11.7 million rows.
"""

from __future__ import annotations

import csv
import io
import tarfile
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from attnbench.datasets.history import ACTIONS, FEATURES, LISTS, History
from attnbench.errors import UsageError, refusal
from attnbench.text import shown

WHO = "kuairand-1k"
LOGS = ("log_standard_4_08_to_4_21_1k.csv", "log_standard_4_22_to_5_08_1k.csv")
USERS = "user_features_1k.csv"
FETCH = "curl -LO https://zenodo.org/records/10439422/files/KuaiRand-1K.tar.gz"
NUMBERS = ("user_id", "video_id", "date", "time_ms", "play_time_ms", "duration_ms")
PLACES = ("", "data", "KuaiRand-1K/data")
EVERY = 1_000_000
"Rows between two words about how far it is."


def read(source: Path, told: Callable[[str], None] = lambda words: None) -> list[History]:
    """The users of both periods, in the order of the users' file.

    Args:
        source: the folder of the files, or one above it, or the archive.
        told: hears how far it is.

    Raises:
        UsageError: a file is missing or cannot be read, or a line of it is not what it should be; file, line and
            column are named.
    """
    with ExitStack() as closing:
        features = _features(closing.enter_context(_opened(source, USERS)))
        periods = []
        for name in LOGS:
            periods.append(_log(name, closing.enter_context(_opened(source, name)), told))
    both = [user for user in features if all(user in period for period in periods)]
    if not both:
        raise UsageError(refusal(WHO, "users", 0, f"are in {USERS} and in both logs", "at least one"))
    return [_history(user, features[user], [period[user] for period in periods]) for user in both]


@contextmanager
def _opened(source: Path, name: str) -> Iterator[IO[str]]:
    """A file of the data set, by its name."""
    try:
        if source.is_file():
            with tarfile.open(source) as archive:
                for member in archive:
                    if member.isfile() and Path(member.name).name == name:
                        inside = archive.extractfile(member)
                        assert inside is not None  # a file has content
                        yield io.TextIOWrapper(inside, encoding="utf-8", newline="")
                        return
            raise _missing(source, name)
        found = [path for place in PLACES if (path := source / place / name).is_file()]
        if not found:
            raise _missing(source, name)
        with found[0].open(encoding="utf-8-sig", newline="") as file:
            yield file
    except (OSError, EOFError, tarfile.TarError, UnicodeError) as error:
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UsageError(
            refusal(
                WHO,
                "source",
                source,
                f"cannot be read at {name} ({words})",
                "the folder of KuaiRand-1K, or its archive",
            )
        ) from None


def _missing(source: Path, name: str) -> UsageError:
    return UsageError(
        refusal(
            WHO, "source", source, f"has no {name}", "the folder of KuaiRand-1K, or its archive", f"get it by: {FETCH}"
        )
    )


def _rows(name: str, file: IO[str], wanted: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """Line and the wanted fields of each row."""
    reader = csv.reader(file)
    try:
        header = next(reader, [])
        missing = [column for column in wanted if column not in header]
        if missing:
            raise UsageError(refusal(f"{WHO}: {name}:1", "columns", ",".join(missing), "are missing", ",".join(wanted)))
        places = [header.index(column) for column in wanted]
        for row in reader:
            if len(row) != len(header):
                raise UsageError(
                    refusal(f"{WHO}: {name}:{reader.line_num}", "fields", len(row), "are not a row", f"{len(header)}")
                )
            yield reader.line_num, [row[place] for place in places]
    except csv.Error as error:
        raise UsageError(
            refusal(
                f"{WHO}: {name}:{reader.line_num}",
                "line",
                reader.line_num,
                f"is not CSV ({error})",
                "comma-separated fields",
            )
        ) from None


def _whole(name: str, line: int, column: str, text: str, most: int = 2**62) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
        accepted = f"0 to {most}" if most < 2**62 else "a whole number from 0"
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


def _log(name: str, file: IO[str], told: Callable[[str], None]) -> dict[int, tuple[array[int], ...]]:
    """Numbers of each user in a period: those of `LISTS`, and the date."""
    found: dict[int, tuple[array[int], ...]] = {}
    for line, fields in _rows(name, file, (*NUMBERS, *ACTIONS)):
        user, video, date, time, play, duration = (
            _whole(name, line, column, text) for column, text in zip(NUMBERS, fields, strict=False)
        )
        bits = 0
        for bit, (column, text) in enumerate(zip(ACTIONS, fields[len(NUMBERS) :], strict=True)):
            bits |= _whole(name, line, column, text, most=1) << bit
        columns = found.get(user)
        if columns is None:
            columns = found[user] = tuple(array("q") for _ in range(len(LISTS) + 1))
        for values, value in zip(columns, (video, time, bits, play, duration, date), strict=True):
            values.append(value)
        if line % EVERY == 0:
            told(f"{name}: {line // EVERY} million rows")
    return found


def _history(user: int, features: tuple[int, ...], periods: list[tuple[array[int], ...]]) -> History:
    columns = [
        np.concatenate([np.frombuffer(period[number], dtype=np.int64) for period in periods])
        for number in range(len(LISTS) + 1)
    ]
    order = np.argsort(columns[LISTS.index("time_ms")], kind="stable")
    return History(user, features, *(column[order] for column in columns))
