"""How the flash forward is cut: tiles, warps, stages and code path, in words that are parsed back exactly.

Short form, what differs from the defaults spelled out:  ``m128n128w8s3-tma-pp-persistent``
Full form, every field:  ``block_m=128 block_n=128 warps=8 stages=3 loads=tma order=pp mask=apart ...``

Which of them a shape has says `space`; the tuned defaults are in `defaults`.  Imports without torch and
Triton.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

_SHORT = re.compile(r"m(\d{1,4})n(\d{1,4})w(\d{1,2})s(\d)((?:-[a-z]+\d*)*)", re.ASCII)
WORDS = {"loads": ("pointer", "tma"), "order": ("plain", "ahead", "ws", "pp"), "mask": ("apart", "fused"),
         "exp": ("unit", "mix"), "queries": ("shared", "split"),
         "rings": ("even", "deep"), "rescale": ("eager", "lazy"), "grid": ("tiles", "few", "ticket", "persistent")}
"Fields that are one of a few words, the default first; the short form has a word that is not the default."
HOPPER = ("ws", "pp")
"Orders of the kernel in hopper.forward, whose warps have jobs of their own."
WARPGROUPS = {8: 240, 12: 160, 16: 112}
"Its warps beside the loader, and how many registers each thread of them has."
NUMBERS = {"block_m": (16, 32, 64, 128, 192, 256), "block_n": (16, 32, 64, 128, 256), "warps": (1, 2, 4, 8, 12, 16),
           "stages": (1, 2, 3, 4, 5, 6, 7, 8)}
_DEFAULT_SECTION = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig:
    """Cut of the forward kernel; precision and dims belong to the case."""

    block_m: int
    "queries of a tile"
    block_n: int
    "keys of a tile"
    warps: int
    stages: int
    "tiles of keys and values in flight"
    loads: str = "pointer"
    "pointer, or tma: tiles by the tensor memory accelerator (sm_90 and later, and only of tensors aligned for it)"
    order: str = "plain"
    """ahead: the scores of a tile come before the product with the last one's values, and its softmax runs beside that
    (not on sm_90); ws: so too, while a warp of its own loads for warpgroups of 64 rows each; pp: these take turns
    (ping-pong)"""
    mask: str = "apart"
    "apart: masked tiles in a loop of their own; fused: in the one loop (of packed tensors by TMA always apart)"
    exp: str = "unit"
    "unit: the card's own; mix: some by a polynomial, to relieve it: every fourth, of ws and pp every eighth"
    queries: str = "shared"
    """shared: products read them from shared memory; split: half of their dims from registers (ws and pp, from 128
    dims on)"""
    rings: str = "even"
    "even: as many tiles of keys in flight as of values; deep: one of keys more, which are waited for first (ws and pp)"
    rescale: str = "eager"
    """eager: the output so far takes a factor as soon as it is known, beside no product of its warpgroup; lazy: beside
    the next scores' (ws and pp)"""
    grid: str = "tiles"
    """tiles: a program each; persistent: a program an SM, which takes every so many-th.  Of ws and pp too: few: a
    program takes four of a section, long and short ones; ticket: a program an SM, which draws whichever is next"""
    registers: int | None = None
    "most of a thread, to have more programs on an SM; None: the compiler's choice"
    section_mib: int = _DEFAULT_SECTION
    "programs next to one another share this much of the L2"

    def __post_init__(self) -> None:
        for name, accepted in (NUMBERS | WORDS).items():
            if getattr(self, name) not in accepted:
                raise ValueError(f"{name}={getattr(self, name)} is not known; one of {', '.join(map(str, accepted))}")
        if self.grid in ("few", "ticket") and self.order not in HOPPER:
            raise ValueError(f"grid={self.grid} is not of order={self.order}; tiles, persistent, or order=ws or pp")
        if self.registers is not None and not (self.registers % 8 == 0 and 24 <= self.registers <= 248):
            raise ValueError(f"registers={self.registers} cannot be used; a multiple of 8 from 24 to 248")
        if not 1 <= self.section_mib <= 999:
            raise ValueError(f"section_mib={self.section_mib} is out of range; 1 to 999")

    @property
    def short(self) -> str:
        """Short form, without comma, bracket or blank."""
        words = [value for name in WORDS if (value := getattr(self, name)) != WORDS[name][0]]
        words += [f"r{self.registers}"] * (self.registers is not None)
        words += [f"l{self.section_mib}"] * (self.section_mib != _DEFAULT_SECTION)
        return "-".join([f"m{self.block_m}n{self.block_n}w{self.warps}s{self.stages}", *words])

    @property
    def full(self) -> str:
        """Every field, by name."""
        return " ".join(f"{field.name}={getattr(self, field.name) or 'auto'}" for field in fields(self))

    @property
    def values(self) -> dict[str, Any]:
        """Every field, as data."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def threads(self) -> int:
        """Of a program."""
        return 32 * self.warps

    def flags(self, *, packed: bool, tma: bool) -> dict[str, Any]:
        """What of the cut is compiled into the kernel.

        Args:
            packed: sequences lie one after another: a descriptor does not end where one of them does.
            tma: the tensors can be read so.
        """
        return {"BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "TMA": tma, "AHEAD": self.order == "ahead",
                "FUSED": self.mask == "fused" and not (packed and tma), "MIX": self.exp == "mix", "PRECISION": "ieee",
                "PERSISTENT": self.grid == "persistent"}

    def options(self) -> dict[str, Any]:
        """What the compiler is told beside the kernel's arguments."""
        options: dict[str, Any] = {"num_warps": self.warps, "num_stages": self.stages}
        return options | ({"maxnreg": self.registers} if self.registers else {})


