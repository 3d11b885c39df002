"""The oracle: the first step in `dtype`, with plain attention over all keys or over the blocks of a map."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from attnbench.models.video.attention import Attend, plain
from attnbench.workloads.sparse.case import SparseCase
from attnbench.workloads.sparse.patterns import block_map
from attnbench.workloads.video.inputs import VideoInputs

DENSE, SPARSE, CHOSEN = "step", "sparse-step", "chosen-step"
"Variants, by the attention of every layer."

_ANSWERS: WeakKeyDictionary[VideoInputs, dict[tuple[str, torch.dtype, bool], dict[str, Tensor]]] = WeakKeyDictionary()
"""Earlier evaluations, by variant, precision, and whether only the first layer was computed.  Not in the inputs: backends
are given these, and could return an answer or change it."""


class _Reached(Exception):
    """Raised after the first layer's attention, to stop the evaluation."""


def evaluate(
    inputs: VideoInputs, *, dtype: torch.dtype, variant: str = DENSE, first: bool = False
) -> dict[str, Tensor]:
    """Evaluate the first step: prediction, next latents and rows of the attention.

    The answer is kept as long as the inputs: the check and `rounding.py` need the same one, which takes a GPU seconds at
    full size.

    Args:
        inputs: of the case.
        dtype: to compute in; if it is not the case's, with copies of the weights.
        variant: dense, or with the case's block map in all layers; for chosen maps the oracle's own keep all blocks.
        first: only the attention of the first layer.

    Returns:
        out [1 or 2, …] and latents [1, …], as in `Denoiser.step`, and attention, rows of the first layer's, as in
        `Exchanged.rows`.
    """
    key, answers = (variant, dtype, first), _ANSWERS.setdefault(inputs, {})
    if key not in answers:
        answers[key] = evaluator(inputs, dtype=dtype, attend=right_attention(variant, inputs), first=first)()
    return dict(answers[key])


def evaluator(
    inputs: VideoInputs, *, dtype: torch.dtype, attend: Attend, first: bool = False
) -> Callable[[], dict[str, Tensor]]:
    """Return the first step with any attention, to be called several times, with its weights converted once.

    Args:
        inputs: of the case.
        dtype: to compute in.
        attend: in every layer.
        first: only up to the attention of the first layer, which is then the only output.
    """
    latents, embeds = inputs.latents.to(dtype), inputs.embeds.to(dtype)
    denoiser, exchanged = inputs.denoiser(attend, dtype=None if dtype == inputs.latents.dtype else dtype)

    def stop(layer: int, *of_layer: Tensor) -> None:
        raise _Reached

    def call() -> dict[str, Tensor]:
        denoiser.begin(inputs.case.steps)
        if first:
            exchanged.look = stop
            with torch.no_grad(), suppress(_Reached):
                denoiser.step(0, latents, embeds)
            assert exchanged.rows is not None
            return {"attention": exchanged.rows}
        with torch.no_grad():
            prediction, after = denoiser.step(0, latents, embeds)
        assert exchanged.rows is not None
        return {"out": prediction, "latents": after, "attention": exchanged.rows}

    return call


def right_attention(variant: str, inputs: VideoInputs) -> Attend:
    """Return the attention that every layer has to compute."""
    if variant in (DENSE, CHOSEN):
        return plain
    case = inputs.case.sparse
    return with_maps(case, [torch.from_numpy(block_map(case).copy()).to(inputs.latents.device)])


def with_maps(case: SparseCase, maps: Sequence[Tensor]) -> Attend:
    """Return the attention of layers that are called in turn, with one block map each, bool [B, H, rows, columns]."""
    turns = itertools.cycle(maps)
    rows_of, keys_of = (torch.arange(case.seqlen, device=maps[0].device) // size for size in case.block_shape)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        blocks = next(turns)

        def seen(start: int, stop: int) -> Tensor:
            return blocks[:, :, rows_of[start:stop]][:, :, :, keys_of]

        return plain(q, k, v, seen=seen)

    return attend


def nothing(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """An attention that returns zeros: a well-known wrong answer."""
    return torch.zeros_like(v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """An attention whose rows see no later rows: a well-known wrong answer."""
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)
