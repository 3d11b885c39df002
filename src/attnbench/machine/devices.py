"""Resolve a requested device, and explain why there is no GPU."""

from __future__ import annotations

import os
import warnings

from attnbench.errors import Unavailable, refusal
from attnbench.machine.device import CPU, Device


def resolve(device: str) -> Device:
    """Return the available device named by ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    ``auto`` is the first GPU that torch sees, else the CPU.

    Raises:
        UsageError: the text is malformed.
        Unavailable: torch does not see this GPU; the message says why.
    """
    if device == "cpu":
        return CPU
    wanted = Device.parse("cuda" if device == "auto" else device)
    count = count_gpus()
    if wanted.index < count:
        return wanted
    if device == "auto":
        return CPU
    if count:
        raise Unavailable(refusal("device", "device", device, "is not there", f"cuda:0 to cuda:{count - 1}"))
    raise Unavailable(refusal("device", "device", device, "is not there", why_no_gpu(), "--device cpu"))


def count_gpus() -> int:
    """Return how many GPUs torch sees."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about the faults that `why_no_gpu` reports
        return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def why_no_gpu() -> str:
    """Return why torch sees no GPU, as far as can be determined."""
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.is_available()
    if caught:
        return " ".join(str(caught[-1].message).split())
    from attnbench.machine.nvml import Gpu

    try:
        seen = Gpu.open(Device("cuda")).name()
    except Unavailable as error:
        return str(error)
    return f"the driver knows {seen or 'a card'}, but torch {torch.__version__} does not start CUDA on it"
