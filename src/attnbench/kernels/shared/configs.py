"""Launch configurations as tables: a kernel family declares fields, and all are spelled, read and listed alike.

A configuration is a frozen dataclass derived from `LaunchConfig`.  Its fields are the table: name, type and default are
those of the dataclass, accepted values and the short spelling stand in the annotation (a field without one has no
spelling):

    @dataclass(frozen=True, kw_only=True, slots=True)
    class ForwardConfig(LaunchConfig):
        EXAMPLE: ClassVar[str] = "m128w8-tma"

        block_m: Annotated[int, Spelled("m{}", (64, 128))]
        warps: Annotated[int, Spelled("w{}", (4, 8))]
        loads: Annotated[str, Spelled("-{}", ("pointer", "tma"))] = "pointer"
        registers: Annotated[int | None, Spelled("-r{}", range(24, 249, 8))] = None

A short form is one text without comma, bracket or blank, fields in the order of the table and defaults left out:
``m128w8-tma``.  A full form names every field: ``block_m=128 warps=8 loads=tma registers=auto``.  A name is spelled
in one way only, so that one configuration has one name in run files.  Imports neither torch nor Triton.
"""

from __future__ import annotations

import math
import re
import tomllib
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from difflib import SequenceMatcher, get_close_matches
from functools import cache, lru_cache
from itertools import takewhile
from operator import contains, eq, ge, le
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args, get_origin, get_type_hints

from attnbench.kernels.shared.tiling import Grid

__all__ = ["Defaults", "LaunchConfig", "NoDefaultError", "Spelled", "nearest"]

_NUMBER = {int: r"\d{1,9}", float: r"\d{1,9}(?:\.\d{1,9})?"}
_AUTO = "auto"
"How a full form spells None."


