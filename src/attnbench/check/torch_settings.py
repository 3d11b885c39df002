"""The process-wide settings of torch that change answers or times."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from attnbench.check.setting import Setting


def torch_settings() -> tuple[Setting, ...]:
    """Return every setting that exists now."""
    import torch

    return _everywhere() + (_cuda() if torch.cuda.is_initialized() else ())


@cache
def _everywhere() -> tuple[Setting, ...]:
    import torch

    def autocast(device: str) -> Setting:
        return Setting(
            f"autocast of {device}",
            lambda: torch.is_autocast_enabled(device),
            lambda on: torch.set_autocast_enabled(device, on),
        )

    return (
        Setting("inference mode", torch.is_inference_mode_enabled, _set_inference_mode),
        Setting("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
        Setting("forward-mode gradients", torch._C._is_fwd_grad_enabled, torch._C._set_fwd_grad_enabled),
        Setting("threads of the backward", torch._C._is_multithreading_enabled, torch._C._set_multithreading_enabled),
        Setting(
            "anomaly detection",
            lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            lambda value: torch.set_anomaly_enabled(*value),
        ),
        Setting("open profiler", lambda: _Open(("torch",) if torch.autograd._profiler_enabled() else ()), _cannot),
        Setting("default dtype", torch.get_default_dtype, torch.set_default_dtype),
        Setting("device of the default tensor type", torch._C._get_default_device, _set_default_tensor_type),
        Setting("default device", torch.get_default_device, _set_default_device),
        Setting("number of threads", torch.get_num_threads, torch.set_num_threads),
        Setting("number of threads between operators", torch.get_num_interop_threads, torch.set_num_interop_threads),
        Setting("flushing of denormal numbers", _flushes_denormals, torch.set_flush_denormal),
        Setting("deterministic algorithms", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        autocast("cpu"),
        autocast("cuda"),
        *(
            Setting(
                f"autocast dtype of {device}",
                lambda device=device: torch.get_autocast_dtype(device),  # type: ignore[misc]  # mypy infers no lambda with a default
                lambda dtype, device=device: torch.set_autocast_dtype(device, dtype),  # type: ignore[misc]  # mypy infers no lambda with a default
            )
            for device in ("cpu", "cuda")
        ),
        Setting("autocast cache", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
        *_precision(),
        *_kernels(),
        Setting(
            "state of the CPU random generator (numbers were drawn)",
            torch.get_rng_state,
            torch.set_rng_state,
            shown=False,
        ),
        Setting("active modes of torch functions", _function_modes, _cannot),
        Setting("active modes of torch dispatch", _dispatch_modes, _cannot),
    )


_guards: list[Any] = []
"""Guards of inference mode, kept alive: deleting one would undo it."""


def _set_inference_mode(on: bool) -> None:
    import torch

    guard = torch._C._InferenceMode(on)
    guard.__enter__()
    _guards.append(guard)


def _set_default_tensor_type(device: str) -> None:
    import torch

    kind = {torch.float64: "Double", torch.float16: "Half", torch.bfloat16: "BFloat16"}.get(
        torch.get_default_dtype(), "Float"
    )
    torch.set_default_tensor_type(f"torch.{'' if device == 'cpu' else f'{device}.'}{kind}Tensor")


def _flushes_denormals() -> bool:
    return sys.float_info.min * 0.5 == 0.0


class _Open(tuple[str, ...]):
    """Names of open contexts, outermost first; a context that has been closed since is not a change."""

    __slots__ = ()

    def __eq__(self, now: object) -> bool:
        return isinstance(now, tuple) and tuple(self)[: len(now)] == tuple(now)

    __hash__ = tuple.__hash__


def _function_modes() -> _Open:
    """Names of active modes; not restored, because removing a mode while its context is open makes its exit fail."""
    import torch

    inside = torch._C
    names = (type(inside._get_function_stack_at(index)).__name__ for index in range(inside._len_torch_function_stack()))
    return _Open(name for name in names if name != "DeviceContext")  # that is the default device


def _dispatch_modes() -> _Open:
    import torch

    inside = torch._C
    return _Open(
        type(inside._get_dispatch_stack_at(index)).__name__ for index in range(inside._len_torch_dispatch_stack())
    )


def _cannot(value: Any) -> None:
    raise RuntimeError("it is open")


def _set_default_device(device: Any) -> None:
    import torch

    # None, not "cpu": an explicit device leaves a mode active that every later call goes through.
    torch.set_default_device(None if device.type == "cpu" else device)


def _precision() -> tuple[Setting, ...]:
    """Precision switches of fp32 products, the widest first: setting one sets the narrower ones.

    The two switches of the old interface come first, because torch refuses to read them while the new ones disagree.
    """
    import torch

    backends = torch.backends
    owners = {
        "fp32 precision": backends,
        "cudnn fp32 precision": backends.cudnn,
        "mkldnn fp32 precision": backends.mkldnn,
        "cuda matmul fp32 precision (tf32)": backends.cuda.matmul,
        "mkldnn matmul fp32 precision": backends.mkldnn.matmul,
        "cudnn convolution fp32 precision (tf32)": backends.cudnn.conv,
        "cudnn rnn fp32 precision (tf32)": backends.cudnn.rnn,
    }
    return (
        Setting("float32 matmul precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        _attribute("cudnn allow_tf32", backends.cudnn, "allow_tf32"),
        *(_attribute(words, owner, "fp32_precision") for words, owner in owners.items()),
    )


def _attribute(words: str, owner: Any, name: str) -> Setting:
    return Setting(words, lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


def _kernels() -> tuple[Setting, ...]:
    """Return the switches that choose which kernel runs."""
    import torch

    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    reduced = [f"allow_{name}_reduced_precision_reduction" for name in ("fp16", "bf16")]
    return (
        *(_attribute(f"cuda matmul {name}", cuda.matmul, name) for name in (*reduced, "allow_fp16_accumulation")),
        _attribute("mkldnn enabled", torch.backends.mkldnn, "enabled"),
        *(_attribute(f"cudnn {name}", cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
        Setting("sdp flash", cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
        Setting("sdp efficient", cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
        Setting("sdp math", cuda.math_sdp_enabled, cuda.enable_math_sdp),
        Setting("sdp cudnn", cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
        Setting(
            "sdp math in reduced precision",
            cuda.fp16_bf16_reduction_math_sdp_allowed,
            cuda.allow_fp16_bf16_reduction_math_sdp,
        ),
    )


def _cuda() -> tuple[Setting, ...]:
    import torch

    cuda = torch.cuda
    generators = tuple(
        Setting(
            f"state of the random generator of cuda:{index} (numbers were drawn)",
            lambda index=index: cuda.get_rng_state(index),  # type: ignore[misc]  # mypy infers no lambda with a default
            lambda state, index=index: cuda.set_rng_state(state, index),  # type: ignore[misc]  # mypy infers no lambda with a default
            shown=False,
        )
        for index in range(cuda.device_count())
    )
    return (
        # The device before the stream: a stream is only current on its own device.
        Setting("current CUDA device", cuda.current_device, cuda.set_device),
        Setting("current CUDA stream", cuda.current_stream, cuda.set_stream),
        *generators,
    )
