"""Exact useful work of a denoising step, in closed form.  Imports without torch.

With n predictions (two with guidance), S rows of the exchangeable attention, V tokens of video, T of text, W columns,
F columns of the feed-forward, and a multiply-add counting as 2:

    attention     4 W S²                                  a layer
    projections   8 W² S                                  a layer
    feed-forward  4 W F S                                 a layer
    cogvideox     modulation 2 · 2 · time · 6 W           a layer
    wan           cross attention 4 W V T + 4 W² V + 4 W² T   a layer
    ends          patches, text, time and the output: `_ends`

all times n.  Norms, softmax, activations, guidance and the scheduler are not counted.  Bytes are the least a step can
move: weights once, latents and embeddings read, prediction and next latents written.
"""

from __future__ import annotations

from attnbench.dtypes import DTYPES
from attnbench.models.video.config import PATCH, VideoModel
from attnbench.record import Work
from attnbench.workloads.video.case import VideoCase

LARGE_FLOPS = 10**13
"FLOPs of a step whose evaluation in double precision takes a GPU many seconds."


def work(case: VideoCase) -> Work:
    """Useful FLOPs and least bytes of one step."""
    model, video = case.config, case.config.video_tokens(*case.shape)
    wide, text = model.width_of_tokens, model.text_tokens
    layer = 2 * case.tokens * _row_products(model) + 4 * wide * case.tokens**2
    layer += 2 * 12 * model.time_dim * wide if model.joint else 4 * wide * (video * text + wide * (video + text))
    flops = case.batch * (model.layers * layer + 2 * _ends(model, video))
    latents = video * PATCH**2 * model.channels
    moved = weights(model) + 2 * latents + case.batch * (latents + text * model.text_dim)
    return Work(flops=flops, bytes=DTYPES[case.dtype].bytes * moved)


def attention_flops(case: VideoCase) -> int:
    """Return the part of these FLOPs that the exchangeable attention takes in all layers."""
    return case.batch * case.config.layers * 4 * case.config.width_of_tokens * case.tokens**2


def weights(model: VideoModel) -> int:
    """Elements of all matrices of the transformer."""
    wide = model.width_of_tokens
    layer = _row_products(model) + (12 * model.time_dim * wide if model.joint else 4 * wide * wide)
    return model.layers * layer + _ends(model, 1, 1)


def _row_products(model: VideoModel) -> int:
    """Multiply-adds of one row in one layer: projections and feed-forward."""
    wide = model.width_of_tokens
    return 4 * wide * wide + 2 * wide * model.feed_forward


def _ends(model: VideoModel, video: int, text: int | None = None) -> int:
    """Multiply-adds before the first layer and after the last."""
    wide, time, text = model.width_of_tokens, model.time_dim, model.text_tokens if text is None else text
    patch = PATCH**2 * model.channels * wide
    both_ends = video * 2 * patch
    if model.joint:
        return both_ends + text * model.text_dim * wide + wide * time + time * time + time * 2 * wide
    frequencies = int(model.transformer["freq_dim"])
    return both_ends + text * (model.text_dim + wide) * wide + frequencies * wide + wide * wide + 6 * wide * wide