@dataclass(frozen=True, slots=True)
class Spelled:
    """How a field is spelled in a short form, and which values it accepts."""

    form: str
    "with {} for the value; a leading - begins a new word, otherwise it continues the previous word"
    accepted: Collection[Any] = ()
    "accepted values; of a text each is its own spelling; empty: all values of the type"
    none: str | None = None
    "spelling of None; such a field is never left out"
    words: Mapping[bool, str] = field(default_factory=dict)
    "spelling of a boolean"
    far: float = 2.0
    "distance of two words, for finding the nearest configuration; a factor of two in a number is 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A field of a table, with its resolved type."""

    name: str
    kind: Any
    "int, float, bool, str, or a nested LaunchConfig"
    default: Any
    "MISSING: the field is always spelled"
    spelled: Spelled
    optional: bool

    @property
    def always(self) -> bool:
        """Whether every short form contains it."""
        return self.default is MISSING or self.spelled.none is not None

    @property
    def pattern(self) -> str:
        """Regular expression of its spelling, the value in a group."""
        before, _, after = self.spelled.form.removeprefix("-").partition("{}")
        if self.kind is bool:
            value = "|".join(re.escape(word) for word in self.spelled.words.values() if word)
        elif self.kind is str:
            value = "|".join(map(re.escape, self.spelled.accepted))
        elif issubclass(self.kind, LaunchConfig):
            # No named groups within the value, so that the only named group is the field's.
            inner = "".join(column.pattern for column in self.kind.table().values())
            value = re.sub(r"\(\?P<\w+>", "(?:", inner)
        else:
            value = _NUMBER[self.kind]
        whole = f"{re.escape(before)}(?P<{self.name}>{value}){re.escape(after)}"
        return f"(?:{whole}|(?P<{self.name}_none>{self.spelled.none}))" if self.spelled.none else f"(?:{whole})"

    def spell(self, value: Any) -> str:
        """The part of a short form for a value; empty if the value is the default."""
        lead = "-" if self.spelled.form.startswith("-") else ""
        if value is None:
            return lead + self.spelled.none if self.spelled.none else ""
        if self.kind is bool:
            word = self.spelled.words.get(value, "")
            return lead + word if word else ""
        return self.spelled.form.format(value.short if isinstance(value, LaunchConfig) else value)

    def value(self, text: str) -> Any:
        """The value of a group that matched `pattern`."""
        if self.kind is bool:
            return next(value for value, word in self.spelled.words.items() if word == text)
        return self.kind.parse(text, spelled=False) if issubclass(self.kind, LaunchConfig) else self.kind(text)

    @property
    def examples(self) -> list[str]:
        """Words for an error message."""
        if self.kind is str:
            return [self.spell(word).removeprefix("-") for word in self.spelled.accepted if word != self.default]
        if self.kind is bool:
            return [word for word in self.spelled.words.values() if word]
        letter = (
            "N"
            if self.kind in _NUMBER
            else "".join(column.spelled.form.format("N") for column in self.kind.table().values())
        )
        return [*filter(None, [self.spelled.none]), self.spelled.form.removeprefix("-").format(letter)]

    def fault(self, value: Any) -> str | None:
        """What is wrong with a value; None for an accepted one."""
        accepted = self.spelled.accepted
        if (value is None and self.optional) or not accepted or value in accepted:
            return None
        if not isinstance(accepted, range):
            return f"{self.name}={value} is not known; one of {', '.join(map(str, accepted))}"
        if accepted.step == 1:
            return f"{self.name}={value} is out of range; {accepted[0]} to {accepted[-1]}"
        return f"{self.name}={value} cannot be used; a multiple of {accepted.step} from {accepted[0]} to {accepted[-1]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchConfig:
    """Base of launch configurations: tiles, warps, stages and code path, spelled and read by a table of fields."""

    EXAMPLE: ClassVar[str]
    "a short form for error messages"

    def __post_init__(self) -> None:
        """Refuse values that a field does not accept.

        Raises:
            ValueError: naming the field, its value and what is accepted.
        """
        for name, column in self.table().items():
            if fault := column.fault(getattr(self, name)):
                raise ValueError(fault)

    @classmethod
    def table(cls) -> dict[str, Column]:
        """The fields by name, in the order of the short form."""
        return _grammar(cls).columns

    @property
    def short(self) -> str:
        """Short form: fields without a default, and those that differ from theirs."""
        table = self.table()
        return self.spell(
            {name: value for name, value in self.values.items() if table[name].always or value != table[name].default}
        )

    @property
    def full(self) -> str:
        """Full form: every field by name."""
        return " ".join(f"{name}={_full(value)}" for name, value in self.values.items())

    @property
    def values(self) -> dict[str, Any]:
        """All fields as data; a nested configuration as itself."""
        return {name: getattr(self, name) for name in self.table()}

    @classmethod
    def spell(cls, said: Mapping[str, Any]) -> str:
        """Short form of some fields, including those with default values."""
        parts = (column.spell(said[name]) for name, column in cls.table().items() if name in said)
        return "".join(parts).removeprefix("-")

    @classmethod
    def parse(cls, text: str, *, spelled: bool = True) -> Self:
        """Parse a short or a full form.

        Args:
            text: the form.
            spelled: whether it must be spelled as `short` does; otherwise words may be in any order, including defaults.

        Raises:
            ValueError: it is neither form; the message says what is wrong and what is accepted.
        """
        kind: Any = cls  # hashable, which mypy does not see
        found: Self = _parse(kind, text, spelled)
        return found

    @classmethod
    def read_part(cls, text: str) -> dict[str, Any]:
        """Only the fields that a short form contains: a change of another configuration.

        Raises:
            ValueError: it is not a short form, or is spelled differently.
        """
        found = cls.read(text)
        for name, value in found.items():
            if fault := cls.table()[name].fault(value):
                raise ValueError(fault)
        if cls.spell(found) != text:
            raise ValueError(f"is not how it is spelled; {cls.spell(found)}")
        return found

    @classmethod
    def read(cls, text: str) -> dict[str, Any]:
        """Fields by name from a short form, whose words after the first may be in any order.

        Raises:
            ValueError: a word is unknown or repeated, or the first word is missing.
        """
        grammar = _grammar(cls)
        table, patterns = grammar.columns, grammar.words
        found: dict[str, Any] = {}
        for place, word in enumerate(text.split("-")):
            candidates = patterns if place or not grammar.head else patterns[:1]
            match = next((match for pattern in candidates if (match := re.fullmatch(pattern, word, re.ASCII))), None)
            if match is None and not place and grammar.head:
                raise ValueError(f"is not a short form; such as {cls.EXAMPLE}")
            if match is None:
                offered = [
                    example
                    for column in table.values()
                    if column.spelled.form.startswith("-") or place == 0
                    for example in column.examples
                ]
                raise ValueError(f"has the word {word or 'of no letters'}; one of {', '.join(offered)}")
            for group, value in match.groupdict().items():
                name = group.removesuffix("_none") if group not in table else group
                if value is None:
                    continue
                if name in found:
                    raise ValueError(f"has {name} twice; each once")
                found[name] = None if group not in table else table[name].value(value)
        lacking = [name for name, column in table.items() if column.always and name not in found]
        if lacking:
            raise ValueError(f"lacks {', '.join(lacking)}; such as {cls.EXAMPLE}")
        return found

    @classmethod
    def _read_full(cls, text: str) -> dict[str, Any]:
        table = cls.table()
        found: dict[str, Any] = {}
        for part in text.split():
            name, _, value = part.partition("=")
            if name not in table or name in found:
                raise ValueError(f"has {part}; each once of {', '.join(table)}")
            found[name] = _read_value(table[name], value)
        if missing := [name for name in table if name not in found]:
            raise ValueError(f"lacks {', '.join(missing)}; all of {', '.join(table)}")
        return found

    def distance(self, other: Self) -> float:
        """Distance between two configurations: a factor of two in a number counts 1, a different word 2."""
        return sum(
            _distance(column, getattr(self, name), getattr(other, name)) for name, column in self.table().items()
        )


