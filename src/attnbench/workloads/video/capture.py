"""Captures queries, keys and values of some layers and steps of a generation, as files for benchmarks of one attention.

The worker gets the selection through environment variables, which `attnbench run --capture` sets: a run file contains
no path of a machine.  Imports without torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from attnbench.errors import UsageError, refusal
from attnbench.text import typed_path

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.models.video.attention import Exchanged
    from attnbench.models.video.denoise import Denoiser
    from attnbench.record import PlannedGroup
    from attnbench.workloads.video.case import VideoCase
    from attnbench.workloads.video.inputs import VideoInputs

LAYERS_FLAG, STEPS_FLAG = "--capture-layers", "--capture-steps"
FOLDER, LAYERS, STEPS = "ATTNBENCH_CAPTURE", "ATTNBENCH_CAPTURE_LAYERS", "ATTNBENCH_CAPTURE_STEPS"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Selection of layers and steps, and the output folder."""

    folder: Path
    layers: tuple[int, ...]
    "from 0"
    steps: tuple[int, ...]
    "from 1"


def ask(who: str, folder: str, layers: str, steps: str, plan: Sequence[PlannedGroup]) -> None:
    """Set the environment variables that make workers of this process capture.

    Args:
        who: program name, for messages.
        folder: created if it does not exist.
        layers: comma list of numbers from 0.
        steps: comma list of numbers from 1.
        plan: groups to be measured.

    Raises:
        UsageError: a list cannot be read, the folder cannot be written to, or a group of the plan has no such layer or
            step, or generates nothing.
    """
    of_layers, of_steps = numbers(who, LAYERS_FLAG, layers, 0), numbers(who, STEPS_FLAG, steps, 1)
    for group in plan:
        _check_there(who, checked(who, "--capture", folder, group), of_layers, of_steps)
    place = writable(who, "--capture", folder)
    os.environ |= {FOLDER: str(place), LAYERS: layers, STEPS: steps}


def checked(who: str, flag: str, folder: str, group: PlannedGroup) -> VideoCase:
    """Return the case of a group whose generation is captured.

    Raises:
        UsageError: it belongs to another workload, or generates nothing.
    """
    from attnbench.workloads.video.case import VideoCase

    if group.workload != "video":
        wrong = f"is not for the workload {group.workload}"
        raise UsageError(refusal(who, flag, folder, wrong, "a suite of the workload video"))
    case = VideoCase(**group.case)
    if not case.generations:
        raise UsageError(refusal(who, flag, folder, "needs a generation to look at", "--generations of at least 1"))
    return case


def writable(who: str, flag: str, folder: str) -> Path:
    """Return a user's folder, created if it does not exist.

    Raises:
        UsageError: it cannot be created or written to.
    """
    place = typed_path(folder).absolute()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(refusal(who, flag, folder, f"cannot be made ({error.strerror})", "a folder")) from None
    try:
        with TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise UsageError(refusal(who, flag, folder, f"cannot be written to ({error.strerror})", "a folder")) from None
    return place


def _check_there(who: str, case: VideoCase, layers: Sequence[int], steps: Sequence[int]) -> None:
    for flag, given, last in ((LAYERS_FLAG, layers, case.config.layers - 1), (STEPS_FLAG, steps, case.steps)):
        if max(given) > last:
            raise UsageError(refusal(who, flag, max(given), f"is not there in {case.id}", f"at most {last}"))


def numbers(who: str, flag: str, text: str, least: int) -> tuple[int, ...]:
    """Parse a comma list of whole numbers.

    Raises:
        UsageError: it is malformed.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 6 and int(part) >= least for part in parts):
        raise UsageError(refusal(who, flag, text, "cannot be used", f"whole numbers from {least}, with commas between"))
    return tuple(map(int, parts))


def wanted() -> Wanted | None:
    """Return the selection from the environment variables."""
    if not os.environ.get(FOLDER):
        return None
    return Wanted(
        Path(os.environ[FOLDER]),
        *(numbers("video", name, os.environ[name], least) for name, least in ((LAYERS, 0), (STEPS, 1))),
    )


def captured(inputs: VideoInputs, denoiser: Denoiser, attention: Exchanged, asked: Wanted) -> int:
    """Generate once more and write the selected ``q``, ``k`` and ``v`` [B, S, H, D], one file per layer and step.

    Returns:
        Number of files.

    Raises:
        UsageError: the model does not have such a layer, or the generation such a step.
    """
    from safetensors.torch import save_file

    case, step, count = inputs.case, 1, 0
    _check_there("video", case, asked.layers, asked.steps)

    def look(layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        nonlocal count
        if layer in asked.layers and step in asked.steps:
            tensors = {name: x.detach().cpu().contiguous() for name, x in (("q", q), ("k", k), ("v", v))}
            save_file(tensors, asked.folder / f"{case.id}-layer{layer}-step{step}.safetensors")
            count += 1

    def after(number: int, latents: Tensor) -> None:
        nonlocal step
        step = number + 1

    attention.look = look
    try:
        denoiser.generate(case.steps, inputs.latents, inputs.embeds, decode=False, after=after)
    finally:
        attention.look = None
    return count
