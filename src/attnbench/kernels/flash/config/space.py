"""Launch configurations of the flash forward that a shape has: resource estimates, rules, and the space that is left.

`candidates` enumerates configurations; `RULES` exclude those that cannot run, give wrong results or cannot be fast, each
with its reason.  Can be imported without torch and Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from attnbench.kernels.flash.config.decode import is_decode
from attnbench.kernels.flash.config.forward import DECODE, HOPPER, WARPGROUPS, WORDS, ForwardConfig, parse
from attnbench.kernels.shared.configs import nearest as closest
from attnbench.kernels.shared.tiling import Grid


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Properties of a case and its card that the rules use."""

    dim: int
    dim_v: int
    item_bytes: int = 2
    seqlen_q: int = 1 << 20
    seqlen_k: int = 1 << 20
    packed: bool = False
    right: bool = True
    "the mask has a right bound, as with causal"
    capability: tuple[int, int] = (9, 0)
    repeats: int = 1
    "query heads of a KV head"
    heads: int | None = None
    "query heads of all sequences; None: more than any card has SMs"
    triton: tuple[int, int] | None = None
    "version that compiles it; None: one that every default is for"

    @property
    def decodes(self) -> bool:
        """Whether the order `decode` is the default."""
        return is_decode(self.seqlen_q, self.seqlen_k, self.repeats)

    @property
    def grid(self) -> Grid | None:
        """The grid by which defaults are chosen."""
        return None if self.heads is None else Grid(self.heads, self.seqlen_q)

    @property
    def described(self) -> bool:
        """Whether tensor maps of the Hopper path can describe contiguous tensors with these dims."""
        return self.capability == (9, 0) and self.dim % 8 == self.dim_v % 8 == 0

    def block(self, dim: int) -> int:
        """Columns of a tile: a power of two, at least the 16 of a tensor core."""
        return max(16, 1 << (dim - 1).bit_length())

    @property
    def pieces(self) -> tuple[int, ...]:
        """Columns of the tiles into which dims are divided: two powers of two, where their sum is below one padded tile."""
        dim = max(self.dim, self.dim_v)
        first = self.block(dim) // 2
        rest = self.block(dim - first)
        return (first, rest) if first >= 64 and rest < first else (2 * first,)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a program (CUDA programming guide, compute capabilities)."""
        kib = {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227}.get(self.capability, 99)
        return kib * 1024


def shared_bytes(config: ForwardConfig, shape: Shape) -> int:
    """Shared memory of a program: queries, `stages` tiles of keys and values, and those of the last masked tile.

    Without barriers and row sums, which take less than 2 KiB.  Below sm_90 queries pass through shared memory to registers.
    """
    block_d, block_v = shape.block(shape.dim), shape.block(shape.dim_v)
    rows = config.stages * config.block_n * (block_d + block_v)
    if config.order in HOPPER:
        apart = config.queries == "shared" and out_columns(config, shape) < first_columns(config, shape)
        return _keys_and_queries(config, shape, query_tiles(config, shape)) + apart * _half_output(config, shape)
    if config.order == DECODE:
        # Single-warp products read a tile into registers before the tile `stages` later arrives, and also the weights.
        warps = config.block_m < 64 or shape.capability < (9, 0)
        rows -= warps * config.block_n * (block_d + block_v)
        return (rows + config.block_m * (block_d + warps * config.block_n)) * shape.item_bytes
    if shape.capability < (9, 0):
        return max(rows, config.block_m * block_d) * shape.item_bytes
    rows += config.block_m * block_d
    if config.mask == "apart" and config.order == "ahead":
        rows += config.block_n * block_v
    return rows * shape.item_bytes


def tile_columns(config: ForwardConfig, shape: Shape) -> tuple[int, ...]:
    """Columns of a key tile of the Hopper path, and of its second piece if it has one; value tiles have as many."""
    return shape.pieces if config.dims == "pieces" else (shape.block(shape.dim),)


def first_columns(config: ForwardConfig, shape: Shape) -> int:
    """Columns of a key tile of the Hopper path, or of its first piece."""
    first, *_ = tile_columns(config, shape)
    return first


def query_columns(config: ForwardConfig, shape: Shape) -> int:
    """Columns of a query tile of the Hopper path: with split queries half, because the other half goes to registers."""
    return first_columns(config, shape) // (2 if config.queries == "split" else 1)


def key_stages(config: ForwardConfig) -> int:
    """Key tiles in flight in the Hopper path."""
    return config.stages + (config.rings == "deep")


def tiles_in_flight(config: ForwardConfig) -> int:
    """Tiles of keys and of values that fit into the rings of the Hopper path."""
    return config.stages if config.rings == "joint" else key_stages(config) + config.stages


def query_tiles(config: ForwardConfig, shape: Shape) -> int:
    """Query tiles of a warpgroup in the Hopper path: two, if there are several work items and the next one's queries fit."""
    return 1 + (config.grid != "tiles" and _keys_and_queries(config, shape, 2) + 2048 <= shape.shared_bytes)