_Config = TypeVar("_Config", bound=LaunchConfig)


@lru_cache(maxsize=1024)  # a call with new shapes parses one or two defaults, each time the same
def _parse(cls: Any, text: str, spelled: bool) -> Any:
    if "=" in text:
        return cls(**cls._read_full(text))
    config = cls(**cls.read(text))
    if spelled and config.short != text:
        raise ValueError(f"is not how it is spelled; {config.short}")
    return config


class NoDefaultError(LookupError):
    """A table of defaults has no row that matches."""


class Defaults:
    """Tuned defaults of a kernel family: a TOML table, whose first matching row is used.

    The keys of a row are conditions (`RULES` and ``rounds``; a missing key matches everything) and a ``config`` in its
    short form.  A rule takes the value of the row, then the one that is asked for.  ``rounds`` is the most rounds over the
    card's SMs that the tiles of this configuration may take.  Other keys, such as the card and the date of a
    measurement, are for the reader.
    """

    RULES: Mapping[str, Callable[[Any, Any], object]] = types.MappingProxyType(
        {
            "cards": contains,  # major compute capability, 0 the interpreter
            "item_bytes": eq,
            "dim": ge,
            "seqlen": ge,
            "rows": ge,
            "pairs": le,  # at least so many heads of all sequences
            "page_size": le,
            "block_q": eq,
            "block_k": eq,
            "right": eq,
            "packed": eq,
            "triton": ge,  # the latest release that is known to compile it well
        }
    )

    def __init__(self, path: Path) -> None:
        self.path = path

    @cache  # noqa: B019 (an instance a table, which lives as long as its module)
    def rows(self, table: str) -> tuple[dict[str, Any], ...]:
        """Rows of a table, in the order they are tried."""
        return tuple(tomllib.loads(self.path.read_text(encoding="utf-8"))[table])

    def first(
        self,
        table: str,
        kind: type[_Config],
        *,
        also: Callable[[_Config], bool] = lambda config: True,
        grid: Grid | None = None,
        **asked: Any,
    ) -> _Config:
        """The configuration of the first row that matches.

        Args:
            table: name of the table.
            kind: type of the configuration.
            also: a further condition on the configuration.
            grid: of the call, for rows with ``rounds``; None: more tiles than any card has SMs.
            asked: values for the keys of `RULES`; cards is one major compute capability.

        Raises:
            NoDefaultError: no row matches: the kernels do not support this.
        """
        for row in self.rows(table):
            for name, value in asked.items():
                if name in row and not self.RULES[name](row[name], value):
                    break
            else:
                config = kind.parse(row["config"])
                if also(config) and (
                    "rounds" not in row or (grid is not None and grid.rounds(config) <= row["rounds"])
                ):
                    return config
        raise NoDefaultError(f"{self.path.name} has no row of {table} for {asked}")


