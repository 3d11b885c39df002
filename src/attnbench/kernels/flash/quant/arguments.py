"""Arguments of the 8-bit kernels, in groups."""

from __future__ import annotations

from typing import Any, NamedTuple


class QuantisedOperands(NamedTuple):
    """Pointers to the tensors of `prepare.Quantised` that the preparation writes and the attention reads."""

    q: Any
    k: Any
    v: Any
    q_scale: Any
    q_shift: Any
    k_scale: Any
    v_scale: Any
