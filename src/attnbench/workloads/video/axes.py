"""Spelling of the fields of a `VideoCase` on the command line and in suite files.

Most defaults depend on the model, so these axes have no default of their own.  Imports without torch.
"""

from __future__ import annotations

import math

from attnbench.models.video.config import MODELS
from attnbench.workloads.attention.axes import parse_size
from attnbench.workloads.attention.case import ACCEPTED_DTYPES
from attnbench.workloads.base import Axis, one_of, precision
from attnbench.workloads.given_files import known_as
from attnbench.workloads.hstu.axes import parse_count
from attnbench.workloads.sparse.axes import parse_density, parse_pattern
from attnbench.workloads.sparse.case import ACCEPTED_DENSITY, ACCEPTED_PATTERN, BLOCKS
from attnbench.workloads.video.case import COMPILE


def parse_guidance(text: str) -> float:
    """Parse a finite number from 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError("a finite number from 0; over 1 each step is computed without and with the prompt")
    return value


def parse_folder(text: str) -> str | None:
    """Parse the path of a folder, or none; the case contains its name and hash."""
    return None if text == "none" else known_as(text, kind="folder")


def parse_file(text: str) -> str | None:
    """Parse the path of a file, or none; the case contains its name and hash."""
    return None if text == "none" else known_as(text)


AXES = (
    Axis("model", one_of(*MODELS), f"sizes of the model: {', '.join(MODELS)}; default: cogvideox-2b", None),
    Axis("frames", parse_size, "of the video, 4k + 1; default: the model's", None),
    Axis("height", parse_size, "pixels, a multiple of 16; default: the model's", None),
    Axis("width", parse_size, "pixels, a multiple of 16; default: the model's", None),
    Axis("steps", parse_size, "denoising steps of a whole generation; default: the model's, 50", None),
    Axis(
        "guidance",
        parse_guidance,
        "weight of the prompt; at most 1: one prediction per step; default: the model's",
        None,
    ),
    Axis("dtype", precision(*ACCEPTED_DTYPES), f"precision: {', '.join(ACCEPTED_DTYPES)}", "fp16"),
    Axis("compile", one_of(*COMPILE), f"of the transformer: {', '.join(COMPILE)}", "none"),
    Axis("generations", parse_count, "whole generations measured after the samples", 1),
    Axis("warm_ups", parse_count, "warm-up generations of ten steps before those", 2),
    Axis("pattern", parse_pattern, f"of the block map of sparse rows: {ACCEPTED_PATTERN}", "random"),
    Axis(
        "density", parse_density, f"share of a row's blocks that the map keeps, {ACCEPTED_DENSITY}; default: 0.3", None
    ),
    Axis("block", one_of(*BLOCKS), f"queries x keys of a block: {', '.join(BLOCKS)}", BLOCKS[0]),
    Axis("dense_steps", parse_count, "first steps of a generation that sparse rows compute densely", 0),
    Axis(
        "weights",
        parse_folder,
        "a local folder of diffusers with transformer, vae and scheduler; default: random weights",
        None,
    ),
    Axis(
        "prompt",
        parse_file,
        "a safetensors file with prompt_embeds and negative_prompt_embeds; default: random ones",
        None,
    ),
    Axis(
        "lpips",
        parse_file,
        "with --weights: a safetensors file with the network of LPIPS; default: not compared by it",
        None,
    ),
)
