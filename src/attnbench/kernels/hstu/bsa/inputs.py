"""Inputs of a block-sparse HSTU call, and the checks of a caller's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import triton
from torch import Tensor

from attnbench.kernels.hstu.bsa.call import BsaCall
from attnbench.kernels.hstu.bsa.plan import SCHEDULES, BsaConfig
from attnbench.kernels.hstu.bsa.portable.pool import hstu_bsa_pool
from attnbench.kernels.hstu.bsa.problem import BsaProblem
from attnbench.kernels.hstu.dense.problem import (
    LARGEST_COUNT,
    Problem,
    check_device,
    check_tensors,
    check_types,
    check_values,
)
from attnbench.kernels.hstu.dense.problem import WHO as DENSE
from attnbench.kernels.shared.card import capability_of
from attnbench.kernels.shared.hopper import is_rows
from attnbench.kernels.shared.limits import is_whole

WHO = "hstu_bsa_attention"
BLOCK_SIZES = (16, 32, 64, 128)
MOST_BLOCKS = 16
SELECTIONS = ("head", "shared")


class BsaTensors(NamedTuple):
    """Inputs of a call, as `hstu_bsa_attention` takes them, in the order of the cached launches."""

    q: Tensor
    k: Tensor
    v: Tensor
    gates: Tensor | None
    offsets: Tensor
    offsets_q: Tensor | None
    num_targets: Tensor | None

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability of the card; (0, 0) for CPU tensors, which Triton's interpreter takes."""
        return capability_of(self.q) or (0, 0)

    @property
    def rows(self) -> bool:
        """Whether the Hopper kernels can read them."""
        return all(is_rows(x) or not x.numel() for x in (self.q, self.k, self.v))

    def call(
        self, problem: BsaProblem, config: BsaConfig, out: Tensor, blocks: Tensor, workspace: dict[str, Tensor]
    ) -> BsaCall:
        """The call, with results and workspace."""
        return BsaCall(
            problem=problem,
            config=config,
            q=self.q,
            k=self.k,
            v=self.v,
            gates=self.gates,
            offsets=self.offsets,
            offsets_q=self.offsets_q,
            num_targets=self.num_targets,
            out=out,
            blocks=blocks,
            workspace=workspace,
        )


def problem_of(
    tensors: BsaTensors,
    *,
    max_seqlen: int,
    max_seqlen_q: int,
    block_size: int,
    block_counts: int,
    alpha: float,
    scaling_seqlen: int,
    local_window: int | None,
    selection: str,
    pairs: bool,
) -> BsaProblem:
    """The numbers of a call; shapes are read from the tensors, unchecked."""
    t = tensors
    return BsaProblem(
        batch=t.offsets.shape[0] - 1,
        heads=t.q.shape[1],
        queries=t.q.shape[0],
        keys=t.k.shape[0],
        max_seqlen=max_seqlen,
        max_seqlen_q=max_seqlen_q,
        attn_dim=t.q.shape[2],
        linear_dim=t.v.shape[2],
        dtype=t.q.dtype,
        block_size=block_size,
        block_counts=block_counts,
        local_window=local_window or 0,
        gates=0 if t.gates is None else t.gates.shape[-1],
        alpha=alpha,
        scaling_seqlen=scaling_seqlen,
        shared=selection == "shared",
        pairs=pairs,
        has_targets=t.num_targets is not None,
        has_cache=t.offsets_q is not None,
    )


def check_kinds(tensors: dict[str, Any], alpha: Any, config: Any) -> None:
    """Refuse arguments of wrong types, before they are used.

    Raises:
        ValueError: naming the argument, its type and what is accepted.
    """
    _as_ours(lambda: check_types(tensors, alpha))
    if config is not None and not isinstance(config, BsaConfig):
        raise _wrong("config", repr(config)[:40], f"is of type {type(config).__name__}", "a BsaConfig, or None")


