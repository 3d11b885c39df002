"""Measure what this machine reaches in copying memory and multiplying matrices.

No kernel reaches the data sheet's figures, so they are shown beside the rates of a plain copy and a plain matmul on
this machine, on random data (zeros draw less power and run faster).  The best of several launches counts: a ceiling is
a maximum.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

from attnbench.dtypes import DTYPES, torch_dtype
from attnbench.machine.cache import l2_bytes
from attnbench.machine.device import Device

COPY_LAUNCHES = 12
CPU_COPY_BYTES = 64 * 2**20
GPU_COPY_BYTES = 2**30
MATMUL_LAUNCHES = 6
CPU_SECONDS = 0.2
"""Time limit of each figure on a CPU, where one launch may be slow (half precision without hardware support)."""


def ceilings(device: Device, dtype: str) -> dict[str, float | None]:
    """Return the measured ceilings for `Record.ceilings`.

    Args:
        device: device under test.
        dtype: dtype of the case; if torch.matmul does not support it, the figure of the matmul is None.
    """
    return {"copy_gbps": copy_gbps(device), "matmul_tflops": matmul_tflops(device, dtype)}


@cache
def copy_gbps(device: Device) -> float | None:
    """Return the GB/s read and written by a plain copy of a buffer far larger than the caches; once per process.

    Returns:
        The rate; None if two buffers cannot be allocated.
    """
    import torch

    count = _copy_bytes(device) // 4
    try:
        source = torch.randn(count, device=str(device), generator=_generator(device))
        target = torch.empty_like(source)
        seconds = _best(lambda: target.copy_(source), device, COPY_LAUNCHES)
    except torch.OutOfMemoryError:
        return None
    finally:
        source = target = torch.empty(0)
        _free(device)
    return 2 * count * 4 / seconds / 1e9


@cache
def matmul_tflops(device: Device, dtype: str) -> float | None:
    """Return the TFLOP/s of torch's matmul on square matrices; once per process and dtype.

    fp32 is measured without TF32, whatever the process's settings.

    Returns:
        The rate; None for a dtype that torch.matmul does not support, or if the matrices cannot be allocated.
    """
    import torch

    if dtype not in DTYPES or DTYPES[dtype].results != dtype:  # 8-bit types need scales and special kernels
        return None
    size = (8192 if dtype != "fp32" else 4096) if device.on_gpu else 256
    shape = (size, size)
    precision = torch.get_float32_matmul_precision()
    # torch.set_float32_matmul_precision sets these too; unrestored, they would no longer follow a wider switch.
    narrower = {one: one.fp32_precision for one in (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)}
    torch.set_float32_matmul_precision("highest")
    try:
        generator = _generator(device)
        a, b = (
            torch.randn(shape, device=str(device), dtype=torch.float32, generator=generator).to(torch_dtype(dtype))
            for _ in range(2)
        )
        out = torch.empty_like(a)
        seconds = _best(lambda: torch.matmul(a, b, out=out), device, MATMUL_LAUNCHES)
    except torch.OutOfMemoryError:
        return None
    finally:
        torch.set_float32_matmul_precision(precision)
        for one, value in narrower.items():
            one.fp32_precision = value
        a = b = out = torch.empty(0)
        _free(device)
    return 2 * size**3 / seconds / 1e12


def _copy_bytes(device: Device) -> int:
    """Return at least eight times the cache, at most an eighth of the free memory, a multiple of 4."""
    if not device.on_gpu:
        return max(CPU_COPY_BYTES, min(2 * (l2_bytes(device) or 0), 4 * CPU_COPY_BYTES))
    import torch

    free, _ = torch.cuda.mem_get_info(str(device))
    wanted = max(GPU_COPY_BYTES, 8 * (l2_bytes(device) or 0))
    return max(4, min(wanted, free // 8) // 4 * 4)


def _best(call: Callable[[], object], device: Device, launches: int) -> float:
    return _best_cuda(call, device, launches) if device.on_gpu else _best_cpu(call, launches)


def _best_cuda(call: Callable[[], object], device: Device, launches: int) -> float:
    import torch

    with torch.cuda.device(str(device)):
        for _ in range(3):
            call()
        marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(launches)]
        for start, end in marks:
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return min(start.elapsed_time(end) for start, end in marks) / 1e3


def _best_cpu(call: Callable[[], object], launches: int) -> float:
    best, deadline = float("inf"), time.perf_counter() + CPU_SECONDS
    call()
    for _ in range(launches):
        began = time.perf_counter()
        call()
        now = time.perf_counter()
        best = min(best, now - began)
        if now > deadline:
            break
    return best


def _generator(device: Device) -> object:
    """Return a seeded generator, which leaves the process's own random state unchanged."""
    import torch

    return torch.Generator(device=str(device)).manual_seed(0)


def _free(device: Device) -> None:
    """Free the cached blocks, so that they do not raise a memory peak measured later."""
    if device.on_gpu:
        import torch

        torch.cuda.empty_cache()
