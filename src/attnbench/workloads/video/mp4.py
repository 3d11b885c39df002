"""Writes frames of whole generations as mp4 files.

The worker gets the folder through an environment variable, which `attnbench run --mp4` sets.  Imports without torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.errors import UsageError, refusal
from attnbench.workloads.video.capture import checked, writable

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.record import PlannedGroup
    from attnbench.workloads.video.case import VideoCase

FLAG = "--mp4"
FOLDER = "ATTNBENCH_MP4"
MODULE, INSTALL = "imageio_ffmpeg", "pip install imageio-ffmpeg"


def ask(who: str, folder: str, plan: Sequence[PlannedGroup]) -> None:
    """Set the environment variable that makes workers of this process write files.

    Args:
        who: program name, for messages.
        folder: created if it does not exist.
        plan: groups to be measured.

    Raises:
        UsageError: the encoder is not installed, the folder cannot be written to, or a group generates nothing.
    """
    if find_spec(MODULE) is None:
        raise UsageError(refusal(who, FLAG, folder, f"needs module={MODULE}, which is not installed", INSTALL))
    for group in plan:
        checked(who, FLAG, folder, group)
    if len(plan) > 1:
        wrong = f"has one file a row, and there are {len(plan)} cases"
        raise UsageError(refusal(who, FLAG, folder, wrong, "one case"))
    os.environ[FOLDER] = str(writable(who, FLAG, folder))


def place(case: VideoCase, who: str) -> Path | None:
    """Return the path of a row's file, named as in seed 003: ``cogvideox-2b_sdpa.mp4``; None if not requested."""
    folder = os.environ.get(FOLDER)
    return Path(folder) / f"{case.model}_{re.sub(r'[^A-Za-z0-9._-]', '_', who)}.mp4" if folder else None


def write(path: Path, frames: Tensor, *, fps: int) -> None:
    """Encode frames [frames, 3, height, width] from 0 to 1."""
    import imageio_ffmpeg

    pixels = (frames * 255).round().byte().permute(0, 2, 3, 1).contiguous().cpu()
    _, height, width, _ = pixels.shape
    writer = imageio_ffmpeg.write_frames(str(path), (width, height), fps=fps)
    writer.send(None)
    try:
        for frame in pixels:
            writer.send(frame.numpy().tobytes())
    finally:
        writer.close()
