"""The numbers of a block-sparse HSTU call, all known to the host.  Can be imported without torch and Triton."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class NamedDtype:
    """Replaces a torch.dtype in a `BsaProblem` where torch is not imported, as when configurations are listed."""

    name: str
    "float16, bfloat16 or float32"

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return 4 if self.name == "float32" else 2

    def __str__(self) -> str:
        return f"torch.{self.name}"


@dataclass(frozen=True, kw_only=True)  # no slots: what follows from the fields is computed once
class BsaProblem:
    """The numbers of a call, all known to the host."""

    batch: int
    heads: int
    queries: int
    "of all sequences"
    keys: int
    "of all sequences"
    max_seqlen: int
    max_seqlen_q: int
    attn_dim: int
    linear_dim: int
    dtype: torch.dtype
    block_size: int
    block_counts: int
    local_window: int
    "0: no sliding branch"
    gates: int
    "number of gates of a query: 0, 2 or 3"
    alpha: float
    scaling_seqlen: int
    shared: bool
    pairs: bool
    has_targets: bool
    has_cache: bool

    @cached_property
    def units(self) -> int:
        """(sequence, head) pairs."""
        return self.batch * self.heads

    @cached_property
    def others(self) -> int:
        """Blocks that a query selects besides its local one."""
        return self.block_counts - 1

    @cached_property
    def entry_rows(self) -> int:
        """Entries of the lists of a head."""
        return self.queries * self.others

    @cached_property
    def list_heads(self) -> int:
        """Heads with lists of their own."""
        return 1 if self.shared else self.heads

    @cached_property
    def item(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @cached_property
    def block_d(self) -> int:
        """Columns of a tile of queries or keys: a power of two, at least the 16 of a tensor core."""
        return max(16, 1 << (self.attn_dim - 1).bit_length())

    @cached_property
    def block_v(self) -> int:
        """The same of values."""
        return max(16, 1 << (self.linear_dim - 1).bit_length())

    @cached_property
    def mean_rows(self) -> int:
        """Rows of the means of a head."""
        return self.keys // self.block_size

    @cached_property
    def count_rows(self) -> int:
        """List starts of a head: for each sequence one more than it has blocks."""
        return self.mean_rows + self.batch

    @cached_property
    def slot_rows(self) -> int:
        """Partial rows of a pair."""
        return self.max_seqlen_q * self.others

    @cached_property
    def pair_bytes(self) -> int:
        """Bytes of the partial rows of a pair."""
        return self.slot_rows * self.linear_dim * self.item

    @cached_property
    def index_bits(self) -> int:
        """Bits of a ranking key that hold the block number: 32 where all bits of the score are needed.

        A key with b such bits rounds a score to 2**(b - 23) of itself.  `selection_faults` of the workload allows
        four roundings of the inputs' precision, of which the means take one; 12 and 15 bits take one more.
        """
        bits = max(1, (self.max_seqlen // self.block_size).bit_length())
        most = {"torch.float16": 12, "torch.bfloat16": 15}.get(str(self.dtype), 0)
        return bits if bits <= most else 32

    def attend_tiles(self, rows: int) -> int:
        """Most tiles of the lists of a pair: full ones, and a partial one for each block."""
        return self.slot_rows // rows + self.max_seqlen // self.block_size

    def tile_rows(self, rows: int) -> int:
        """Rows of a head in the table of tiles."""
        return self.entry_rows // rows + self.mean_rows
