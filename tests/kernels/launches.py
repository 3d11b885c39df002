"""Kernels that are launched on no card: the arguments that Triton gets, and those that its C launcher would get.

    with on_no_card() as card:
        flash_attention(q, k, v)            # CPU tensors
    card.launched                           # each launch: kernel, grid, arguments in the kernel's order

Launches through Triton and repeated launches are recorded alike, so that they can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

STREAM = 7


class Card:
    """What was launched: (kernel, grid, arguments), an address for a tensor, (address, ...) for a descriptor."""

    def __init__(self, *, nested: bool) -> None:
        self.nested = nested
        self.launched: list[tuple[tuple[Any, ...], tuple[int, ...], list[Any]]] = []
        self.through_triton = 0
        self.held: list[torch.Tensor] = []

    def hold(self, made: torch.Tensor) -> torch.Tensor:
        """Keep what a call allocates alive."""
        self.held.append(made)
        return made

    def run(self, kernel: Any, *values: Any, grid: tuple[int, ...], warmup: bool, **named: Any) -> Any:
        """Replaces `JITFunction.run`."""
        given = dict(zip(kernel.arg_names, values, strict=False)) | named
        given |= {param.name: param.default for param in kernel.params if param.name not in given}
        ordered = [given[param.name] for param in kernel.params]
        name = specialised(kernel, ordered)
        self.launched.append((name, (*grid, 1, 1)[:3], flat(ordered)))
        self.through_triton += 1
        return self.compiled(name, ordered)

    def compiled(self, name: tuple[Any, ...], ordered: list[Any]) -> Any:
        """Replaces Triton's compiled kernel."""

        def launch(*given: Any) -> None:
            x, y, z, stream, function = given[:5]
            assert (stream, function) == (STREAM, name)
            if self.nested:
                assert given[5:15] == (False, False, "metadata", None, None, None, None, None, "annotations", "bytes")
                (arguments,) = given[15:]
            else:
                assert given[5:13] == (False, False, None, None, "metadata", None, None, None)
                arguments = list(given[13:])
            self.launched.append((name, (x, y, z), list(arguments)))

        run = SimpleNamespace(
            launch=partial(launch),  # like a C function, it has no closure
            global_scratch_size=0,
            profile_scratch_size=0,
            launch_cooperative_grid=False,
            launch_pdl=False,
        )
        if self.nested:
            run.arg_annotations, run.kernel_signature = "annotations", "bytes"
        described: list[Any] = [{} for x in ordered if hasattr(x, "block_shape")]
        return SimpleNamespace(
            run=run, function=name, packed_metadata="metadata", metadata=SimpleNamespace(tensordesc_meta=described)
        )


def specialised(kernel: Any, ordered: list[Any]) -> tuple[Any, ...]:
    """What Triton specializes a kernel for: dtypes, alignment, integers that are 1 or divisible by 16."""
    found: list[Any] = [kernel.fn.__name__]
    for param, x in zip(kernel.params, ordered, strict=True):
        found.append(x if param.is_constexpr else _seen(x, param.do_not_specialize))
    return tuple(found)


def _seen(x: Any, unseen: bool) -> Any:
    """What Triton specializes on in an argument; in a tuple every number counts."""
    if isinstance(x, tuple):
        return tuple(_seen(one, False) for one in x)
    if isinstance(x, torch.Tensor):
        return x.dtype, x.data_ptr() % 16 == 0
    if hasattr(x, "block_shape"):
        return x.base.dtype, *x.block_shape
    if x is None:
        return None
    return (x == 1, x % 16 == 0, x >= 2**31) if type(x) is int and not unseen else type(x)


def flat(ordered: list[Any]) -> list[Any]:
    """Arguments as the C launcher gets them, which flattens tuples itself."""
    found: list[Any] = []
    for x in ordered:
        if isinstance(x, tuple):
            found.append(tuple(flat(list(x))))
        elif isinstance(x, torch.Tensor):
            found.append(x.data_ptr())
        elif hasattr(x, "block_shape"):
            found += [tensor_map(x), *x.shape, *x.strides]
        else:
            found.append(x)
    return found


def holding(card: Card, make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A method that allocates, whose results the card keeps alive."""
    return lambda x, *given, **named: card.hold(make(x, *given, **named))


def tensor_map(described: Any, *_given: Any) -> tuple[Any, ...]:
    """Replaces a tensor map: everything that it is made from."""
    return "map", described.base.data_ptr(), *described.shape, *described.strides, *described.block_shape


@contextmanager
def on_no_card(*, nested: bool = True) -> Iterator[Card]:
    """Launch every compiled kernel on a `Card`; public functions take CPU tensors.

    Args:
        nested: whether the C launcher takes arguments as Triton 3.9's does; otherwise as that of 3.6.
    """
    from triton.backends.nvidia import driver
    from triton.runtime.jit import JITFunction

    from attnbench.kernels.shared import kept

    card = Card(nested=nested)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", lambda kernel, *values, **named: card.run(kernel, *values, **named))
        patch.setattr(driver, "make_tensordesc_arg", lambda x, _metadata, _base=None: [tensor_map(x)])
        # Allocations are kept, so that no two of them have the same address.
        for name in ("new_empty", "new_empty_strided"):
            patch.setattr(torch.Tensor, name, holding(card, getattr(torch.Tensor, name)))
        patch.setattr(kept, "is_on_card", lambda x: True)
        patch.setattr(kept, "current_device", lambda: -1)
        patch.setattr(kept, "current_stream", lambda device: STREAM)
        for name in ("flash.calls", "hstu.dense.calls", "hstu.bsa.inputs"):
            patch.setattr(f"attnbench.kernels.{name}.check_device", lambda q, *, compiled: None)
        patch.setattr("attnbench.kernels.hstu.paged.calls.check_device", lambda who, x: None)
        patch.setattr("attnbench.kernels.hstu.layer.api._check_device", lambda who, name, x: None)
        for name in (
            "flash.quant.calls.check_device",
            "flash.sparse.calls.check_device",
            "flash.sparse_quant.calls.check_device",
        ):
            patch.setattr(f"attnbench.kernels.{name}", lambda q: None)
        for name in (
            "flash.calls.CALLS",
            "flash.quant.calls.CALLS",
            "flash.sparse.calls.CALLS",
            "flash.sparse.lists._calls",
            "flash.sparse_quant.calls.CALLS",
            "hstu.dense.calls.CALLS",
            "hstu.bsa.calls.CALLS",
            "hstu.paged.calls._attentions",
        ):
            patch.setattr(f"attnbench.kernels.{name}", kept.Kept())
        patch.setattr("attnbench.kernels.hstu.paged.calls._appends", kept.Kept())
        patch.setattr("attnbench.kernels.hstu.layer.api._calls", kept.Kept())
        yield card
