"""How the flash backward is cut: tiles, warps, stages, code paths, spelled in one word; the space and the defaults.

    b64x128w8s3-atomic-tma             one kernel: 64 rows by 128 keys, 8 warps, 3 stages, dQ by fp32 atomics
    b64x128w8s3-r128x64w8s2-tma-late   deterministic: after it a kernel for dQ with the cut behind the r
    b64x128w8s2-atomic-tma-ws          the kernel for Hopper: a warp loads, two warpgroups of 64 keys compute

The defaults are data, in ``backward.toml`` beside this file: the first row that fits is taken.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

__all__ = ["BackwardConfig", "Cut", "backward_config", "backward_space", "nearest_backward", "parse_backward",
           "tuned_backward", "why_not"]

ORDERS = ("early", "late", "ahead", "ws")
LOADS = ("pointer", "tma")
MASKS = ("apart", "fused")
ADDS = ("last", "beside")
PRECISIONS = ("ieee", "tf32x3", "tf32")
SECTION_MIB = 24
_TABLE = Path(__file__).with_name("backward.toml")
_CUT = r"(\d+)x(\d+)w(\d+)s(\d+)"
_SHORT = re.compile(rf"b{_CUT}-(?:atomic|r{_CUT})(-tma)?(?:-(late|ahead|ws))?(-fused)?(-beside)?"
                    r"(?:-m(\d+))?(?:-g(\d+))?(?:-l(\d+))?(?:-(tf32x3|tf32))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cut:
    """Tiles of one kernel."""

    block_m: int
    "rows of a tile"
    block_n: int
    "keys of a tile"
    warps: int
    stages: int
    "tiles in flight: of rows in dK and dV, of keys in dQ"

    def __str__(self) -> str:
        return f"{self.block_m}x{self.block_n}w{self.warps}s{self.stages}"


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig:
    """Cut of the backward."""

    columns: Cut
    "of the kernel that takes a tile of keys through its rows, for dK and dV"
    rows: Cut | None = None
    "of the one that takes a tile of rows through its keys, for dQ; None: the first adds dQ up too, by atomics"
    loads: str = "pointer"
    "pointer, or tma: by the tensor memory accelerator (sm_90 and later; tensors it cannot read: pointer)"
    order: str = "early"
    """dO Vᵀ early, before the exponentials, or late; ahead: the scores of the next tile before dK of this one;
    ws: of hopper.backward, one warp loads and two warpgroups compute"""
    mask: str = "apart"
    "of columns; apart: masked tiles in a loop of their own; fused: in the one loop (only of dense tensors by tma)"
    add: str = "last"
    "when atomics add a part of dQ; beside: it is worked out before dK, and added beside that product"
    masked_stages: int = 1
    "tiles in flight among those that the mask cuts; more of them are more registers"
    registers: int | None = None
    "most of a thread, to have more programs on an SM; None: the compiler's choice"
    section_mib: int = SECTION_MIB
    "programs next to one another share this much of the L2"
    precision: str = "ieee"
    "of fp32 products: ieee, tf32x3, tf32; 16-bit ones have no choice"

    def __post_init__(self) -> None:
        for name, accepted in (("loads", LOADS), ("order", ORDERS), ("mask", MASKS), ("add", ADDS),
                               ("precision", PRECISIONS)):
            if getattr(self, name) not in accepted:
                raise ValueError(f"{name}={getattr(self, name)} is not known; one of {', '.join(accepted)}")

    @property
    def deterministic(self) -> bool:
        """Whether every sum has one order."""
        return self.rows is not None

    @property
    def short(self) -> str:
        """The one word; what is as `BackwardConfig` has it by default is left out."""
        words = [f"b{self.columns}", "atomic" if self.rows is None else f"r{self.rows}"]
        words += ["tma"] * (self.loads == "tma") + [self.order] * (self.order != "early")
        words += ["fused"] * (self.mask == "fused") + ["beside"] * (self.add == "beside")
        words += [f"m{self.masked_stages}"] * (self.masked_stages != 1)
        words += [f"g{self.registers}"] * (self.registers is not None)
        words += [f"l{self.section_mib}"] * (self.section_mib != SECTION_MIB)
        words += [self.precision] * (self.precision != "ieee")
        return "-".join(words)

    def options(self, cut: Cut) -> dict[str, Any]:
        """What the compiler is told beside a kernel's arguments."""
        options: dict[str, Any] = {"num_warps": cut.warps, "num_stages": cut.stages}
        return options | ({"maxnreg": self.registers} if self.registers else {})

    def flags(self, cut: Cut) -> dict[str, Any]:
        """What of a kernel's cut is compiled in."""
        return {"BLOCK_M": cut.block_m, "BLOCK_N": cut.block_n, "PRECISION": self.precision,
                "MASKED_STAGES": self.masked_stages}

    @property
    def pad(self) -> int:
        """Multiple of rows at which each sequence begins in the workspace: whole tiles of either kernel."""
        return max(self.columns.block_m, self.rows.block_m if self.rows else 0)


