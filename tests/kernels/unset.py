"""Uniform registers that compiled code reads where a path to the place has not written them.

The assembler of CUDA 12.8 was seen to move what two loops share, a descriptor of a product's operand, in front of
the first of them, behind the branch that passes over it: where the first loop had no turn the second multiplied what
another job had left.  PTX showed nothing; values were wrong on an H200.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)\s*([^;]*);", re.MULTILINE)
_PREDICATE = re.compile(r"!?U?P[T\d]")
# What has no register to write to; its operands are all read.
_NO_RESULT = ("ST", "BAR", "RED.", "REDG", "REDS", "BRA", "BRX", "JMX", "EXIT", "WARPSYNC", "UTMA", "UTCHMMA",
              "UTCBAR", "BSSY", "BSYNC", "CALL", "RET", "WARPGROUP", "DEPBAR", "FENCE", "MEMBAR", "NOP", "SYNCS.ARRIVE",
              "CCTL", "UBLK", "KILL", "BPT", "NANOSLEEP")
_JUMPS = ("BRA", "BRX", "JMX", "EXIT", "RET")


@dataclass(frozen=True)
class Instruction:
    """One line of SASS."""

    at: int
    guarded: bool
    "under a predicate, or a branch with one"
    name: str
    operands: tuple[str, ...]

    @property
    def target(self) -> int | None:
        """Where a direct branch goes."""
        return int(self.operands[-1], 16) if self.name.startswith("BRA") else None

    @property
    def ends(self) -> bool:
        """Whether the next line is never the next."""
        return self.name.startswith(_JUMPS) and not self.guarded

    def registers(self) -> tuple[set[int], set[int]]:
        """Numbers of the uniform registers it reads, and of those it writes."""
        results = 0 if self.name.startswith(_NO_RESULT) else 1
        while 0 < results < len(self.operands) and _PREDICATE.fullmatch(self.operands[results]):
            results += 1
        if results and _PREDICATE.fullmatch(self.operands[0]) and len(self.operands) > 1:
            results = max(results, 2)
        found: tuple[set[int], set[int]] = (set(), set())
        for place, operand in enumerate(self.operands):
            for number in map(int, re.findall(r"\bUR(\d+)\b", operand)):
                first = number + self._skipped(operand)
                found[place < results].update(range(first, number + self._width(operand, place < results)))
        return found

    def _skipped(self, operand: str) -> int:
        """Two descriptors have four registers; of an operand in registers the first two stand for nothing."""
        return 2 if "gdesc" in operand and self.operands[1].startswith("R") else 0

    def _width(self, operand: str, written: bool) -> int:
        if "gdesc" in operand and self.name.startswith("HGMMA"):
            return 4
        if "desc" in operand or ".64" in operand:
            return 2
        if "[" in operand:
            return 1
        return 2 if ".64" in self.name or (written and ".WIDE" in self.name) else 1


def instructions(sass: str) -> list[Instruction]:
    """The lines of one kernel, as cuobjdump prints them."""
    found = []
    for at, guard, name, rest in _LINE.findall(sass):
        operands = tuple(part.strip() for part in re.split(r",(?![^\[]*\])", rest))
        guarded = bool(guard) or (name.startswith("BRA") and len(operands) > 1)
        found.append(Instruction(int(at, 16), guarded, name, operands))
    return found


def unset(sass: str) -> dict[str, str]:
    """Uniform registers that are read where some path has not written them, each with the first line that does."""
    code = instructions(sass)
    effects = [one.registers() for one in code]
    behind = _paths(code)
    written: list[set[int] | None] = [None] * len(code)
    written[0] = set()
    todo = [0]
    while todo:
        place = todo.pop()
        now = (written[place] or set()) | effects[place][1]
        for after in behind[place]:
            known = written[after]
            both = now if known is None else known & now
            if both != known:
                written[after] = set(both)
                todo.append(after)
    found: dict[str, str] = {}
    for one, (reads, _), known in zip(code, effects, written, strict=True):
        for register in reads - (known if known is not None else reads):
            found.setdefault(f"UR{register}", f"{one.at:x}: {one.name} {', '.join(one.operands)}")
    return found


def _paths(code: list[Instruction]) -> list[set[int]]:
    """Where each line can go next.  An indirect branch goes to all that nothing else enters from above."""
    places = {one.at: place for place, one in enumerate(code)}
    behind: list[set[int]] = [set() for _ in code]
    for place, one in enumerate(code):
        if one.target in places:
            behind[place].add(places[one.target])
        if not one.ends and place + 1 < len(code):
            behind[place].add(place + 1)
    above = {after for place, many in enumerate(behind) for after in many if place < after}
    starts = {place for place in range(1, len(code)) if place not in above and code[place - 1].ends}
    for place, one in enumerate(code):
        if one.name.startswith(("BRX", "JMX")):
            behind[place] |= starts
    return behind
