"""Resolve the GPUs of a request."""

from __future__ import annotations

import re

from attnbench.errors import Unavailable, UsageError, names_nothing, refusal
from attnbench.machine.device import Device
from attnbench.machine.devices import count_gpus, why_no_gpu

ALL = "all"
ACCEPTED = "all, or numbers of GPUs as torch counts them, such as 0,2"


def chosen_gpus(who: str, text: str, field: str = "--gpus", *, without: str = "--device cpu") -> tuple[Device, ...]:
    """Return the GPUs named by ``all`` or a list such as ``0,2``.

    Args:
        who: subject of error messages.
        text: value of ``--gpus``.
        field: name of the flag or field.
        without: what to use if there is no GPU.

    Raises:
        UsageError: the text is malformed or names a GPU twice.
        Unavailable: torch does not see one of them; the message says why.
    """
    words = [word.strip() for word in text.split(",")] if text != ALL else []
    if words and not any(words):
        raise names_nothing(who, field, text, ACCEPTED)
    for place, word in enumerate(words):
        if not re.fullmatch(r"[0-9]{1,3}", word):
            raise UsageError(refusal(who, field, text, f"names no GPU by {word or 'nothing'}", ACCEPTED))
        if int(word) in map(int, words[:place]):
            raise UsageError(refusal(who, field, text, f"names GPU {int(word)} twice", "each once"))
    there = count_gpus()
    if not there:
        raise Unavailable(refusal(who, field, text, "is for GPUs, and there is none", why_no_gpu(), without))
    if missing := [word for word in words if int(word) >= there]:
        wrong, accepted = f"names GPU {int(missing[0])}, which is not there", f"0 to {there - 1}, as torch counts them"
        every, these = ",".join(map(str, range(there))), "the only GPU" if there == 1 else f"{there} GPUs"
        meant = [f"did you mean {every}, which is {these}?"] if len(words) == 1 and int(text) == there else []
        raise Unavailable(refusal(who, field, text, wrong, accepted, *meant))
    return tuple(Device("cuda", int(word)) for word in words or range(there))
