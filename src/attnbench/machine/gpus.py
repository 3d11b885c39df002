"""Which GPUs of this machine a request means."""

from __future__ import annotations

import re

from attnbench.errors import UsageError, refusal
from attnbench.machine.device import Device
from attnbench.machine.devices import resolve

ALL = "all"
ACCEPTED = "all, or numbers of GPUs as torch counts them, such as 0,2"


def chosen_gpus(who: str, text: str) -> tuple[Device, ...]:
    """The GPUs that ``all`` or ``0,2`` means, each there.

    Args:
        who: for the message.
        text: value of ``--gpus``.

    Raises:
        UsageError: it is written wrong, or names a GPU twice.
        Unavailable: torch does not see one of them; the message says why.
    """
    if text == ALL:
        return tuple(Device("cuda", index) for index in range(_count()))
    words = [word.strip() for word in text.split(",")]
    for place, word in enumerate(words):
        if not re.fullmatch(r"[0-9]{1,3}", word):
            raise UsageError(refusal(who, "--gpus", text, f"names no GPU by {word or 'nothing'}", ACCEPTED))
        if int(word) in map(int, words[:place]):
            raise UsageError(refusal(who, "--gpus", text, f"names GPU {int(word)} twice", "each once"))
    return tuple(resolve(f"cuda:{int(word)}") for word in words)


def _count() -> int:
    resolve("cuda")  # says why there is none
    import torch

    return int(torch.cuda.device_count())