def out_columns(config: ForwardConfig, shape: Shape) -> int:
    """Columns of the tile through which the Hopper path stores an output: half with split queries, whose buffer is half.

    Also half where a program with several work items has no room for the next queries, but for half an output.
    """
    block_v = first_columns(config, shape)
    if config.dims == "pieces":
        return block_v
    alone = config.grid != "tiles" and query_tiles(config, shape) == 1
    fits = _keys_and_queries(config, shape, 1) + _half_output(config, shape) + 2048 <= shape.shared_bytes
    return block_v // 2 if config.queries == "split" or (alone and fits) else block_v


def _keys_and_queries(config: ForwardConfig, shape: Shape, tiles: int) -> int:
    """Bytes of the rings of the Hopper path, of query tiles with the half that goes to registers, and of stored weights."""
    columns = sum(tile_columns(config, shape))
    held = columns // 2 if config.queries == "split" else 0
    keys = tiles_in_flight(config) * config.block_n * columns
    if config.weights == "stored":
        keys += config.block_m * config.block_n
    return (keys + config.block_m * (tiles * (columns - held) + held)) * shape.item_bytes


def _half_output(config: ForwardConfig, shape: Shape) -> int:
    return config.block_m * shape.block(shape.dim_v) // 2 * shape.item_bytes


def registers(config: ForwardConfig, shape: Shape) -> int:
    """Registers of a thread: output, scores and weights of a tile, and about thirty for rows and sizes.

    With the order `ahead` the previous tile's weights are still read while the next ones are computed.  Pointers take two
    registers for 16 bytes.  Below sm_90 queries, and pieces of keys and values, are register operands too.
    """
    block_d, block_v = shape.block(shape.dim), shape.block(shape.dim_v)
    if config.dims == "pieces":
        block_d = block_v = sum(shape.pieces)
    words = shape.item_bytes / 4
    scores = 1 + words * (2 if config.order == "ahead" else {"held": 1, "stored": 0, "double": 2}[config.weights])
    held = config.block_m * block_v + config.block_m * config.block_n * scores
    if config.queries == "split":
        held += config.block_m * block_d // 2 * words
    if shape.capability < (9, 0):
        held += config.block_m * block_d * words + 48 * config.threads
    if config.loads == "pointer":
        held += 2 * config.block_n * (block_d + block_v) * shape.item_bytes / 16
    more = 32 + 32 * (config.order not in HOPPER and config.grid == "persistent")
    return round(held / config.threads) + more


