"""Backends for the simulated card (a --backends file); simulated_timers.py has their times."""

from __future__ import annotations

import time

from misbehaving import Misbehaving


class OnCard(Misbehaving):
    devices = ("cuda",)


class Reference(OnCard):
    name = "reference"


class TwiceAsFast(OnCard):
    name = "twice-as-fast"

    def launch(self, case, inputs):
        launch = super().launch(case, inputs)
        launch.executed_flops = 12345
        return launch


class Same(OnCard):
    name = "same"


class Slower(OnCard):
    name = "slower"


class LongOnHost(OnCard):
    """Takes far longer on the machine that computes it than the table says."""

    name = "long-on-host"

    def attend(self, *args):
        time.sleep(0.01)
        return super().attend(*args)


class Long(OnCard):
    name = "long"


class Longer(OnCard):
    name = "longer"


class TooLargeForIt(OnCard):
    name = "too-large-for-it"

    def attend(self, *args):
        import torch

        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 200.00 GiB")
