"""Parse numbers as profilers print them: thousands separators, decimal marks of locales, units, "n/a"."""

from __future__ import annotations

import re
from collections.abc import Iterable

from attnbench.errors import RunFileError
from attnbench.store.parsing import LARGEST

SPACES = str.maketrans("", "", " \u00a0\u202f\u2009'’_")
"""Characters that group digits in some languages."""

NUMBER = re.compile(r"[+-]?(?:\d[\d.,]*|[.,]\d+)(?:[eE][+-]?\d+)?")

UNITS: dict[str, dict[str, float]] = {
    "ms": {
        "ns": 1e-6,
        "nsecond": 1e-6,
        "us": 1e-3,
        "µs": 1e-3,
        "μs": 1e-3,
        "usecond": 1e-3,
        "ms": 1.0,
        "msecond": 1.0,
        "s": 1e3,
        "sec": 1e3,
        "second": 1e3,
    },
    "B": {
        "byte": 1.0,
        "b": 1.0,
        "kbyte": 1e3,
        "mbyte": 1e6,
        "gbyte": 1e9,
        "tbyte": 1e12,
        "kb": 1e3,
        "mb": 1e6,
        "gb": 1e9,
        "byte/block": 1.0,
        "kbyte/block": 1e3,
    },
    "GB/s": {"byte/s": 1e-9, "kbyte/s": 1e-6, "mbyte/s": 1e-3, "gbyte/s": 1.0, "tbyte/s": 1e3, "byte/ns": 1.0},
    "MHz": {"hz": 1e-6, "khz": 1e-3, "mhz": 1.0, "ghz": 1e3, "cycle/s": 1e-6, "cycle/us": 1.0, "cycle/ns": 1e3},
    "%": {"%": 1.0, "pct": 1.0},
}
"""Printed units and their names here.  ncu uses powers of ten; ``second`` in a rate is read as ``s``."""

MOST_DIGITS = 10
"""Of one dimension of a grid or block: CUDA's maximum is 2^31 - 1."""
NAMES = {"nsecond": "ns", "usecond": "us", "msecond": "ms", "second": "s"}


def decimal_mark(texts: Iterable[str]) -> str:
    """Return the decimal mark of a file.

    A number decides if it holds both marks (the last is the decimal mark) or one mark that cannot group thousands.  If
    no number decides, it is the point.

    Raises:
        RunFileError: numbers of the file use both marks.
    """
    marked = {text for text in texts if "." in text or "," in text}  # each text once: a long trace repeats them
    found = {mark for text in marked if (mark := _mark(text.translate(SPACES)))}
    if len(found) > 1:
        raise RunFileError("its numbers use both a point and a comma for decimals; output of one locale")
    return found.pop() if found else "."


def _mark(text: str) -> str | None:
    if not NUMBER.fullmatch(text):
        return None
    text = re.split("[eE]", text.lstrip("+-"))[0]
    marks = re.sub(r"\d", "", text)
    if not marks:
        return None
    if len(set(marks)) == 2:
        return marks[-1]
    if len(marks) > 1:  # 1,234,567: the mark groups, so the other is the decimal mark; 1.2.3 is not a number
        grouped = re.fullmatch(r"\d{1,3}(?:[.,]\d{3})+", text)
        return None if not grouped else "," if marks[0] == "." else "."
    whole, _, rest = text.partition(marks)
    groups = len(rest) == 3 and 1 <= len(whole) <= 3 and not whole.startswith("0")
    # "1.234" decides nothing: the point is the default, so only a mark that cannot be decimal decides for the comma.
    return None if groups else marks


def number(text: str | None, mark: str = ".") -> float | None:
    """Return the number of a text; None if it is not one (``n/a``, ``-``, ``nan``, empty) or out of range."""
    text = (text or "").translate(SPACES).rstrip("%")
    if not NUMBER.fullmatch(text):
        return None
    other = "," if mark == "." else "."
    try:
        value = float(text.replace(other, "").replace(mark, "."))
    except ValueError:
        return None
    return value if abs(value) < LARGEST else None


def whole(text: str | None, mark: str = ".") -> int | None:
    """Return the whole number of a text; None if it is not one or from 2^53 on, where a float is no longer exact."""
    value = number(text, mark)
    return int(value) if value is not None and value.is_integer() and abs(value) < 2**53 else None


def in_unit(value: float | None, printed: str, wanted: str) -> float | None:
    """Convert a value to another unit.

    Args:
        value: as printed.
        printed: its unit; empty if the file gives none, which then counts as `wanted`.
        wanted: ms, B, GB/s, MHz, %, or "" for quantities without a unit (counts, ratios).

    Returns:
        The value; None if the unit is of another kind, which means another metric.
    """
    if value is None or not wanted:
        return value
    unit = printed.strip().casefold()
    top, slash, bottom = unit.partition("/")
    if slash:
        unit = f"{top}/{NAMES.get(bottom, bottom)}"
    if not unit:
        return value
    factor = UNITS[wanted].get(unit)
    if factor is None:
        return None
    # 58352.5 / 10^6 is 0.0583525; times 10^-6 it is not.
    return value * factor if factor >= 1 else value / round(1 / factor)


def triple(text: str | None) -> tuple[int, ...] | None:
    """Return a grid or block as tools write it: ``(128, 1, 1)``, ``128x1x1``, ``128 1 1``."""
    numbers = re.findall(r"\d+", text or "")
    if not 1 <= len(numbers) <= 3 or max(map(len, numbers)) > MOST_DIGITS:
        return None
    return (*map(int, numbers), 1, 1)[:3]
