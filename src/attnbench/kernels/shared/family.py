"""Names of a kernel family's launch configurations: which there are, how they are read and refused, which is the default.

A family has a `Part` for each kernel that is configured on its own: the forward (``m128n128w8s2-tma-pp``) and the backward
(``b64x128w8s2-atomic-tma-ws``).  A name is one part, or one of each joined by ``+``.  `shared.configs` defines the spelling
of a part, the family which configurations a shape has.  Imports neither torch nor Triton.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from attnbench.kernels.shared.configs import LaunchConfig, NoDefaultError, nearest

Values = Mapping[str, Any]
"""Fields of a launch configuration, by name, or by kernel and name."""
_Shape = TypeVar("_Shape")
_Config = TypeVar("_Config", bound=LaunchConfig)
_SIDES = {"fwd": ("both", "forward"), "bwd": ("both", "backward"), "fwd-bwd": ("both", "backward")}
"""Sides that are listed and tuned, by mode: in a mode with a backward the forward keeps its default."""


class Misnamed(ValueError):
    """A name that cannot be read, or of a configuration that the shape does not have: the words of the error."""

    def __init__(self, text: str, wrong: str, accepted: str, near: str = "") -> None:
        super().__init__(f"config={text} {wrong}; {accepted}")
        self.text, self.wrong, self.accepted, self.near = text, wrong, accepted, near


class Part(ABC, Generic[_Shape]):
    """The configurations of one side of a family."""

    side: ClassVar[str]
    "forward, backward, or both"
    hint: ClassVar[str]
    "pattern of its names, for messages"

    @abstractmethod
    def begins(self, text: str) -> bool:
        """Whether a name is one of this part."""

    @abstractmethod
    def space(self, shape: _Shape) -> Mapping[str, Values]:
        """Every configuration that is listed and tuned for a shape, by its short form."""

    @abstractmethod
    def read(self, text: str, shape: _Shape) -> Values:
        """The fields that a name stands for.

        Raises:
            ValueError: it cannot be read, or is not valid for the shape: ``<what is wrong>; <what is accepted>``.
        """

    @abstractmethod
    def tuned(self, shape: _Shape) -> str:
        """Short form of the tuned default.

        Raises:
            NoDefaultError: the kernels do not support such a shape.
        """

    def default(self, shape: _Shape) -> str:
        """Short form of the tuned default; empty for a shape that the kernels do not support."""
        try:
            return self.tuned(shape)
        except NoDefaultError:
            return ""

    def check(self, text: str, shape: _Shape) -> None:
        """Refuse a name that was read, if its configuration is not for this card.

        Raises:
            ValueError: as of `read`.
        """

    def nearest(self, text: str, shape: _Shape) -> str:
        """The valid short form most similar to a text; empty if there is none."""
        return nearest(text, self.space(shape))


@dataclass(frozen=True)
class Forward(Part[_Shape], Generic[_Shape, _Config]):
    """The forward of a family, whose configurations are a table of fields; rules say which of them a shape has."""

    side, hint = "forward", "m…"

    config: type[_Config]
    valid: Callable[[_Shape], Sequence[_Config]]
    "every configuration that is listed and tuned for a shape, in one order"
    fault: Callable[[_Config, _Shape], tuple[str, str] | None]
    "the rule that a configuration breaks for a shape, and its message; None for a valid one"
    usual: Callable[[_Shape], _Config]
    "the tuned default"

    def begins(self, text: str) -> bool:
        """As of `Part`."""
        return text.startswith(("m", "block_m"))

    def space(self, shape: _Shape) -> Mapping[str, Values]:
        """As of `Part`."""
        return {config.short: config.values for config in self.valid(shape)}

    def read(self, text: str, shape: _Shape) -> Values:
        """As of `Part`; the default is accepted whatever the rules say."""
        config = self.config.parse(text)
        if (found := self.fault(config, shape)) and text != self.default(shape):
            rule, said = found
            raise ValueError(f"is not valid, {rule}: it {said}")
        return config.values

    def check(self, text: str, shape: _Shape) -> None:
        """As of `Part`."""
        self.read(text, shape)

    def tuned(self, shape: _Shape) -> str:
        """As of `Part`."""
        return self.usual(shape).short

    def nearest(self, text: str, shape: _Shape) -> str:
        """The valid short form nearest to a text, or to its configuration if it parses; empty if there is none."""
        there = self.valid(shape)
        try:
            wanted = self.config.parse(text, spelled=False)
        except ValueError:
            return nearest(text, [one.short for one in there])
        if self.fault(wanted, shape) is None:
            return wanted.short
        return min(there, key=wanted.distance).short if there else ""

    def given(self, who: str, given: _Config | str, shape: _Shape) -> _Config:
        """The configuration that a caller passed, as itself or by name.

        Raises:
            ValueError: it cannot be read or used; the message begins with `who`, says why, and names the nearest valid one.
        """
        if not isinstance(given, str | self.config):
            accepted = f"a {self.config.__name__}, its name or None"
            raise ValueError(f"{who}: config={given!r} is not a configuration; {accepted}")
        text = given if isinstance(given, str) else given.short
        try:
            config = self.config.parse(given) if isinstance(given, str) else given
            if found := self.fault(config, shape):
                rule, said = found
                raise ValueError(f"is not valid, {rule}: it {said}")
        except ValueError as why:
            near = self.nearest(text, shape)
            raise ValueError(f"{who}: config={text} {why}; the nearest valid one is {near}") from None
        return config


@dataclass(frozen=True)
class Family(Generic[_Shape]):
    """All parts of a family."""

    parts: tuple[Part[_Shape], ...]

    def space(self, shape: _Shape, mode: str) -> dict[str, Values]:
        """Configurations that are listed and tuned in a mode: fwd, bwd or fwd-bwd."""
        if not self.default(shape, mode):
            return {}
        return {short: values for part in self._listed(mode) for short, values in part.space(shape).items()}

    def default(self, shape: _Shape, mode: str) -> str:
        """Short form of the default; empty for a shape that the kernels do not support."""
        return self._listed(mode)[0].default(shape)

    def split(self, text: str, mode: str = "fwd-bwd") -> dict[str, str]:
        """The parts of a name, by side.

        Raises:
            Misnamed: a side has two, or one is empty.
        """
        found: dict[str, str] = {}
        pieces = text.split("+")
        for piece in pieces:
            part = next((part for part in self.parts if part.begins(piece)), self._listed(mode)[0])
            found[part.side] = piece
        if len(found) < len(pieces) or not all(pieces):
            hints = [part.hint for part in self.parts]
            joined = ["+".join(hints)] if len(hints) == 2 else []
            raise Misnamed(text, "has two parts for one side", " or ".join([", ".join(hints), *joined]))
        return found

    def read(self, text: str, shape: _Shape, mode: str) -> dict[str, Any]:
        """The fields that a name stands for.

        Raises:
            Misnamed: with what is wrong, what is accepted and the nearest.
        """
        values: dict[str, Any] = {}
        for piece, part in self._pieces(text, mode):
            with _refused(piece, part, shape):
                values |= part.read(piece, shape)
        return values

    def check(self, text: str, shape: _Shape, mode: str) -> None:
        """Refuse a name that was read, if its configuration is not for this card.

        Raises:
            Misnamed: as of `read`.
        """
        for piece, part in self._pieces(text, mode):
            with _refused(piece, part, shape):
                part.check(piece, shape)

    def _pieces(self, text: str, mode: str) -> Iterator[tuple[str, Part[_Shape]]]:
        for side, piece in self.split(text, mode).items():
            if side == "backward" and mode == "fwd":
                raise Misnamed(
                    piece,
                    f"is for the backward, which mode={mode} does not have",
                    f"{self.parts[0].hint} of the forward",
                )
            yield piece, next(part for part in self.parts if part.side == side)

    def _listed(self, mode: str) -> list[Part[_Shape]]:
        return [part for part in self.parts if part.side in _SIDES[mode]]


@contextmanager
def _refused(text: str, part: Part[_Shape], shape: _Shape) -> Iterator[None]:
    """The error for a name, with the nearest valid one."""
    try:
        yield
    except ValueError as why:
        wrong, _, accepted = str(why).partition("; ")
        near = part.nearest(text, shape) if part.default(shape) else ""
        raise Misnamed(text, wrong, accepted or "less of it", near) from None
