"""Write and read the three files of NVIDIA's preprocessing (recsys-examples, examples/commons).

    processed_seqs.csv            one line per user: user_id, five JSON lists of the whole history, the user's features
    processed_seqs_inference.csv  one line per user and date: the same for that date, and the ends of its intervals
    processed_batches.csv         one line per interval, ordered by end: the requests of a replay

An interval begins with an interaction and includes those of the next `interval_s` seconds.  In a line of sequences,
`interval_indptr` begins with 0 and has the count of interactions at the end of each interval; in a line of batches it
is the count at the end of that interval.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

from attnbench.datasets.history import FEATURES, LISTS, History, intervals
from attnbench.errors import UsageError, refusal, unreadable
from attnbench.text import shown

SEQS, INFERENCE, BATCHES = "processed_seqs.csv", "processed_seqs_inference.csv", "processed_batches.csv"
SEQS_COLUMNS = ("user_id", *LISTS, *FEATURES)
INFERENCE_COLUMNS = ("user_id", "date", *LISTS, "interval_indptr", "num_intervals", *FEATURES)
BATCHES_COLUMNS = ("user_id", "date", "interval_end_ts", "interval_indptr")
USUAL_INTERVAL_S = 60
ACTIONS_BELOW = 256
LARGEST = 2**62


@dataclass(slots=True)
class Summary:
    """Figures of the written files."""

    users: int = 0
    interactions: int = 0
    days: int = 0
    batches: int = 0
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    "minimum and maximum of each feature, of items and of actions"
    lengths: tuple[int, int] = (0, 0)
    "of the shortest and the longest history"

    def add(self, history: History) -> None:
        """Add one user."""
        length = len(history.video_id)
        shortest, longest = self.lengths if self.users else (length, length)
        self.lengths = min(shortest, length), max(longest, length)
        self.users += 1
        self.interactions += length
        self._widen("user_id", history.user_id, history.user_id)
        for name, value in zip(FEATURES, history.features, strict=True):
            self._widen(name, value, value)
        for name in ("video_id", "action_weights"):
            values = getattr(history, name)
            if length:
                self._widen(name, int(values.min()), int(values.max()))

    def _widen(self, name: str, least: int, most: int) -> None:
        before = self.ranges.get(name, (least, most))
        self.ranges[name] = min(before[0], least), max(before[1], most)

    def lines(self) -> Iterator[str]:
        """Yield the summary as lines."""
        mean = self.interactions / self.users if self.users else 0.0
        yield (
            f"{self.users} users, {self.interactions} interactions: shortest history {self.lengths[0]}, longest "
            f"{self.lengths[1]}, mean {mean:.1f}"
        )
        for name, (least, most) in self.ranges.items():
            yield f"{name}: {least} to {most}"
        yield f"{self.days} users' days, {self.batches} intervals to replay"


def write(histories: Iterable[History], folder: Path, *, interval_s: int = USUAL_INTERVAL_S) -> Summary:
    """Write the three files; none gets its name before all are complete.

    Args:
        histories: histories of the users, one at a time.
        folder: folder of the files; created if missing.
        interval_s: duration of an interval.

    Raises:
        UsageError: the folder cannot be written to.
    """
    summary = Summary()
    partial = {name: folder / f"{name}.partial" for name in (SEQS, INFERENCE, BATCHES)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as closing:
            files = [closing.enter_context(path.open("w", encoding="utf-8", newline="")) for path in partial.values()]
            _write(histories, files, 1000 * interval_s, summary)
        for name, path in partial.items():
            path.replace(folder / name)
    except OSError as error:
        raise UsageError(refusal("data", "--to", folder, f"cannot be written ({error.strerror})", "a folder")) from None
    finally:
        for path in partial.values():
            with suppress(OSError):  # of a folder that there cannot be
                path.unlink(missing_ok=True)
    return summary


def _write(histories: Iterable[History], files: Sequence[IO[str]], interval_ms: int, summary: Summary) -> None:
    seqs, inference, batches = (csv.writer(file, lineterminator="\n") for file in files)
    for writer, columns in ((seqs, SEQS_COLUMNS), (inference, INFERENCE_COLUMNS), (batches, BATCHES_COLUMNS)):
        writer.writerow(columns)
    ends: list[tuple[int, int, int, int]] = []
    for history in histories:
        lists = [getattr(history, name) for name in LISTS]
        seqs.writerow([history.user_id, *map(_json, lists), *history.features])
        for date, places in history.days():
            times = history.time_ms[places]
            indptr = intervals(times, interval_ms)
            inference.writerow(
                [
                    history.user_id,
                    date,
                    *(_json(values[places]) for values in lists),
                    json.dumps(indptr),
                    len(indptr) - 1,
                    *history.features,
                ]
            )
            ends += [(int(times[end - 1]), history.user_id, date, end) for end in indptr[1:]]
            summary.days += 1
        summary.add(history)
    for when, user, date, end in sorted(ends):
        batches.writerow([user, date, when, end])
    summary.batches = len(ends)


def _json(values: np.ndarray) -> str:
    return str(values.tolist())  # for whole numbers the same text as JSON, in half the time


def read_sequences(path: Path) -> Iterator[History]:
    """Yield the users of a processed_seqs.csv; dates are not in it and are 0.

    Raises:
        UsageError: the file cannot be read, a column is missing, or a field is invalid; the message names file, line
            and column.
    """
    for place, row in _rows(path, SEQS_COLUMNS):
        yield _history(place, row, 0)


def read_days(path: Path) -> Iterator[tuple[History, list[int]]]:
    """Yield the users' days of a processed_seqs_inference.csv, each with the ends of its intervals.

    Raises:
        UsageError: as of `read_sequences`, or a user has a date twice.
    """
    known: set[tuple[int, int]] = set()
    for place, row in _rows(path, INFERENCE_COLUMNS):
        date = _number(place, "date", row["date"])
        history = _history(place, row, date)
        if (history.user_id, date) in known:
            twice = f"is there twice for user {history.user_id}"
            raise UsageError(refusal(place, "date", date, twice, "each date of a user once"))
        known.add((history.user_id, date))
        indptr = _list(place, "interval_indptr", row["interval_indptr"])
        rises = all(before < after for before, after in pairwise(indptr))
        if not indptr or indptr[0] != 0 or indptr[-1] != len(history.video_id) or not rises:
            raise UsageError(
                refusal(
                    place,
                    "interval_indptr",
                    shown(row["interval_indptr"]),
                    "is no list of ends",
                    f"rising from 0 to {len(history.video_id)}",
                )
            )
        if _number(place, "num_intervals", row["num_intervals"]) != len(indptr) - 1:
            raise UsageError(
                refusal(
                    place,
                    "num_intervals",
                    row["num_intervals"],
                    "is not what interval_indptr has",
                    f"{len(indptr) - 1}",
                )
            )
        yield history, indptr


def read_batches(path: Path) -> Iterator[tuple[int, int, int, int]]:
    """Yield the intervals of a processed_batches.csv: user, date, end in ms, interactions of the date by then.

    Raises:
        UsageError: see `read_sequences`; also if a line is earlier than the one before.
    """
    before = 0
    for place, row in _rows(path, BATCHES_COLUMNS):
        user, date, when, end = (_number(place, name, row[name]) for name in BATCHES_COLUMNS)
        if when < before:
            raise UsageError(refusal(place, "interval_end_ts", when, "is before the line above", "the order of time"))
        before = when
        yield user, date, when, end


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield place (file and line) and fields of each row."""
    name = path.name
    usual = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # a history is one field
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [column for column in columns if column not in (reader.fieldnames or ())]
            if missing:
                raise UsageError(refusal(f"{name}:1", "columns", ",".join(missing), "are missing", ",".join(columns)))
            for row in reader:
                place = f"{name}:{reader.line_num}"
                if None in row or any(row[column] is None for column in columns):
                    raise UsageError(
                        refusal(
                            place,
                            "fields",
                            sum(value is not None for value in row.values()),
                            "are not a row",
                            f"{len(reader.fieldnames or ())}",
                        )
                    )
                yield place, row
    except (OSError, UnicodeError, csv.Error) as error:
        raise UsageError(refusal("data", "file", name, unreadable(error), f"a file of {name}")) from None
    finally:
        csv.field_size_limit(usual)


