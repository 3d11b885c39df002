"""Arguments of the kernels in 8 bits that travel together, by name."""

from __future__ import annotations

from typing import Any, NamedTuple


class QuantisedOperands(NamedTuple):
    """Pointers to `prepare.Quantised` that kernels write once, and others read."""

    q: Any
    k: Any
    v: Any
    q_scale: Any
    q_shift: Any
    k_scale: Any
    v_scale: Any
