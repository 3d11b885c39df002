"""Keys and values of a case of softmax attention in pages of one pool, as in the caches of inference servers.

The pages of all sequences are in random order among spare ones, and unwritten memory is NaN: a kernel that reads
beyond a sequence, or ignores the page table, is detected.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from attnbench.backends.base import Config

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.attention.case import AttentionCase

PAGE_SIZES = (16, 32, 64, 128)
USUAL = 64
SPARE = 5
"Pages of the pool that no sequence uses."


def page_configs(further: str = "", **values: object) -> list[Config]:
    """Return a configuration for each page size, with an additional word and its values."""
    return [Config(f"p{size}{further}", {"page_size": size, **values}) for size in PAGE_SIZES]


def page_size_of(config: Config | None) -> int:
    """Return the page size of a configuration."""
    values: Mapping[str, object] = config.values if config else {}
    size = values.get("page_size", USUAL)
    assert isinstance(size, int)
    return size


class KvPages:
    """A pool and its table: a sequence's pages are `indices[indptr[b] : indptr[b + 1]]`."""

    def __init__(self, case: AttentionCase, k: Tensor, v: Tensor, page_size: int) -> None:
        """Lay out keys and values in pages.

        Args:
            case: the problem; values must have the head dim of the keys.
            k: keys [B, Sk, G, D] or packed [Tk, G, D].
            v: values likewise.
            page_size: keys of a page.
        """
        import torch

        lengths = [keys for _, keys in case.sequences]
        held = [-(-keys // page_size) for keys in lengths]
        made = torch.Generator().manual_seed(0)
        order = torch.randperm(sum(held) + SPARE, generator=made)[: sum(held)]
        starts = list(accumulate(held, initial=0))
        at = [torch.arange(keys) for keys in lengths]
        pages = [order[start + keys // page_size] for start, keys in zip(starts[:-1], at, strict=True)]

        def sent(values: Tensor, dtype: torch.dtype = torch.int64) -> Tensor:
            return values.to(k.device, dtype)

        self.page, self.slot = sent(torch.cat(pages)), sent(torch.cat(at) % page_size)
        self.indices, self.indptr = sent(order, torch.int32), sent(torch.tensor(starts), torch.int32)
        self.last_page_len = sent(torch.tensor([(keys - 1) % page_size + 1 for keys in lengths]), torch.int32)
        shape = (sum(held) + SPARE, 2, page_size, *k.shape[-2:])
        self.pool = torch.full(shape, torch.nan, dtype=k.dtype, device=k.device)
        "[pages, 2, page_size, G, D]"
        self.load(k, v)

    def load(self, k: Tensor, v: Tensor) -> None:
        """Write new values of the same shapes."""
        for which, x in enumerate((k, v)):
            self.pool[self.page, which, self.slot] = x.flatten(0, -3)

    def gathered(self) -> tuple[Tensor, Tensor]:
        """Return copies of keys and values, packed [Tk, G, D]."""
        return self.pool[self.page, 0, self.slot], self.pool[self.page, 1, self.slot]