def _history(place: str, row: dict[str, str], date: int) -> History:
    lists = {name: _list(place, name, row[name]) for name in LISTS}
    length = len(lists[LISTS[0]])
    for name, values in lists.items():
        if len(values) != length:
            raise UsageError(
                refusal(place, name, f"{len(values)} numbers", f"are not as many as {LISTS[0]} has", f"{length}")
            )
    if max(lists["action_weights"], default=0) >= ACTIONS_BELOW:
        raise UsageError(
            refusal(
                place,
                "action_weights",
                max(lists["action_weights"]),
                "is no mask of eight actions",
                f"0 to {ACTIONS_BELOW - 1}",
            )
        )
    times = np.array(lists["time_ms"], dtype=np.int64)
    if (np.diff(times) < 0).any():
        raise UsageError(refusal(place, "time_ms", "a list", "goes back", "the order of time"))
    features = tuple(_number(place, name, row[name]) for name in FEATURES)
    arrays = {name: np.array(values, dtype=np.int64) for name, values in lists.items()}
    return History(
        _number(place, "user_id", row["user_id"]), features, **arrays, date=np.full(length, date, dtype=np.int64)
    )


def _number(place: str, column: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= LARGEST):
        raise UsageError(refusal(place, column, shown(text), "is no number", "a whole number from 0"))
    return int(text)


def _list(place: str, column: str, text: str) -> list[int]:
    accepted = "a JSON list of whole numbers from 0"
    try:
        values: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(refusal(place, column, shown(text[:60]), "is a broken list", accepted)) from None
    if not isinstance(values, list) or not all(type(one) is int and 0 <= one <= LARGEST for one in values):
        raise UsageError(refusal(place, column, shown(text[:60]), "is no list of numbers", accepted))
    return values
