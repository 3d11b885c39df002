"""Build transformer, VAE and scheduler of a model with diffusers: random by seed, on the device, or from a folder.

Nothing is downloaded: classes are imported one by one, and files are read only from the given folder.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from attnbench.errors import Unavailable, UsageError, refusal
from attnbench.models.video.config import SPATIAL, WHO, VideoModel
from attnbench.text import shown

INSTALL = "pip install 'attnbench[video]'"
CLASSES = {
    "cogvideox": {
        "transformer": ("diffusers.models.transformers.cogvideox_transformer_3d", "CogVideoXTransformer3DModel"),
        "vae": ("diffusers.models.autoencoders.autoencoder_kl_cogvideox", "AutoencoderKLCogVideoX"),
        "scheduler": ("diffusers.schedulers.scheduling_ddim_cogvideox", "CogVideoXDDIMScheduler"),
    },
    "wan": {
        "transformer": ("diffusers.models.transformers.transformer_wan", "WanTransformer3DModel"),
        "vae": ("diffusers.models.autoencoders.autoencoder_kl_wan", "AutoencoderKLWan"),
        "scheduler": ("diffusers.schedulers.scheduling_unipc_multistep", "UniPCMultistepScheduler"),
    },
}
CONFIGS = {"transformer": "config.json", "vae": "config.json", "scheduler": "scheduler_config.json"}
WEIGHTS = "*.safetensors"


@dataclass(frozen=True, slots=True)
class Parts:
    """A model, ready to run."""

    model: VideoModel
    transformer: Any
    vae: Any
    scheduler: Any
    "copied for each user: a scheduler keeps state"

    def with_own_modules(self, dtype: torch.dtype | None = None) -> Any:
        """Return a transformer whose processors can be exchanged without effect on other users of the model.

        Args:
            dtype: dtype of copied weights; None: the weights are shared.
        """
        shared = [*self.transformer.parameters(), *self.transformer.buffers()]
        same = {id(x): x if dtype is None or not x.is_floating_point() else _like(x, dtype) for x in shared}
        return copy.deepcopy(self.transformer, same)


def _like(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    copied = x.detach().to(dtype)
    return torch.nn.Parameter(copied, requires_grad=False) if isinstance(x, torch.nn.Parameter) else copied


def random_parts(
    model: VideoModel, shape: tuple[int, int, int], *, seed: int, dtype: torch.dtype, device: str | torch.device
) -> Parts:
    """Return a full-size model with weights drawn by seed on the device, in their final precision.

    Args:
        model: sizes of the model.
        shape: frames, height and width of the videos, for the position tables.
        seed: seed of the weights.
        dtype: dtype of all weights.
        device: device of the weights.

    Raises:
        Unavailable: diffusers is not installed.
    """
    classes = {name: _class(model.family, name) for name in CLASSES[model.family]}
    kept = tuple(classes["transformer"]._keep_in_fp32_modules or ())
    with _made_on(torch.device(device), torch.float32 if kept else dtype, seed):
        transformer = classes["transformer"](**_arguments(model, shape)).eval().requires_grad_(False)
    _cast(transformer, dtype, kept)
    with _made_on(torch.device(device), dtype, seed):
        vae = classes["vae"](**model.vae).eval().requires_grad_(False)
    vae.enable_tiling()
    vae.enable_slicing()
    return Parts(model, transformer, vae, classes["scheduler"](**model.scheduler))


def _cast(transformer: Any, dtype: torch.dtype, kept: tuple[str, ...]) -> None:
    """Convert all modules except those kept in fp32, as `from_pretrained` of diffusers does."""
    for module_name, module in transformer.named_modules():
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if tensor.is_floating_point() and not {*module_name.split("."), name} & set(kept):
                tensor.data = tensor.data.to(dtype)


def local_parts(
    model: VideoModel, shape: tuple[int, int, int], folder: Path, *, dtype: torch.dtype, device: str | torch.device
) -> Parts:
    """Return a model with the weights of a local folder written by diffusers: transformer, vae, scheduler.

    Raises:
        UsageError: a part of the folder is missing, or it holds another model.
        Unavailable: diffusers is not installed.
    """
    check_folder(model, folder)
    found = {}
    for name in CLASSES[model.family]:
        extra: dict[str, Any] = (
            {}
            if name == "scheduler"
            else {
                "torch_dtype": dtype,
                "low_cpu_mem_usage": False,
                "use_safetensors": True,
                "output_loading_info": True,
                "ignore_mismatched_sizes": True,
            }
        )
        if name == "transformer" and model.joint:
            _, height, width = shape
            extra |= {"sample_frames": shape[0], "sample_height": height // SPATIAL, "sample_width": width // SPATIAL}
        try:
            found[name] = _class(model.family, name).from_pretrained(folder / name, local_files_only=True, **extra)
        except (OSError, ValueError, RuntimeError, TypeError, KeyError, NotImplementedError, SafetensorError) as error:
            raise UsageError(
                refusal(
                    WHO,
                    "weights",
                    f"{folder.name}/{name}",
                    f"cannot be read ({shown(' '.join(str(error).split())[:200])})",
                    "a folder that diffusers wrote",
                )
            ) from None
        if name != "scheduler":
            found[name], told = found[name]
            _check_loaded(f"{folder.name}/{name}", told)
    transformer, vae = (found[name].to(device).eval().requires_grad_(False) for name in ("transformer", "vae"))
    vae.enable_tiling()
    vae.enable_slicing()
    return Parts(model, transformer, vae, found["scheduler"])


def _check_loaded(place: str, told: dict[str, Any]) -> None:
    """Refuse weights that do not cover the model: diffusers initializes missing ones and only warns."""
    for key, given, wanted in told["mismatched_keys"]:
        raise UsageError(
            refusal(WHO, "weights", f"{place} {key}={list(given)}", "does not fit the model", f"{list(wanted)}")
        )
    if missing := sorted(told["missing_keys"]):
        raise UsageError(
            refusal(
                WHO,
                "weights",
                place,
                f"lacks {len(missing)} tensors of the model, {missing[0]} among them",
                "a complete folder",
            )
        )


def check_folder(model: VideoModel, folder: Path) -> None:
    """Refuse a folder with missing parts or of another model, before loading anything.

    Raises:
        UsageError: naming the file.
    """
    for name, config in CONFIGS.items():
        path = folder / name / config
        try:
            found = json.loads(path.read_text("utf-8"))
        except OSError:
            raise UsageError(
                refusal(
                    WHO,
                    "weights",
                    folder.name,
                    f"has no {name}/{config}",
                    "a diffusers folder with transformer, vae and scheduler",
                )
            ) from None
        except ValueError:
            raise UsageError(
                refusal(WHO, "weights", f"{name}/{config}", "is not JSON", "a file that diffusers wrote")
            ) from None
        if name != "scheduler" and not any((folder / name).glob(WEIGHTS)):
            raise UsageError(refusal(WHO, "weights", folder.name, f"has no {name}/{WEIGHTS}", "weights in safetensors"))
        if name == "transformer":
            _check_config(model, found if isinstance(found, dict) else {})


def _check_config(model: VideoModel, found: dict[str, Any]) -> None:
    wanted = {
        "num_layers": model.layers,
        "num_attention_heads": model.heads,
        "attention_head_dim": model.dim,
        "_class_name": CLASSES[model.family]["transformer"][1],
    }
    for key, value in wanted.items():
        if found.get(key, value) != value:
            raise UsageError(
                refusal(
                    WHO,
                    "weights",
                    f"transformer {key}={shown(found[key])}",
                    f"is not that of model={model.name}",
                    str(value),
                )
            )


def _arguments(model: VideoModel, shape: tuple[int, int, int]) -> dict[str, Any]:
    """Return the arguments of the transformer's class."""
    common: dict[str, Any] = {
        "num_attention_heads": model.heads,
        "attention_head_dim": model.dim,
        "num_layers": model.layers,
        "in_channels": model.channels,
        "out_channels": model.channels,
    }
    if not model.joint:
        return common | {"ffn_dim": model.feed_forward, "text_dim": model.text_dim} | dict(model.transformer)
    frames, height, width = shape
    return (
        common
        | {
            "time_embed_dim": model.time_dim,
            "text_embed_dim": model.text_dim,
            "max_text_seq_length": model.text_tokens,
            "sample_frames": frames,
            "sample_height": height // SPATIAL,
            "sample_width": width // SPATIAL,
        }
        | dict(model.transformer)
    )


def _class(family: str, part: str) -> Any:
    # diffusers contacts the hub in some code paths; it must not here.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    module, name = CLASSES[family][part]
    try:
        return getattr(__import__(module, fromlist=[name]), name)
    except ImportError as error:
        raise Unavailable(f"video: diffusers cannot be imported ({error}); {INSTALL}") from None


@contextmanager
def _made_on(device: torch.device, dtype: torch.dtype, seed: int) -> Iterator[None]:
    """Create the modules of the block on a device in a precision, drawn by seed; all settings are restored."""
    before = torch.get_default_dtype()
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.no_grad(), device:
        torch.manual_seed(seed)
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)