def parse(text: str, *, spelled: bool = True) -> ForwardConfig:
    """Read a short or a full form; not `spelled`, words of the short one in any order.

    Raises:
        ValueError: it is neither; the message says what is wrong and what is accepted.
    """
    config = _read_full(text) if "=" in text else _read_short(text)
    if spelled and "=" not in text and config.short != text:
        raise ValueError(f"is not how it is spelled; {config.short}")
    return config


def _read_short(text: str) -> ForwardConfig:
    match = _SHORT.fullmatch(text)
    if match is None:
        raise ValueError("is not a short form; such as m128n128w8s2-tma-pp")
    *numbers, tail = match.groups()
    values: dict[str, Any] = dict(zip(NUMBERS, map(int, numbers), strict=True))
    known = {word: (name, word) for name, words in WORDS.items() for word in words[1:]}
    for word in tail.split("-")[1:]:
        number = re.fullmatch(r"([rl])(\d{1,3})", word)
        name: str
        value: str | int
        if number:
            name, value = {"r": "registers", "l": "section_mib"}[number[1]], int(number[2])
        elif word in known:
            name, value = known[word]
        else:
            raise ValueError(f"has the word {word}; one of {', '.join([*known, 'r128', 'l8'])}")
        if name in values:
            raise ValueError(f"says {name} twice; each once")
        values[name] = value
    return ForwardConfig(**values)


def _read_full(text: str) -> ForwardConfig:
    names = [field.name for field in fields(ForwardConfig)]
    values: dict[str, Any] = {}
    for part in text.split():
        name, _, value = part.partition("=")
        if name not in names or name in values:
            raise ValueError(f"has {part}; each once of {', '.join(names)}")
        values[name] = value if name in WORDS else None if value == "auto" else _whole(name, value)
    missing = [name for name in names if name not in values]
    if missing:
        raise ValueError(f"lacks {', '.join(missing)}; all of {', '.join(names)}")
    return ForwardConfig(**values)


def _whole(name: str, value: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,3}", value, re.ASCII):
        raise ValueError(f"has {name}={value}; a whole number")
    return int(value)
