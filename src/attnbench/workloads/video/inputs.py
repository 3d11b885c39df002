"""Seeded inputs of a `VideoCase`: the model, the noise a step starts with, and the embeddings of a prompt.

Weights are the same for every seed: they belong to the case's model.  The seed determines noise and embeddings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from attnbench.dtypes import torch_dtype
from attnbench.errors import UsageError, refusal, unknown
from attnbench.machine.memory import available_memory
from attnbench.models.hstu_ranking.checkpoint import read
from attnbench.models.video.attention import Attend, Exchanged, exchange, opaque
from attnbench.models.video.build import Parts, local_parts, random_parts
from attnbench.models.video.config import WHO
from attnbench.models.video.denoise import Denoiser, predictor
from attnbench.workloads.attention.kinds import PLAIN
from attnbench.workloads.given_files import path_of
from attnbench.workloads.video.case import VideoCase
from attnbench.workloads.video.lpips import load
from attnbench.workloads.video.work import weights

WEIGHTS_SEED = 0
NAMES = ("negative_prompt_embeds", "prompt_embeds")
"Keys of a file of embeddings: without and with the prompt, in the order of a step's batch."


class _Kept:
    """A model shared by several sets of inputs, and the latents that generations of a group are compared with."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.dense: dict[int, Tensor] = {}
        "latents after each step of the first whole generation of the group, in host memory"
        self.frames: Tensor | None = None
        "its frames, if the weights are not random"
        self.dense_of = ""
        "name of the row that generated them"


_MODELS: WeakValueDictionary[tuple[object, ...], _Kept] = WeakValueDictionary()
"Models in use, so that two sets of inputs of a case share one."


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, weakref_slot=True)
class VideoInputs:
    """A model, latents and embeddings."""

    case: VideoCase
    kept: _Kept = field(repr=False)
    latents: Tensor
    "[1, frames, channels, rows, columns] for CogVideoX, [1, channels, frames, rows, columns] for Wan"
    embeds: Tensor
    "[2, tokens, columns] without and with the prompt, or [1, tokens, columns] without guidance"

    @property
    def parts(self) -> Parts:
        """Transformer, VAE and scheduler."""
        return self.kept.parts

    def tensors(self) -> dict[str, Tensor]:
        """Latents and embeddings.  Weights are omitted, because an attention never sees them."""
        return {"latents": self.latents, "embeds": self.embeds}

    def denoiser(
        self,
        attend: Attend | Exchanged,
        *,
        dtype: torch.dtype | None = None,
        compiled: Callable[[Any], None] | None = None,
    ) -> tuple[Denoiser, Exchanged]:
        """Return the loop around a transformer with modules of its own and this attention in every layer.

        Args:
            attend: the attention.
            dtype: of copies of the weights; None: the weights themselves.
            compiled: compiles the blocks of a transformer; the attention is then an operator that is opaque to the
                compiler.
        """
        exchanged = attend if isinstance(attend, Exchanged) else Exchanged(attend)
        transformer = self.parts.with_own_modules(dtype)
        exchange(transformer, self.parts.model, exchanged if compiled is None else opaque(exchanged))
        if compiled is not None:
            compiled(transformer)
        return Denoiser(
            self.parts,
            predictor(transformer, exchanged),
            steps=self.case.steps,
            guidance=self.case.guidance,
            device=self.latents.device,
        ), exchanged


def make_inputs(case: VideoCase, *, seed: int, kind: str, device: str | torch.device) -> VideoInputs:
    """Make the inputs of a case.

    Args:
        case: the problem.
        seed: of noise and embeddings; the weights have one of their own.
        kind: of noise and embeddings: a name in `attention.kinds.PLAIN`.
        device: of all tensors.

    Raises:
        UsageError: the kind is unknown, or a file cannot be used.
        Unavailable: diffusers is not installed.
    """
    if kind not in PLAIN:
        raise unknown(WHO, "input", kind, PLAIN)
    model, dtype = case.config, torch_dtype(case.dtype)
    if case.lpips is not None:
        load(path_of(WHO, "lpips", case.lpips), torch.device(device))  # checked now, as it is used after a generation
    kept = _kept(case, dtype, device)
    generator = torch.Generator(device).manual_seed(seed)

    def tensor(*shape: int) -> Tensor:
        return PLAIN[kind](torch.empty(shape, dtype=dtype, device=device), generator)

    latents, embeds = tensor(*case.latents), tensor(case.batch, model.text_tokens, model.text_dim)
    if case.prompt is not None:
        embeds = _read_embeds(case, path_of(WHO, "prompt", case.prompt)).to(device=device, dtype=dtype)
    return VideoInputs(case=case, kept=kept, latents=latents, embeds=embeds)


def _read_embeds(case: VideoCase, path: Path) -> Tensor:
    found, wanted = read(path), (case.config.text_tokens, case.config.text_dim)
    parts = []
    for name in NAMES[-case.batch :]:
        if name not in found or tuple(found[name].shape[-2:]) != wanted or found[name].numel() != wanted[0] * wanted[1]:
            has = list(found[name].shape) if name in found else "nothing"
            raise UsageError(
                refusal(
                    WHO,
                    "prompt",
                    f"{path.name} {name}={has}",
                    "does not fit the model",
                    f"[1, {wanted[0]}, {wanted[1]}]",
                )
            )
        if not bool(found[name].isfinite().all()):
            raise UsageError(refusal(WHO, "prompt", f"{path.name} {name}", "is not finite", "finite embeddings"))
        parts.append(found[name].reshape(1, *wanted))
    return torch.cat(parts)


def _check_memory(case: VideoCase, device: str | torch.device) -> None:
    """Refuse weights that do not fit in host memory; a GPU reports that by itself.

    Raises:
        MemoryError: with the sizes.
    """
    wanted = weights(case.config) * torch_dtype(case.dtype).itemsize
    free = available_memory()
    if torch.device(device).type == "cpu" and free is not None and wanted > free // 2:
        raise MemoryError(f"the weights of model {case.model} take {wanted / 1e9:.1f} GB, {free / 1e9:.1f} GB are free")


def _kept(case: VideoCase, dtype: torch.dtype, device: str | torch.device) -> _Kept:
    key = (case.model, case.shape, case.dtype, str(device), case.weights)
    found = _MODELS.get(key)
    if found is None:
        _check_memory(case, device)
        if case.weights is None:
            parts = random_parts(case.config, case.shape, seed=WEIGHTS_SEED, dtype=dtype, device=device)
        else:
            folder = path_of(WHO, "weights", case.weights, kind="folder")
            parts = local_parts(case.config, case.shape, folder, dtype=dtype, device=device)
        found = _MODELS[key] = _Kept(parts)
    return found
