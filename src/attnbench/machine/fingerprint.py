"""Describe the machine for the run file, without host name, user or path."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Any

from attnbench.machine.cache import l2_bytes
from attnbench.machine.device import Device
from attnbench.machine.nvml import open_gpu
from attnbench.record import Environment

GIB = 2**30
CPUINFO = Path("/proc/cpuinfo")

PACKAGES = (
    "torch",
    "triton",
    "pytorch-triton",
    "numpy",
    "flash-attn",
    "flash-attn-3",
    "flash_attn_3",
    "fa3-fwd",
    "flash-attn-4",
    "nvidia-cutlass-dsl",
    "quack-kernels",
    "apache-tvm-ffi",
    "flashinfer-python",
    "flashinfer-cubin",
    "flashinfer-jit-cache",
    "sageattention",
    "sageattn3",
    "spas-sage-attn",
    "block-sparse-attn",
    "xformers",
    "attn-gym",
    "fla-core",
    "flash-linear-attention",
    "natten",
    "fbgemm-gpu",
    "fbgemm-gpu-hstu",
    "fbgemm-gpu-hstu-nightly",
    "hstu-attn",
    "generative-recommenders",
    "transformer-engine",
    "nvidia-cudnn-frontend",
    "tilelang",
    "diffusers",
    "cupti-python",
    "nvidia-ml-py",
)
"""Distributions whose version can change a result: torch's own, every attention library, the timers."""


def environment(device: Device) -> Environment:
    """Describe this machine for the run file.

    Args:
        device: device under test; the GPU's fields are None on a CPU.
    """
    import torch

    gpu = _gpu_fields(device) if device.on_gpu else {}
    installed = packages()
    return Environment(
        os=_os(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        triton=installed.get("triton") or installed.get("pytorch-triton"),
        cuda=torch.version.cuda,
        cudnn=_cudnn(torch.backends.cudnn.version()),
        cpu=cpu_name(),
        cores=usable_cores(),
        ram_gb=_ram_gb(),
        packages=installed,
        **gpu,
    )


def packages() -> dict[str, str]:
    """Return the versions of the installed `PACKAGES` from metadata, without imports."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def cpu_name() -> str | None:
    """Return the CPU's model from /proc/cpuinfo, else from Python's `platform`."""
    try:
        text = CPUINFO.read_text(errors="replace")
    except OSError:
        text = ""
    for key in ("model name", "Model", "cpu model", "cpu", "Hardware"):  # x86, ARM boards, MIPS, POWER, old ARM
        match = re.search(rf"^{key}\s*:\s*(\S.*)$", text, re.MULTILINE)
        if match and not match[1].strip().isdecimal():
            return " ".join(match[1].split())
    return platform.processor() or platform.machine() or None


def usable_cores() -> int | None:
    """Return the number of cores this process may use; a container can restrict it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _gpu_fields(device: Device) -> dict[str, Any]:
    import torch

    props = torch.cuda.get_device_properties(str(device))
    l2 = l2_bytes(device)
    card = open_gpu(device)
    uuid = getattr(props, "uuid", None)
    return {
        "gpu": props.name,
        "gpu_mem_gb": round(props.total_memory / GIB, 1),
        "gpu_uuid": card.uuid() if card else (f"GPU-{uuid}" if uuid else None),
        "sm_count": props.multi_processor_count,
        "l2_mb": None if l2 is None else l2 / 2**20,
        "driver": card.driver() if card else None,
        "sm_max_mhz": card.sm_max_mhz() if card else None,
        "power_limit_w": card.power_limit_w() if card else None,
    }


def _os() -> str:
    """Return distribution, kernel and architecture; only the kernel's number, as builders append names to it."""
    kernel = re.match(r"[\d.]*\d", platform.release())
    parts = [f"{platform.system()} {kernel[0] if kernel else ''}".strip(), platform.machine()]
    try:
        parts.insert(0, platform.freedesktop_os_release()["PRETTY_NAME"])
    except (OSError, KeyError):
        pass
    return ", ".join(parts)


def _cudnn(version: int | None) -> str | None:
    """Return 91900 as 9.19.0; before version 9 the encoding was 8907 for 8.9.7."""
    if not version:
        return None
    step = 10_000 if version >= 90_000 else 1_000
    return f"{version // step}.{version % step // 100}.{version % 100}"


def _ram_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB, 1)
    except (ValueError, OSError):
        return None
