"""Which device a request means, and why there is no GPU where there is none."""

from __future__ import annotations

import os
import re
import warnings

from attnbench.errors import Unavailable, UsageError, refusal


def resolve(device: str) -> str:
    """Turn ``auto``, ``cpu``, ``cuda`` or ``cuda:N`` into ``cpu`` or ``cuda:N``.

    ``auto`` is the first GPU that torch sees, else the CPU.

    Raises:
        UsageError: it is written wrong.
        Unavailable: torch does not see this GPU; the message says why.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise UsageError(refusal("device", "device", device, "is not known", "auto, cpu, cuda or cuda:N"))
    if device == "cpu":
        return device
    import torch

    number = int(device.partition(":")[2] or 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about what `why_no_gpu` says
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if number < count:
        return f"cuda:{number}"
    if device == "auto":
        return "cpu"
    if count:
        raise Unavailable(refusal("device", "device", device, "is not there", f"cuda:0 to cuda:{count - 1}"))
    raise Unavailable(refusal("device", "device", device, "is not there", why_no_gpu(), "--device cpu"))


def why_no_gpu() -> str:
    """Say why torch sees no GPU, as far as it can be told from here."""
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
        seen = Gpu.open("cuda:0").name()
    except Unavailable as error:
        return str(error)
    return f"the driver knows {seen or 'a card'}, but torch {torch.__version__} does not start CUDA on it"
