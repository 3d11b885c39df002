"""Whole generations, as measured in seed 003, and the errors of their latents and their attention.

Latents of every step are compared, from the same noise, with those of the first row of the group that generates: the
baseline.  A different trajectory is not a worse one: two exact kernels diverge too, and their distance is the floor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from zlib import crc32

import torch
from torch import Tensor

from attnbench.errors import AttnbenchError, refusal
from attnbench.models.video.attention import Attend, Exchanged
from attnbench.models.video.config import WHO
from attnbench.models.video.denoise import Denoiser, Generation
from attnbench.workloads.given_files import path_of
from attnbench.workloads.video import WARM_UP_STEPS, mp4
from attnbench.workloads.video.capture import captured, wanted
from attnbench.workloads.video.case import VideoCase
from attnbench.workloads.video.frames import as_frames, psnr, ssim
from attnbench.workloads.video.inputs import VideoInputs
from attnbench.workloads.video.lpips import SMALLEST, load, lpips

ROWS = 64
"Rows of the attention, drawn over all heads and both predictions, that are computed again in fp64."
PICTURES = ("frames_psnr_db", "frames_ssim", "frames_lpips")
MIB = 2**20


@dataclass(slots=True)
class Generated:
    """Results of whole generations."""

    total_s: list[float] = field(default_factory=list)
    decode_s: list[float] = field(default_factory=list)
    peak_mb: float | None = None
    calls: int = 0
    "of the attention, in the last generation"
    further: dict[str, float | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def counters(self) -> dict[str, float | None]:
        """Return the counters for the record."""
        if not (count := len(self.total_s)):
            return self.further
        return {
            "generations": count,
            "generation_s": sum(self.total_s) / count,
            **({f"generation_s_{number}": s for number, s in enumerate(self.total_s, 1)} if count > 1 else {}),
            "decode_s": sum(self.decode_s) / count,
            "attention_calls": self.calls,
            **({} if self.peak_mb is None else {"generation_peak_mb": self.peak_mb}),
            **self.further,
        }


def generate_all(
    case: VideoCase, inputs: VideoInputs, denoiser: Denoiser, attention: Exchanged, *, who: str
) -> Generated:
    """Warm up, then run the number of generations set by the case.

    Raises:
        AttnbenchError: latents are not finite; the message names the step.
    """
    found, device = Generated(), inputs.latents.device
    kept: list[Tensor] = []
    for _ in range(case.warm_ups if case.generations else 0):
        denoiser.generate(min(WARM_UP_STEPS, case.steps), inputs.latents, inputs.embeds)
    for _ in range(case.generations):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        kept = []
        before = attention.calls
        one = generated(
            case,
            inputs,
            denoiser,
            attention,
            after=lambda number, latents, kept=kept: kept.append(latents),  # type: ignore[misc]  # mypy infers no lambda with a default
        )
        found.calls = attention.calls - before
        found.total_s.append(one.total_s)
        found.decode_s.append(one.decode_s)
        if device.type == "cuda":
            found.peak_mb = torch.cuda.max_memory_allocated(device) / MIB
        _check_finite(who, kept)
    if case.generations:
        if (path := mp4.place(case, who)) is not None and one.frames is not None:
            mp4.write(path, as_frames(one.frames), fps=case.config.fps)
        found.further = {"latents_crc32": crc32(bytes_of(kept[-1]))}
        if (other := inputs.kept.dense_of) and other != who:
            found.further |= _distances(inputs, kept)
            found.notes = (f"latents are compared with those of {other}",)
            pictures, notes = compared_frames(inputs, one.frames)
            found.further |= pictures
            found.notes += notes
        else:
            _keep(inputs, kept, one.frames, who)
        if one.frames is not None and (made := one.frames.shape[2]) != case.frames:
            found.notes += (f"frames={case.frames} were decoded to {made}: this decoder makes 8k + 1 frames or 8k",)
    if len(found.total_s) > 1:
        found.notes += (f"generations took {', '.join(f'{s:.4g}' for s in found.total_s)} s",)
    found.further |= attention_errors(case, inputs, denoiser, attention, who=who, kept=kept)
    if (asked := wanted()) is not None and inputs.kept.dense_of == who:
        count = captured(inputs, denoiser, attention, asked)
        found.further["captured_files"] = count
        found.notes += (f"--capture: {count} file{'s' * (count != 1)} of q, k and v",)
    denoiser.begin(case.steps)
    return found


def generated(
    case: VideoCase,
    inputs: VideoInputs,
    denoiser: Denoiser,
    attention: Exchanged,
    after: Callable[[int, Tensor], None] = lambda number, latents: None,
) -> Generation:
    """Run one generation, with the dense first steps set by the case."""
    try:
        return denoiser.generate(
            case.steps, inputs.latents, inputs.embeds, before=partial(_dense, case, attention), after=after
        )
    finally:
        attention.is_dense = False


def _check_finite(who: str, kept: list[Tensor]) -> None:
    for number, latents in enumerate(kept, 1):
        if not bool(latents.isfinite().all()):
            raise AttnbenchError(
                refusal(
                    who,
                    "latents",
                    "nan",
                    f"after step {number} of {len(kept)} are not finite",
                    "finite latents after every step",
                )
            )


def _dense(case: VideoCase, attention: Exchanged, number: int) -> None:
    attention.is_dense = number <= case.dense_steps


def bytes_of(x: Tensor) -> bytes:
    """Return the raw bytes of a tensor's elements."""
    return x.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


