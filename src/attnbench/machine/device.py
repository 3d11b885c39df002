"""A device as a value.  Files, flags and settings hold its text form, which `parse` reads."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal

from attnbench.errors import UsageError, refusal

Kind = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class Device:
    """A CPU, or one of the GPUs that torch sees."""

    kind: Kind
    index: int = 0
    "number of a GPU in torch's order; 0 for a CPU"
    name: str | None = field(default=None, compare=False)
    "of the GPU, such as ``NVIDIA H200``; None for a CPU, or until `named` asks torch"

    @classmethod
    def parse(cls, text: str) -> Device:
        """Return the device of ``cpu``, ``cuda`` or ``cuda:N``, present or not (`devices.resolve` checks that).

        Raises:
            UsageError: the text is malformed.
        """
        match = re.fullmatch(r"(cpu)|cuda(?::([0-9]{1,4}))?", text)
        if match is None:
            raise UsageError(refusal("device", "device", text, "is not known", "auto, cpu, cuda or cuda:N"))
        return cls("cpu") if match[1] else cls("cuda", int(match[2] or 0))

    @property
    def on_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.kind == "cuda"

    def named(self) -> Device:
        """Return the same device with the GPU's name from torch; creates the CUDA context."""
        if not self.on_gpu or self.name is not None:
            return self
        import torch

        return replace(self, name=torch.cuda.get_device_name(str(self)))

    def __str__(self) -> str:
        """``cpu`` or ``cuda:N``, as torch, the command line and the run file read it."""
        return f"cuda:{self.index}" if self.on_gpu else "cpu"


CPU = Device("cpu")