def _limit(config: ForwardConfig) -> int:
    if config.order in HOPPER:
        return WARPGROUPS[config.warps]
    return min(config.registers or 255, 255, 65536 // config.threads)


def hopper_fault(config: ForwardConfig, shape: Shape) -> str | None:
    """Why a shape does not have a configuration of a Hopper order; None if it does."""
    if config.order not in HOPPER:
        said = {config.queries, config.rings, config.rescale, config.dims, config.weights}
        if {"split", "deep", "joint", "lazy", "pieces", "stored", "double"} & said:
            return (
                "has split, deep, joint, lazy, pieces, stored or double, which only the orders ws and pp have; without"
            )
        many = config.block_m == 192 or config.warps == 12
        return "has m192 or w12, which only the orders ws and pp have; m128w8" if many else None
    whys = (
        (shape.capability != (9, 0), f"is for sm_90, not sm_{shape.capability[0]}{shape.capability[1]}; plain"),
        (shape.item_bytes != 2, "needs 16-bit inputs; plain"),
        (
            shape.block(shape.dim) != shape.block(shape.dim_v),
            f"stores outputs of {shape.dim_v} dims in buffers of queries with {shape.dim}; plain",
        ),
        (config.loads != "tma", "loads only by tensor maps; tma"),
        ((config.mask, config.registers) != ("apart", None), "does not support fused or r…; without"),
        (
            config.block_m != 16 * config.warps or config.warps not in WARPGROUPS,
            "needs 64 rows for four warps, and 8 to 16 warps; m128w8, m192w12 or m256w16",
        ),
        (
            config.exp == "mix" and config.block_n < 64,
            "computes one exponential in eight by a polynomial, for which 32 keys are too few; n64",
        ),
        (
            config.queries == "split" and (shape.block(shape.dim) < 128 or config.warps > 12),
            "supports split queries from 128 dims on, with two or three warpgroups; w8 or w12, or without split",
        ),
        (
            config.dims == "pieces" and len(shape.pieces) == 1,
            f"does not divide {shape.dim} dims into pieces; 65 to 96 or 129 to 192 dims, or without pieces",
        ),
        (
            config.dims == "pieces" and config.queries == "split",
            "supports pieces or split queries, not both; one of them",
        ),
        (config.weights == "stored" and config.block_n < 32, "stores weights only of tiles of at least 32 keys; n32"),
        (config.weights == "double" and config.rescale != "lazy", "supports double weights only with lazy; lazy"),
        (config.rings == "joint" and config.stages < 3, "supports joint with at least three stages; s3"),
        (config.stages < 2, "needs at least two stages; s2"),
        (config.rings == "joint" and config.weights == "double", "supports joint only without double; joint"),
    )
    return next((f"has the order {config.order}, which {said}" for wrong, said in whys if wrong), None)


def ahead_fault(config: ForwardConfig, capability: tuple[int, int] | None) -> str | None:
    """Why a card does not have the order `ahead`; None if it does, and for other orders.

    The loop carries the weights as integers, so the compiler does not see that the product in flight reads them, and reuses
    their registers for the next tile's: on an H200 with Triton 3.6 the output was wrong or NaN.
    """
    if config.order != "ahead" or capability != (9, 0):
        return None
    return "has the order ahead, which is wrong on sm_90: a product still reads the weights' registers; plain, ws or pp"


def decode_fault(config: ForwardConfig) -> str | None:
    """Why a configuration of the order `decode` is not valid, or one of another order that has fields of `decode`.

    Single-warp products load keys into registers, and with Triton 3.6 these loads may still be pending when TMA is told to
    load the next tile into the same stage: so their tiles are copied by threads, which wait.
    """
    if config.order != DECODE:
        return None if config.sharers == 2 else "has x…, which only the order decode has; without"
    plain = ForwardConfig(
        block_m=config.block_m,
        block_n=config.block_n,
        warps=config.warps,
        stages=config.stages,
        loads=config.loads,
        order=DECODE,
        registers=config.registers,
        sharers=config.sharers,
    )
    if config != plain:
        return f"has fields that the order decode does not support; {plain.short}"
    if config.block_m > 128:
        return f"has the order decode, whose tiles have at most 128 rows, not {config.block_m}; m16, m32, m64 or m128"
    if config.loads == "tma" and config.block_m < 64:
        return f"has the order decode, which uses tma only with warpgroup products, not with m{config.block_m}; m64"
    return None


def _too_many_registers(config: ForwardConfig, shape: Shape) -> str | None:
    have, limit = registers(config, shape), _limit(config)
    return f"takes about {have} registers a thread, of {limit} available" if have > limit else None


def _too_much_shared_memory(config: ForwardConfig, shape: Shape) -> str | None:
    have, room = shared_bytes(config, shape), shape.shared_bytes
    if config.order == DECODE and config.sharers > 1:
        have, room = config.sharers * (have + 1024), room + 1024
    return f"takes {have // 1024} KiB of shared memory, of {room // 1024} available" if have > room else None


def _warps_without_rows(config: ForwardConfig, shape: Shape) -> str | None:
    if shape.item_bytes > 2 or config.order == DECODE:  # of `decode`, whose warps divide the keys
        return None
    least = (16 if shape.capability >= (9, 0) else 8) * config.warps
    return None if config.block_m >= least else f"has too few rows for {config.warps} warps; at least m{least}"


def _narrow_tiles(config: ForwardConfig, shape: Shape) -> str | None:
    narrow = config.block_n < 64 and config.block_n < shape.seqlen_k
    if shape.item_bytes > 2 or not narrow or config.order == DECODE or max(shape.dim, shape.dim_v) > 128:
        return None
    return f"has tiles of {config.block_n} keys, which is too little work for each wait; at least n64 up to 128 dims"


def _idle_polynomials(config: ForwardConfig, shape: Shape) -> str | None:
    if config.exp == "unit" or config.order not in HOPPER or max(shape.dim, shape.dim_v) <= 64:
        return None
    return "relieves the special function unit, which is not the limit above 64 dims; without mix"


def _idle_registers(config: ForwardConfig, shape: Shape) -> str | None:
    if config.registers is None:
        return None
    programs = 65536 // (config.registers * config.threads)
    if programs <= 65536 // (256 * config.threads):
        return (
            f"limits registers to {config.registers}, with which no more programs fit on an SM; a lower limit, or none"
        )
    room = 233472 // max(1, shared_bytes(config, shape) + 1024) if shape.capability == (9, 0) else programs
    return None if room >= programs else f"has registers for {programs} programs on an SM, but shared memory for {room}"


def _fused_without_an_end(config: ForwardConfig, shape: Shape) -> str | None:
    if config.mask == "fused" and config.loads == "tma" and shape.packed:
        return "masks in one loop, but TMA of packed tensors does not end at the end of a sequence; apart"
    return None


def _no_tma(config: ForwardConfig, shape: Shape) -> str | None:
    if config.loads != "tma":
        return None
    if shape.capability < (9, 0):
        return f"loads by TMA, which sm_{shape.capability[0]}{shape.capability[1]} does not have; pointer loads"
    odd = [dim for dim in (shape.dim, shape.dim_v) if dim * shape.item_bytes % 16]
    return f"loads rows of {odd[0]} dims by TMA, which needs multiples of 16 bytes; pointer loads" if odd else None


def _sequence_shorter_than_a_tile(config: ForwardConfig, shape: Shape) -> str | None:
    # The smallest tile of an order gives right results for any length, it only wastes work.
    smallest = 128 if config.order in HOPPER else 64
    for name, block, length, least in (
        ("m", config.block_m, shape.seqlen_q, smallest),
        ("n", config.block_n, shape.seqlen_k, 32),
    ):
        most = max(least, shape.block(length))
        if block > most:
            return f"has tiles {name}{block} for {length} rows; at most {name}{most}"
    return None


RULES: dict[str, Callable[[ForwardConfig, Shape], str | None]] = {
    "warpgroups": hopper_fault,
    "ahead": lambda config, shape: ahead_fault(config, shape.capability),
    "decode": lambda config, _shape: decode_fault(config),
    "registers": _too_many_registers,
    "shared-memory": _too_much_shared_memory,
    "warps": _warps_without_rows,
    "narrow": _narrow_tiles,
    "exponentials": _idle_polynomials,
    "register-cap": _idle_registers,
    "mask": _fused_without_an_end,
    "tma": _no_tma,
    "length": _sequence_shorter_than_a_tile,
}
"Rules by name: each returns what is wrong with a configuration, or None."


def fault(config: ForwardConfig, shape: Shape) -> tuple[str, str] | None:
    """The first rule that a configuration breaks, and its message; None for a valid one."""
    return next(((name, said) for name, rule in RULES.items() if (said := rule(config, shape)) is not None), None)


def candidates() -> Iterator[ForwardConfig]:
    """All enumerated configurations, before the rules."""
    tiles = product((64, 128, 256), (32, 64, 128), (4, 8), (2, 3, 4))
    for (block_m, block_n, warps, stages), loads, order, mask, exp in product(
        tiles, WORDS["loads"], ("plain", "ahead"), WORDS["mask"], WORDS["exp"]
    ):
        config = ForwardConfig(
            block_m=block_m, block_n=block_n, warps=warps, stages=stages, loads=loads, order=order, mask=mask, exp=exp
        )
        yield config
        # One at a time: these change little, or only together with a few others.
        yield replace(config, registers=128 if warps == 8 else 168)
        if loads == "tma" and exp == "unit":
            yield replace(config, grid="persistent")
            yield from (replace(config, section_mib=mib) for mib in (8, 100))
    for warps, block_n, stages, order, grid in product(WARPGROUPS, (32, 64, 128), (2, 3, 4), HOPPER, WORDS["grid"]):
        config = ForwardConfig(
            block_m=16 * warps, block_n=block_n, warps=warps, stages=stages, loads="tma", order=order, grid=grid
        )
        yield config
        if grid in ("tiles", "ticket"):
            yield from (replace(config, section_mib=mib) for mib in (8, 16, 100))
        if grid in ("ticket", "persistent"):
            yield replace(config, exp="mix")
        # Deep rings with more stages do not fit where they would help.
        if grid != "few" and stages == 2:
            for queries, rings in product(WORDS["queries"], ("even", "deep")):
                # Split queries help at 256 dims, where double weights do not fit the registers.
                for weights in ("held", "double") if queries == "shared" else ("held",):
                    lazy = replace(config, queries=queries, rings=rings, rescale="lazy", weights=weights)
                    yield lazy
                    yield replace(lazy, section_mib=16)
            yield from (replace(config, queries="split", section_mib=mib) for mib in (config.section_mib, 16))
            yield replace(config, rescale="lazy", exp="mix")


def pieces_candidates() -> Iterator[ForwardConfig]:
    """Further configurations that are enumerated for dims of two pieces."""
    for warps, block_n, stages, order, grid in product((8, 12), (64, 128), (2, 3), HOPPER, ("tiles", "ticket")):
        for rings, rescale, weights in product(WORDS["rings"], WORDS["rescale"], WORDS["weights"]):
            if rings == "joint" and block_n == 64:
                continue  # narrow tiles have room in rings of their own
            config = ForwardConfig(
                block_m=16 * warps,
                block_n=block_n,
                warps=warps,
                stages=stages,
                loads="tma",
                order=order,
                rings=rings,
                rescale=rescale,
                dims="pieces",
                weights=weights,
                grid=grid,
            )
            yield config
            if grid == "ticket":
                yield replace(config, section_mib=16)


def decode_candidates(rows: int) -> Iterator[ForwardConfig]:
    """Configurations that are enumerated for few queries; `rows`: of a tile."""
    block_m = 16 if rows <= 16 else 32 if rows <= 32 else 64
    for block_n, warps, stages, sharers in product((16, 32, 64, 128), (4, 8), (2, 3, 4, 5, 6), (1, 2, 3, 4)):
        for loads in WORDS["loads"]:
            yield ForwardConfig(
                block_m=block_m, block_n=block_n, warps=warps, stages=stages, loads=loads, order=DECODE, sharers=sharers
            )


def space(shape: Shape) -> list[ForwardConfig]:
    """All valid configurations for a shape, in a fixed order; for few queries those of `decode` first."""
    decode = decode_candidates(shape.seqlen_q * shape.repeats) if shape.decodes else ()
    pieces = pieces_candidates() if len(shape.pieces) == 2 else ()
    return [config for config in (*decode, *candidates(), *pieces) if fault(config, shape) is None]


def nearest(text: str, shape: Shape) -> str:
    """The valid short form nearest to a text, or to its configuration if it parses; empty if there is none."""
    there = space(shape)
    try:
        wanted = parse(text, spelled=False)
    except ValueError:
        return closest(text, [one.short for one in there])
    if fault(wanted, shape) is None:
        return wanted.short
    return min(there, key=wanted.distance).short if there else ""
