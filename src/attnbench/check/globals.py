"""What a backend may have left changed for all others: the process-wide settings of torch.

All sessions of a group are open at once, so a setting that one leaves behind changes the answers and
the times of the rest.  It is put back and noted, not held against the backend's numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

MIXED = "mixed"
"Read where torch refuses to say because its old and new precision switches disagree."


@dataclass(frozen=True, slots=True)
class _Setting:
    words: str
    get: Callable[[], Any]
    set: Callable[[Any], Any]
    shown: bool = True
    "False for a value too long for a note (the state of a generator)"


@dataclass(frozen=True, slots=True)
class GlobalState:
    """The settings at one moment."""

    values: Mapping[str, Any]

    @classmethod
    def capture(cls) -> GlobalState:
        """Read every setting; starts no CUDA context."""
        return cls({setting.words: _read(setting) for setting in _settings()})

    def restore(self) -> list[str]:
        """Put every setting back.

        Returns:
            Words for each that had been changed, such as ``global left changed: grad mode (True -> False)``.
        """
        notes = []
        for setting in _settings():
            # A device brought up since the capture has settings that cannot have been changed before.
            if setting.words not in self.values:
                continue
            then, now = self.values[setting.words], _read(setting)
            if not _same(then, now):
                values = f" ({then} -> {now})" if setting.shown else ""
                notes.append(f"global left changed: {setting.words}{values}")
        # One after another and each against its value of that moment: setting one moves others.
        for setting in _settings():
            then = self.values.get(setting.words, MIXED)
            if then is not MIXED and not _same(then, _read(setting)):
                setting.set(then)
        return notes


def _same(then: Any, now: Any) -> bool:
    import torch

    return torch.equal(then, now) if isinstance(then, torch.Tensor) else bool(then == now)


def _read(setting: _Setting) -> Any:
    try:
        return setting.get()
    except RuntimeError as error:
        if "mix" not in str(error):
            raise
        return MIXED


def _settings() -> tuple[_Setting, ...]:
    import torch

    return _everywhere() + (_cuda() if torch.cuda.is_initialized() else ())


@cache
def _everywhere() -> tuple[_Setting, ...]:
    import torch

    def autocast(device: str) -> _Setting:
        return _Setting(f"autocast of {device}", lambda: torch.is_autocast_enabled(device),
                        lambda on: torch.set_autocast_enabled(device, on))

    return (
        _Setting("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
        _Setting("default dtype", torch.get_default_dtype, torch.set_default_dtype),
        _Setting("default device", torch.get_default_device, _set_default_device),
        _Setting("number of threads", torch.get_num_threads, torch.set_num_threads),
        _Setting("deterministic algorithms", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        autocast("cpu"),
        autocast("cuda"),
        *_precision(),
        *_kernels(),
        _Setting("state of the CPU random generator (numbers were drawn)", torch.get_rng_state,
                 torch.set_rng_state, shown=False),
    )


def _set_default_device(device: Any) -> None:
    import torch

    # None, not "cpu": an explicit device leaves a mode active that every later call goes through.
    torch.set_default_device(None if device.type == "cpu" else device)


def _precision() -> tuple[_Setting, ...]:
    """Switches of the precision of fp32 products, the widest first: setting one sets the narrower.

    The two of the old interface lead, as torch refuses to read them while the new ones disagree.
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
        _Setting("float32 matmul precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        _attribute("cudnn allow_tf32", backends.cudnn, "allow_tf32"),
        *(_attribute(words, owner, "fp32_precision") for words, owner in owners.items()),
    )


def _attribute(words: str, owner: Any, name: str) -> _Setting:
    return _Setting(words, lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


def _kernels() -> tuple[_Setting, ...]:
    """Switches that choose which kernel runs."""
    import torch

    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    reduced = [f"allow_{name}_reduced_precision_reduction" for name in ("fp16", "bf16")]
    return (
        *(_attribute(f"cuda matmul {name}", cuda.matmul, name) for name in (*reduced, "allow_fp16_accumulation")),
        *(_attribute(f"cudnn {name}", cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
        _Setting("sdp flash", cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
        _Setting("sdp efficient", cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
        _Setting("sdp math", cuda.math_sdp_enabled, cuda.enable_math_sdp),
        _Setting("sdp cudnn", cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
        _Setting("sdp math in reduced precision", cuda.fp16_bf16_reduction_math_sdp_allowed,
                 cuda.allow_fp16_bf16_reduction_math_sdp),
    )


def _cuda() -> tuple[_Setting, ...]:
    import torch

    cuda = torch.cuda
    generators = tuple(
        _Setting(f"state of the random generator of cuda:{index} (numbers were drawn)",
                 lambda index=index: cuda.get_rng_state(index),  # type: ignore[misc]
                 lambda state, index=index: cuda.set_rng_state(state, index),  # type: ignore[misc]
                 shown=False)
        for index in range(cuda.device_count())
    )
    return (
        # The device before the stream: a stream is current on its own device only.
        _Setting("current CUDA device", cuda.current_device, cuda.set_device),
        _Setting("current CUDA stream", cuda.current_stream, cuda.set_stream),
        *generators,
    )