def check(
    tensors: BsaTensors,
    *,
    max_seqlen: int,
    max_seqlen_q: int,
    alpha: float,
    scaling_seqlen: int,
    block_size: int,
    block_counts: int,
    local_window: int | None,
    selection: str,
    config: BsaConfig | None = None,
    validate: bool = False,
) -> None:
    """Refuse what the kernels do not support; with `validate` also values inside tensors, which synchronizes with the device.

    Raises:
        ValueError: naming the argument, its value and what is accepted.
    """
    t = tensors
    shared = Problem(
        offsets=t.offsets,
        offsets_q=t.offsets_q,
        num_targets=t.num_targets,
        max_seqlen=max_seqlen,
        max_seqlen_q=max_seqlen_q,
        alpha=alpha,
        scaling_seqlen=scaling_seqlen,
        causal=True,
        contextual_len=0,
        max_attn_len=None,
    )
    _as_ours(lambda: check_tensors(t.q, t.k, t.v, shared))
    _as_ours(lambda: check_device(t.q, compiled=isinstance(hstu_bsa_pool, triton.JITFunction) and not t.q.is_meta))
    _check_sparse(block_size, block_counts, local_window, selection, alpha, max_seqlen)
    _check_gates(t, 2 if local_window is None else 3)
    if config is not None and config.schedule not in SCHEDULES:
        raise _wrong("config.schedule", config.schedule, "is not known", " or ".join(SCHEDULES))
    if validate:
        _as_ours(lambda: check_values(t.q, t.k, t.v, shared))


def _as_ours(checked: Callable[[], None]) -> None:
    """Re-raise errors of the dense function's checks under this function's name."""
    try:
        checked()
    except ValueError as wrong:
        raise ValueError(str(wrong).replace(DENSE, WHO, 1)) from None


def _check_sparse(
    block_size: int, block_counts: int, local_window: int | None, selection: str, alpha: float, max_seqlen: int
) -> None:
    if not is_whole(block_size) or block_size not in BLOCK_SIZES:
        said = "is not a whole number"
        if is_whole(block_size):
            power = block_size > 0 and not block_size & (block_size - 1)
            said = "is not supported" if power else "is not a power of two"
        raise _wrong("block_size", block_size, said, f"one of {', '.join(map(str, BLOCK_SIZES))}")
    exist = max(1, -(-max_seqlen // block_size))
    if not is_whole(block_counts) or not 1 <= block_counts <= MOST_BLOCKS:
        raise _wrong("block_counts", block_counts, "is out of range", f"a whole number from 1 to {MOST_BLOCKS}")
    if block_counts > exist:
        raise _wrong(
            "block_counts",
            block_counts,
            f"is over the {exist} blocks of {block_size} in {max_seqlen} rows",
            f"at most {exist}",
        )
    if local_window is not None and (not is_whole(local_window) or not 1 <= local_window <= LARGEST_COUNT):
        raise _wrong(
            "local_window", local_window, "cannot be used", f"a whole number from 1 to {LARGEST_COUNT}, or None"
        )
    if selection not in SELECTIONS:
        raise _wrong("selection", selection, "is not known", " or ".join(SELECTIONS))
    if alpha <= 0:
        raise _wrong("alpha", alpha, "would reverse the ranking", "a finite number above 0")


def _check_gates(tensors: BsaTensors, branches: int) -> None:
    q, gates = tensors.q, tensors.gates
    if gates is None:
        return
    for name, have, want in (
        ("shape", tuple(gates.shape), (*q.shape[:2], branches)),
        ("dtype", gates.dtype, q.dtype),
        ("device", gates.device, q.device),
        ("is_contiguous()", gates.is_contiguous(), True),
    ):
        if have != want:
            raise _wrong(f"gates.{name}", have, "does not fit", str(want))


def _wrong(name: str, value: object, wrong: str, accepted: str) -> ValueError:
    return ValueError(f"{WHO}: {name}={value} {wrong}; {accepted}")
