"""Uses of registers in compiled code that give wrong values, found in its SASS along all paths.

Each was met on an H200, where values were wrong, and in no case did the PTX show anything.

    unset        The assembler of CUDA 12.8 moved what two loops share, a descriptor of a product's operand, in front of
                 the first loop, behind the branch that skips it: if the first loop had no iteration, the second multiplied
                 what an earlier work item had left.
    overwritten  A warpgroup product reads its operand from registers while the program continues.  Carried to the next
                 iteration as integers of its bits, the operand looked dead, and its registers were reused before the
                 product was waited for.
    unread       After a warp barrier a tile that had been loaded into registers was released; but the loads were still
                 queued behind shared-memory reads of other products, and the next tile arrived first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

_LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)\s*([^;]*);", re.MULTILINE)
_PREDICATE = re.compile(r"!?U?P[T\d]")
# Instructions without a destination register; their operands are all read.
PRODUCTS = ("HGMMA", "IGMMA", "QGMMA")
"Warpgroup products: of 16 bits, of int8 and of 8-bit floats."
_NO_RESULT = (
    "ST",
    "BAR",
    "RED.",
    "REDG",
    "REDS",
    "BRA",
    "BRX",
    "JMX",
    "EXIT",
    "WARPSYNC",
    "UTMA",
    "UTCHMMA",
    "UTCBAR",
    "BSSY",
    "BSYNC",
    "CALL",
    "RET",
    "WARPGROUP",
    "DEPBAR",
    "FENCE",
    "MEMBAR",
    "NOP",
    "SYNCS.ARRIVE",
    "CCTL",
    "UBLK",
    "KILL",
    "BPT",
    "NANOSLEEP",
)
MOST_GROUPS = 8
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
        """Target of a direct branch."""
        return int(self.operands[-1], 16) if self.name.startswith("BRA") else None

    @property
    def copies(self) -> bool:
        """Whether it copies one uniform register to another, whatever the predicates."""
        return self.name == "UMOV" and not self.guarded and self.operands[1].startswith("UR")

    @property
    def ends(self) -> bool:
        """Whether execution never continues with the next line."""
        return self.name.startswith(_JUMPS) and not self.guarded

    @property
    def results(self) -> int:
        """How many of the operands it writes."""
        count = 0 if self.name.startswith(_NO_RESULT) else 1
        while 0 < count < len(self.operands) and _PREDICATE.fullmatch(self.operands[count]):
            count += 1
        if count and _PREDICATE.fullmatch(self.operands[0]) and len(self.operands) > 1:
            count = max(count, 2)
        return count

    def written(self) -> set[int]:
        """Numbers of the registers of a thread that it writes."""
        found: set[int] = set()
        for operand in self.operands[: self.results]:
            if first := re.match(r"R(\d+)\b", operand):
                found.update(range(int(first[1]), int(first[1]) + self._count()))
        return found

    def _count(self) -> int:
        if self.name.startswith(PRODUCTS):
            return int(self.name.split(".")[1].split("x")[1]) // 2
        if ".128" in self.name:
            return 4
        if ".64" in self.name or ".WIDE" in self.name or (self.name.startswith("CS2R") and ".32" not in self.name):
            return 2
        return 4 if self.name.startswith("LDSM") and self.name.endswith("4") else 1

    def uniform(self) -> tuple[set[int], set[int]]:
        """Numbers of the uniform registers that it reads, and of those that it writes."""
        results = self.results
        found: tuple[set[int], set[int]] = (set(), set())
        for place, operand in enumerate(self.operands):
            for number in map(int, re.findall(r"\bUR(\d+)\b", operand)):
                first = number + self._skipped(operand)
                found[place < results].update(range(first, number + self._width(operand, place < results)))
        return found

    def _skipped(self, operand: str) -> int:
        """Operands that are not read: two descriptors have four registers, of a register operand the first two are unused."""
        return 2 if "gdesc" in operand and self.operands[1].startswith("R") else 0

    def _width(self, operand: str, written: bool) -> int:
        if "gdesc" in operand and self.name.startswith(PRODUCTS):
            return 4
        if "desc" in operand or ".64" in operand:
            return 2
        if "[" in operand:
            return 1
        return 2 if ".64" in self.name or (written and ".WIDE" in self.name) else 1


@lru_cache(maxsize=1)  # all questions about one kernel are asked one after the other
def instructions(sass: str) -> list[Instruction]:
    """The lines of one kernel, as nvdisasm and cuobjdump print them."""
    found = []
    for at, guard, name, rest in _LINE.findall(sass):
        operands = tuple(part.strip() for part in re.split(r",(?![^\[]*\])", rest))
        guarded = bool(guard) or (name.startswith("BRA") and len(operands) > 1)
        found.append(Instruction(int(at, 16), guarded, name, operands))
    return found


def unset(sass: str) -> dict[str, str]:
    """Uniform registers that are read where some path has not written them, each with the first line that does.

    A copy does not count as a read: its target is unset if its source is.  The assembler copies pairs of which it then
    writes one half.
    """
    code = instructions(sass)
    effects = [one.uniform() for one in code]
    behind = _paths(code)
    written: list[set[int] | None] = [None] * len(code)
    written[0] = set()
    todo = [0]
    while todo:
        place = todo.pop()
        known = written[place] or set()
        reads, writes = effects[place]
        now = known - writes if code[place].copies and not reads <= known else known | writes
        for after in behind[place]:
            known = written[after]
            both = now if known is None else known & now
            if both != known:
                written[after] = set(both)
                todo.append(after)
    found: dict[str, str] = {}
    for one, (reads, _), known in zip(code, effects, written, strict=True):
        if one.copies:
            continue
        for register in reads - (known if known is not None else reads):
            found.setdefault(f"UR{register}", f"{one.at:x}: {one.name} {', '.join(one.operands)}")
    return found


Groups = tuple[frozenset[int], ...]
"Registers that products read: of the group being issued, then of those issued, the newest first."


def overwritten(sass: str) -> dict[str, str]:
    """Registers that a warpgroup product in flight reads and another instruction writes, each with such a line."""
    code = instructions(sass)
    behind = _paths(code)
    in_flight: list[Groups | None] = [None] * len(code)
    in_flight[0] = (frozenset(),)
    todo = [0]
    found: dict[str, str] = {}
    while todo:
        place = todo.pop()
        one, groups = code[place], in_flight[place] or (frozenset(),)
        if one.name.startswith(PRODUCTS):
            groups = _issued(one, groups)
        elif one.name.startswith("WARPGROUP.DEPBAR"):
            groups = groups[: 1 + int(one.operands[-1], 16)]
        else:
            for register in one.written() & frozenset().union(*groups):
                found.setdefault(f"R{register}", f"{one.at:x}: {one.name} {', '.join(one.operands)}")
        for after in behind[place]:
            known = in_flight[after]
            both = (
                groups
                if known is None
                else tuple(left | right for left, right in zip_longest(known, groups, fillvalue=frozenset()))
            )
            if both != known:
                in_flight[after] = both
                todo.append(after)
    return found


def unread(sass: str) -> dict[str, str]:
    """Registers loaded from shared memory whose load a warp may not have completed when a tile is released, with that line.

    Only an instruction that reads one of its registers waits for such a load: its source may be overwritten before.  A
    barrier of the warps does not wait for it either, so each warp must read the registers before one warp arrives at an
    mbarrier, or issues the copy itself.  Expecting a copy's bytes releases nothing.
    """
    code = instructions(sass)
    behind = _paths(code)
    brought = [one.written() if one.name.startswith("LDS") else set() for one in code]
    none: frozenset[int] = frozenset()
    # Loads whose registers this warp has not read, and those that another warp may not have read, as of the last barrier.
    loads: list[tuple[frozenset[int], frozenset[int]] | None] = [None] * len(code)
    loads[0] = none, none
    todo = [0]
    found: dict[str, str] = {}
    while todo:
        place = todo.pop()
        one, (mine, others) = code[place], loads[place] or (none, none)
        if one.name.startswith(("SYNCS.ARRIVE.TRANS64.", "UTMALDG")):
            found.update(
                {f"R{register}": f"{one.at:x}: {one.name}" for load in mine | others for register in brought[load]}
            )
        read = _read(one)
        mine = frozenset(load for load in mine if not brought[load] & read)
        if brought[place]:
            mine |= {place}
        elif one.name.startswith("BAR.SYNC"):
            others = mine
        for after in behind[place]:
            known = loads[after] or (none, none)
            both = mine | known[0], others | known[1]
            if both != loads[after]:
                loads[after] = both
                todo.append(after)
    return found


def _read(one: Instruction) -> set[int]:
    """Registers that a line waits for: those it names; a load may be queued before others with the same destination."""
    first = one.results if one.name.startswith("LD") else 0
    wide = 4 if one.name.startswith(PRODUCTS) else 1
    return {
        int(number) + more
        for operand in one.operands[first:]
        for number in re.findall(r"\bR(\d+)", operand)
        for more in range(wide)
    }


def _issued(product: Instruction, groups: Groups) -> Groups:
    """The groups after a product, which ends its own group if it names the scoreboard."""
    operand = re.fullmatch(r"R(\d+)", product.operands[1])
    read = range(int(operand[1]), int(operand[1]) + 4) if operand else ()
    groups = (groups[0] | frozenset(read), *groups[1:])
    if product.operands[-1].startswith("gsb"):
        groups = (frozenset(), *groups)
    # More groups than a loop issues before it waits: older ones count as one.
    return groups[:MOST_GROUPS] + ((frozenset().union(*groups[MOST_GROUPS:]),) if groups[MOST_GROUPS:] else ())


def _paths(code: list[Instruction]) -> list[set[int]]:
    """The possible successors of each line.  An indirect branch goes to all lines that nothing else enters from above."""
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