def nearest(text: str, there: Collection[str]) -> str:
    """The name most similar to a text, among equals the one with the longest common prefix; empty if there are none."""
    near = get_close_matches(text, there, n=16, cutoff=0.0)
    alike = [name for name in near if _likeness(text, name) == _likeness(text, near[0])]
    return max(alike, key=lambda name: _beginning(text, name), default="")


def _beginning(text: str, name: str) -> int:
    """Length of the common prefix."""
    return sum(1 for _ in takewhile(bool, map(eq, text, name)))


def _likeness(text: str, name: str) -> float:
    # As get_close_matches does it, which caches the second sequence.
    return SequenceMatcher(None, name, text).ratio()


@dataclass(frozen=True, slots=True)
class _Grammar:
    """The grammar of the short forms of a configuration type, computed once."""

    columns: dict[str, Column]
    words: list[str]
    "a regular expression for each word that a short form may have"
    head: bool
    "whether it begins with a word that is always present"


_GRAMMARS: dict[type[LaunchConfig], _Grammar] = {}


def _grammar(cls: type[LaunchConfig]) -> _Grammar:
    if cls not in _GRAMMARS:
        hints = get_type_hints(cls, include_extras=True)
        columns = {
            one.name: _column(one.name, hints[one.name], one.default)
            for one in fields(cls)
            if get_origin(hints[one.name]) is Annotated
        }
        words: list[str] = []
        for column in columns.values():
            if column.spelled.form.startswith("-") or not words:
                words.append(column.pattern)
            else:
                words[-1] += column.pattern + "?" * (not column.always)
        head = not next(iter(columns.values())).spelled.form.startswith("-")
        _GRAMMARS[cls] = _Grammar(columns, words, head)
    return _GRAMMARS[cls]


def _column(name: str, hint: Any, default: Any) -> Column:
    kind, spelled = get_args(hint)[:2]
    optional = get_origin(kind) is types.UnionType
    if optional:
        kind = next(one for one in get_args(kind) if one is not types.NoneType)
    return Column(name=name, kind=kind, default=default, spelled=spelled, optional=optional)


def _full(value: Any) -> str:
    if isinstance(value, LaunchConfig):
        return value.short
    return _AUTO if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _read_value(column: Column, text: str) -> Any:
    if text == _AUTO and column.optional:
        return None
    if column.kind is str:
        return text
    if column.kind is bool:
        if text not in ("true", "false"):
            raise ValueError(f"has {column.name}={text}; true or false")
        return text == "true"
    if issubclass(column.kind, LaunchConfig):
        return column.kind.parse(text)
    if not re.fullmatch(_NUMBER[column.kind], text, re.ASCII) or (column.kind is int and text.startswith("0")):
        raise ValueError(f"has {column.name}={text}; a {'whole ' * (column.kind is int)}number")
    return column.kind(text)


def _distance(column: Column, one: Any, other: Any) -> float:
    if one == other:
        return 0.0
    if isinstance(one, LaunchConfig) and isinstance(other, LaunchConfig):
        return one.distance(other)
    if type(one) is not type(other) or column.kind in (str, bool) or min(one, other) <= 0:
        return column.spelled.far
    return abs(math.log2(one / other))