def _keep(inputs: VideoInputs, kept: list[Tensor], video: Tensor | None, who: str) -> None:
    """Keep this row for the comparison if it is the first of the group that generates (the baseline, if it does)."""
    shared = inputs.kept
    shared.dense, shared.dense_of = {number: x.cpu() for number, x in enumerate(kept, 1)}, who
    shared.frames = as_frames(video).cpu() if video is not None and inputs.case.weights is not None else None


def _distances(inputs: VideoInputs, kept: list[Tensor]) -> dict[str, float]:
    """Return relative L1 and cosine of the latents after each step."""
    found = {}
    for (number, dense), latents in zip(inputs.kept.dense.items(), kept, strict=False):
        mine, other = (x.to(torch.float64).flatten() for x in (latents.cpu(), dense))
        found[f"latents_rel_l1_{number}"] = float((mine - other).abs().sum() / other.abs().sum())
        found[f"latents_cosine_{number}"] = float(torch.nn.functional.cosine_similarity(mine, other, dim=0))
    return found


def compared_frames(inputs: VideoInputs, video: Tensor | None) -> tuple[dict[str, float | None], tuple[str, ...]]:
    """Return PSNR, SSIM and LPIPS of the frames, and why some of them are missing."""
    case, other = inputs.case, inputs.kept.frames
    missing: dict[str, float | None] = dict.fromkeys(PICTURES)
    if video is None or other is None:
        return missing, ("no PSNR, SSIM and LPIPS: random weights make no pictures",)
    frames = as_frames(video)
    found = missing | {"frames_psnr_db": psnr(frames.cpu(), other), "frames_ssim": ssim(frames.cpu(), other)}
    if case.lpips is None:
        return found, ("no LPIPS: its network was not given (--lpips FILE)",)
    if min(case.height, case.width) < SMALLEST:
        return found, (f"no LPIPS: frames are smaller than {SMALLEST} pixels",)
    network = load(path_of(WHO, "lpips", case.lpips), frames.device)
    return found | {"frames_lpips": lpips(frames, other.to(frames.device), network)}, ()


def attention_errors(
    case: VideoCase,
    inputs: VideoInputs,
    denoiser: Denoiser,
    attention: Exchanged,
    *,
    who: str,
    kept: Sequence[Tensor] = (),
) -> dict[str, float]:
    """Return relative L1 of drawn rows of the attention in place against fp64, in the first, middle and last layer.

    Args:
        case: of the inputs.
        inputs: noise and embeddings.
        denoiser: with this attention in its transformer.
        attention: of all layers.
        who: for messages.
        kept: latents after each step of a generation; the last step of these is checked as well as the first.

    Raises:
        AttnbenchError: a call returns a cached answer.
    """
    layers = case.config.layers
    found: dict[str, float] = {}
    steps = {0: inputs.latents} | ({len(kept) - 1: kept[-2]} if len(kept) > 1 else {})
    for index, latents in steps.items():
        step = f"_step_{index + 1}" if index else ""

        def look(
            layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor, index: int = index, step: str = step
        ) -> None:
            if layer in (0, layers // 2, layers - 1):
                found[f"attention_rel_l1_layer_{layer}{step}"] = rows_error(q, k, v, out)
            if layer == index == 0:
                check_follows(attention.attend, q, k, v, who=who)

        denoiser.begin(case.steps)
        attention.look = look
        try:
            with torch.no_grad():
                denoiser.step(index, latents, inputs.embeds)
        finally:
            attention.look = None
    return found


def check_follows(attend: Attend, q: Tensor, k: Tensor, v: Tensor, *, who: str) -> None:
    """Call the attention with the last head of the last sequence of q, of k and of v negated in turn.

    A step is repeated from the same latents, so an attention that recognises its inputs by a part of them could return
    cached answers.  Each change must be visible in the answer.

    Raises:
        AttnbenchError: an answer did not change.
    """
    before = attend(q, k, v).clone()
    for index, name in enumerate("qkv"):
        given = [q, k, v]
        given[index] = changed = given[index].clone()
        changed[-1, :, -1] *= -1
        if changed.any() and torch.equal(attend(*given)[-1, :, -1], before[-1, :, -1]):
            raise AttnbenchError(
                refusal(
                    who,
                    "attention",
                    "its answer of before",
                    f"was given although {name} has changed",
                    "an attention that computes what it is given",
                )
            )


def rows_error(q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> float:
    """Return relative L1 of drawn rows of out [B, S, H, D] against softmax attention in fp64."""
    drawn = torch.Generator().manual_seed(0)
    wrong = size = 0.0
    for _ in range(ROWS):
        sequence, row, head = (int(torch.randint(n, (1,), generator=drawn)) for n in q.shape[:3])
        query, keys, values, mine = (
            x.double()
            for x in (q[sequence, row, head], k[sequence, :, head], v[sequence, :, head], out[sequence, row, head])
        )
        right = (keys @ query * q.shape[-1] ** -0.5).softmax(0) @ values
        wrong += float((mine - right).abs().sum())
        size += float(right.abs().sum())
    return wrong / size