def parse_backward(text: str) -> BackwardConfig:
    """Read the one word that `BackwardConfig.short` gives.

    Raises:
        ValueError: it is none; the message says what is accepted.
    """
    found = _SHORT.fullmatch(text)
    if found:
        part: tuple[str | None, ...] = found.groups()
        values: dict[str, Any] = {
            "columns": _cut(part[:4]), "rows": _cut(part[4:8]), "loads": "tma" if part[8] else "pointer",
            "order": part[9] or "early", "mask": "fused" if part[10] else "apart",
            "add": "beside" if part[11] else "last", "masked_stages": int(part[12] or 1),
            "registers": int(part[13]) if part[13] else None, "section_mib": int(part[14] or SECTION_MIB),
            "precision": part[15] or "ieee"}
        config = BackwardConfig(**values)
        if config.short == text:
            return config
    raise ValueError("bMxNwWsS-atomic or bMxNwWsS-rMxNwWsS, then any of -tma, -late, -ahead or -ws, -fused, -beside, "
                     "-mSTAGES, -gREGISTERS, -lMIB, -tf32x3 or -tf32, in this order")


def _cut(numbers: tuple[str | None, ...]) -> Cut | None:
    return Cut(*(int(number) for number in numbers if number)) if numbers[0] else None


def why_not(config: BackwardConfig, capability: tuple[int, int], item_bytes: int, dim: int, dim_v: int) -> str | None:
    """Why a configuration is not in the space, beginning with the name of the rule; None where it is.

    Args:
        config: to be judged.
        capability: of the card; (0, 0) is the interpreter, which holds anything.
        item_bytes: of an element.
        dim: of queries and keys.
        dim_v: of values.
    """
    for cut in filter(None, (config.columns, config.rows)):
        for name, value, accepted in (("block_m", cut.block_m, (16, 32, 64, 128)),
                                      ("block_n", cut.block_n, (16, 32, 64, 128)), ("warps", cut.warps, (4, 8)),
                                      ("stages", cut.stages, (1, 2, 3, 4))):
            if value not in accepted:
                return f"tile: {name}={value}; one of {', '.join(map(str, accepted))}"
    if config.order == "ws":
        return _not_hopper(config, capability, item_bytes, (dim, dim_v))
    if config.loads == "tma" and 0 < capability[0] < 9:
        return "tma: sm_90 and later have it"
    if config.mask == "fused" and config.loads != "tma":
        return "mask: fused takes whole tiles by tma"
    if config.add == "beside" and config.deterministic:
        return "add: beside is of atomics"
    if (config.precision != "ieee") and item_bytes == 2:
        return f"precision: {config.precision} is of fp32 products"
    if config.registers is not None and not 32 <= config.registers <= 255:
        return f"registers: at most {config.registers} of a thread; from 32 to 255"
    if not 1 <= config.masked_stages <= 4 or config.section_mib < 1:
        return "stages: masked_stages from 1 to 4, section_mib from 1"
    if capability[0] == 9 and item_bytes == 2 and (narrow := _narrow(config)):
        return f"warpgroup: {narrow}, products of single warps; at least 64"
    return _too_large(config, capability, item_bytes, _padded(dim), _padded(dim_v)) if capability[0] else None


def _not_hopper(
    config: BackwardConfig, capability: tuple[int, int], item_bytes: int, dims: tuple[int, int]
) -> str | None:
    """Why a configuration of the order `ws` is none, or not for this card or these dims."""
    cut, dim = config.columns, max(dims)
    if capability != (9, 0):
        return f"ws: sm_{capability[0]}{capability[1]} has no warpgroup products; sm_90"
    if item_bytes != 2 or dim > 128 or any(one % 8 for one in dims):
        return f"ws: {item_bytes}-byte elements of {dims[0]} and {dims[1]} dims; 2 bytes, multiples of 8 up to 128"
    plain = BackwardConfig(columns=cut, loads="tma", order="ws", section_mib=config.section_mib)
    if config != plain or config.section_mib < 1:
        return f"ws: it has its own loads, mask and registers; {replace(plain, section_mib=SECTION_MIB).short}"
    rows = 128 if dim <= 64 else 64
    if (cut.block_m, cut.block_n, cut.warps) != (rows, 128, 8) or cut.stages not in (2, 3):
        return f"ws: {cut} at {dim} dims; {rows}x128w8s2 or s3"
    # Keys and values, tiles of rows, dS twice, half of dQ a warpgroup, and numbers and barriers.
    columns = 64 if dim <= 64 else 128
    taken = 4 * columns * (128 + cut.stages * rows) + 4 * 128 * rows + 4 * columns * rows + 9 * rows * cut.stages + 1024
    return f"shared memory: columns take {taken} bytes; at most {227 * 1024}" if taken > 227 * 1024 else None


def _narrow(config: BackwardConfig) -> str | None:
    """Which side of a tile is under the 64 rows of a product of sm_90."""
    products = [("block_n", config.columns.block_n)]
    products += [("block_m", config.columns.block_m if config.rows is None else config.rows.block_m)]
    return next((f"{name}={value}" for name, value in products if value < 64), None)


