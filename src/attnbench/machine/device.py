"""A device as a value: what is measured on.  Files, flags and settings have its text form; `parse` reads that."""

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
    "number of a GPU as torch counts; 0 of a CPU"
    name: str | None = field(default=None, compare=False)
    "of the card, such as ``NVIDIA H200``; None of a CPU, and where nobody has asked torch"

    @classmethod
    def parse(cls, text: str) -> Device:
        """The device of ``cpu``, ``cuda`` or ``cuda:N``, whether it is there or not (`devices.resolve` looks).

        Raises:
            UsageError: it is written wrong.
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
        """The same device with the card's name, which torch is asked for; opens the CUDA context."""
        if not self.on_gpu or self.name is not None:
            return self
        import torch

        return replace(self, name=torch.cuda.get_device_name(str(self)))

    def __str__(self) -> str:
        """``cpu`` or ``cuda:N``: what torch, the command line and the run file read."""
        return f"cuda:{self.index}" if self.on_gpu else "cpu"


CPU = Device("cpu")
