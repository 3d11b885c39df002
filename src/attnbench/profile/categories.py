"""The category of a kernel, by the rules of `categories.toml` and of the user's file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from attnbench.errors import UsageError, refusal, unreadable
from attnbench.profile.capture import KernelRow

ATTENTION, PREPARATION = "attention", "attention preparation"
MATMUL, COPY, ADD = "matmul", "copy", "elementwise add"
NORMALISATION, EMBEDDING, ELEMENTWISE, REDUCTION, VIEW = (
    "normalisation",
    "embedding",
    "elementwise",
    "reduction",
    "view",
)
MEMORY_COPY, IDLE, OTHER = "memory copy", "idle", "other"
ORDER = (
    *(ATTENTION, PREPARATION, MATMUL, COPY, ADD, NORMALISATION, EMBEDDING, ELEMENTWISE, REDUCTION, VIEW),
    *(OTHER, MEMORY_COPY, IDLE),
)
"""Their order in tables; a user's own categories come before `other`."""
IN_PLACE, PREPARING = "attention", ("copies", "preparation")
"""Ranges that a model opens around each call of its attention and around the preparation for a backend."""
MOVES = (COPY, MEMORY_COPY)

SHIPPED = Path(__file__).with_name("categories.toml")


@dataclass(frozen=True, slots=True)
class Rule:
    """A category and the regular expression that is searched for in the names of its kernels."""

    category: str
    match: re.Pattern[str]


@dataclass(frozen=True)
class Categories:
    """Rules in order; the first match decides."""

    rules: tuple[Rule, ...]

    def of(self, name: str) -> str:
        """Return the category of a kernel; `other` if no rule matches."""
        return next((rule.category for rule in self.rules if rule.match.search(name)), OTHER)


def by_range(rows: Iterable[KernelRow]) -> tuple[KernelRow, ...]:
    """Return the rows with categories set by the range they were launched in, where the range says more than the name.

    A range `attention` holds nothing but attention, although the name of a sort that picks blocks does not say so.  If
    a kernel in it is attention by its own name, all others there are preparation.  Without such a kernel (an attention
    of single operators), copies are preparation and all others are attention.  Kernels launched in a range
    `preparation` or `copies` are preparation too.
    """
    rows = tuple(rows)
    named = {_whose(row) for row in rows if row.category == ATTENTION and IN_PLACE in _ranges(row)}
    return tuple(replace(row, category=_category(row, named=_whose(row) in named)) for row in rows)


def _category(row: KernelRow, *, named: bool) -> str:
    open_then = _ranges(row)
    if set(PREPARING) & set(open_then):
        return PREPARATION
    if row.category in (ATTENTION, PREPARATION) or IN_PLACE not in open_then:
        return row.category
    return PREPARATION if named or row.category in MOVES else ATTENTION


def _ranges(row: KernelRow) -> tuple[str | None, ...]:
    return (*row.within, row.range)


def _whose(row: KernelRow) -> tuple[object, ...]:
    return row.backend, row.case, row.within[:1]


def load(file: str | None = None) -> Categories:
    """Return the rules of a file, if given, followed by the shipped rules.

    Raises:
        UsageError: the file cannot be read or is not a list of rules.
    """
    own = () if file is None else _read(Path(file), f"categories {file}")
    return Categories((*own, *_shipped()))


@cache
def _shipped() -> tuple[Rule, ...]:
    return _read(SHIPPED, "categories")


def _read(path: Path, who: str) -> tuple[Rule, ...]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:  # syntax errors of TOML and decoding errors are ValueErrors
        raise UsageError(refusal(who, "file", path.name, unreadable(error), "a TOML file")) from None
    rules = data.pop("rule", None)
    if data or not isinstance(rules, list) or not rules:
        field = next(iter(data), "rule")
        raise UsageError(
            refusal(who, "field", field, "is not what it should hold", "[[rule]] tables with category and match")
        )
    return tuple(_rule(rule, f"{who}: rule {number}") for number, rule in enumerate(rules, start=1))


def _rule(rule: Any, who: str) -> Rule:
    if (
        not isinstance(rule, dict)
        or set(rule) != {"category", "match"}
        or not all(isinstance(value, str) and value.strip() for value in rule.values())
    ):
        shown = ",".join(rule) if isinstance(rule, dict) else rule
        raise UsageError(refusal(who, "fields", shown, "are wrong", "category and match, each a text"))
    if rule["category"] == IDLE:
        raise UsageError(refusal(who, "category", IDLE, "is the time when no kernel runs", "another name"))
    try:
        return Rule(rule["category"], re.compile(rule["match"]))
    except re.error as error:
        raise UsageError(
            refusal(who, "match", rule["match"], f"is no regular expression ({error})", "one as Python's re has them")
        ) from None