def _too_large(config: BackwardConfig, capability: tuple[int, int], item_bytes: int, dim: int,
               dim_v: int) -> str | None:
    """Registers and shared memory by what must be held; the compiler's own few are within the limits' slack."""
    shared = {8: {0: 163, 7: 163}.get(capability[1], 99), 12: 99}.get(capability[0], 227) * 1024
    limit = min(200, config.registers or 255)
    for name, cut in (("columns", config.columns), ("rows", config.rows)):
        if cut is None:
            continue
        tile, resident, streamed = cut.block_m * cut.block_n, cut.block_n, cut.block_m
        held = cut.block_n * (dim + dim_v)
        if name == "rows":
            resident, streamed, held = cut.block_m, cut.block_n, cut.block_m * dim
        held = (held + 2 * tile) // (32 * cut.warps)
        if held > limit:
            return f"registers: {name} hold {held} of a thread in sums and scores; at most {limit}"
        streams = dim + dim_v + (dim if name == "columns" and config.order == "ahead" else 0)
        taken = item_bytes * (resident * (dim + dim_v) + cut.stages * streamed * streams + tile)
        # What a TMA adds to memory lies in shared memory first.
        if name == "columns" and config.rows is None and config.loads == "tma" and cut.stages > 1:
            taken += 4 * cut.block_m * dim
        if taken > shared:
            return f"shared memory: {name} take {taken} bytes; at most {shared}"
    return None


def backward_space(
    capability: tuple[int, int], item_bytes: int, dim: int, dim_v: int, *, deterministic: bool = False
) -> Iterator[BackwardConfig]:
    """Every cut in the space, pruned by `why_not`; arguments as there.

    The two kernels of a deterministic backward do not know of each other, so each is varied with the other's default.
    """
    given = capability, item_bytes, max(dim, dim_v)
    default = backward_config(*given, deterministic=deterministic)
    shipped = backward_config(*given, deterministic=deterministic, hopper=not (dim % 8 or dim_v % 8))
    cuts = [Cut(*values) for values in product((32, 64, 128), (32, 64, 128), (4, 8), (1, 2, 3))]
    loads = LOADS if capability[0] not in range(1, 9) else LOADS[:1]
    hopper = [BackwardConfig(columns=Cut(rows, 128, 8, stages), loads="tma", order="ws", section_mib=mib)
              for rows, stages, mib in product((64, 128), (2, 3), (SECTION_MIB, 8, 1000))]
    found = [] if deterministic else hopper
    found += [replace(default, columns=cut, order=order, loads=load, mask=mask, add=add)
              for cut, order, load, mask, add in product(cuts, ORDERS[:3], loads, MASKS, ADDS)]
    found += [replace(default, masked_stages=2), *(replace(default, section_mib=mib) for mib in (8, 1000))]
    if deterministic:
        found += [replace(default, rows=cut) for cut in cuts]
    for config in dict.fromkeys([shipped, default, *found]):
        if config in (shipped, default) or why_not(config, capability, item_bytes, dim, dim_v) is None:
            yield config


def nearest_backward(text: str, capability: tuple[int, int], item_bytes: int, dim: int, dim_v: int) -> str:
    """The valid word most like a text, one with its order if there is any; arguments as in `why_not`."""
    there = [config.short for deterministic in (False, True)
             for config in backward_space(capability, item_bytes, dim, dim_v, deterministic=deterministic)]
    order = next((order for order in reversed(ORDERS) if order in text.split("-")), None)
    like = [short for short in there if order in short.split("-")]
    return difflib.get_close_matches(text, like or there, n=1, cutoff=0.0)[0]


def backward_config(
    capability: tuple[int, int], item_bytes: int, dim: int, *, deterministic: bool = False, packed: bool = False,
    hopper: bool = False
) -> BackwardConfig:
    """Tuned default.

    Args:
        capability: of the card; (0, 0) is the interpreter.
        item_bytes: of an element.
        dim: the larger of the head dims.
        deterministic: the same bits each time, at seven products instead of five.
        packed: sequences lie one after another.
        hopper: the kernel in hopper.backward takes the tensors; else not the order `ws`.
    """
    for row in tuned_backward():
        config = parse_backward(row["config"])
        if (capability[0] in row.get("cards", [capability[0]]) and item_bytes == row["item_bytes"]
                and dim <= row["dim"] and packed == row.get("packed", packed)
                and config.deterministic == deterministic and (hopper or config.order != "ws")):
            return config
    raise AssertionError(f"backward.toml has no row for {capability}, {item_bytes}, {dim}")


def tuned_backward() -> list[dict[str, Any]]:
    """Rows of the table, in the order they are tried."""
    return list(_table()["backward"])


@cache
def _table() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(_TABLE.read_text(encoding="utf-8"))


def _padded(dim: int) -> int:
    return max(16, 1 << (dim - 1).bit_length())
