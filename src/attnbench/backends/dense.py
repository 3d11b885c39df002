"""Base class of every adapter for dense softmax attention: a library's limits as data.

An adapter states what its library supports; `Limits.check` refuses everything else, one field at a time,
with the limit in the message.  Nothing is ever converted silently to something slower.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from attnbench.backends.base import Backend, Check, Machine, card_checks, require
from attnbench.backends.mask import Mask
from attnbench.workloads.attention.case import ACCEPTED_DTYPES, AttentionCase

if TYPE_CHECKING:
    from attnbench.workloads.attention.inputs import AttentionInputs  # noqa: F401 (named in the base class below)

ALL_DTYPES = ACCEPTED_DTYPES
HALF_DTYPES = ("fp16", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a library; the defaults refuse whatever an adapter does not name."""

    dtypes: tuple[str, ...] = HALF_DTYPES
    headdims: tuple[int, ...] = ()
    "the only head dimensions supported; (): as given by the next two fields"
    max_headdim: int | None = None
    headdim_multiple: int = 1
    headdim_v: bool = False
    "V may have another head dimension"
    gqa: bool = False
    window: bool = False
    bottom_right: bool = False
    "supports bottom-right alignment for causal with Sq ≠ Sk"
    empty_rows: bool = False
    "rows without a visible key give 0"
    varlen: bool = False
    backward: bool = False
    capability: tuple[int, int] | None = None
    "lowest compute capability"
    capability_below: tuple[int, int] | None = None
    "first compute capability that is not supported"

    def check(self, who: str, case: AttentionCase, machine: Machine) -> None:
        """Refuse a case beyond the limits.

        Args:
            who: the backend's name.
            case: an attention case.
            machine: where it would run.

        Raises:
            Unsupported: naming the first field beyond its limit.
        """
        card = card_checks(machine, self.capability, self.capability_below)
        require(who, *self._numbers(case), *self._masks(case), *card)

    def _numbers(self, case: AttentionCase) -> list[Check]:
        rows: list[Check] = [
            (case.dtype in self.dtypes, "dtype", case.dtype, "is not supported", f"one of {', '.join(self.dtypes)}"),
            (self.backward or case.mode == "fwd", "mode", case.mode, "has no backward", "fwd"),
            (self.varlen or not case.packed, "lengths", case.lengths, "is not supported", "full"),
            (
                self.headdim_v or case.headdim == case.headdim_v,
                "headdim_v",
                case.headdim_v,
                "differs from headdim",
                f"the headdim, {case.headdim}",
            ),
            (
                self.gqa or case.nheads == case.nheads_kv,
                "nheads_kv",
                case.nheads_kv,
                "differs from nheads",
                f"the nheads, {case.nheads}",
            ),
        ]
        for field, dim in (("headdim", case.headdim), ("headdim_v", case.headdim_v)):
            if self.headdims:
                rows.append(
                    (
                        dim in self.headdims,
                        field,
                        dim,
                        "is not supported",
                        f"one of {', '.join(map(str, self.headdims))}",
                    )
                )
            if self.max_headdim is not None:
                rows.append((dim <= self.max_headdim, field, dim, "is too large", f"at most {self.max_headdim}"))
            rows.append(
                (dim % self.headdim_multiple == 0, field, dim, "does not fit", f"a multiple of {self.headdim_multiple}")
            )
        return rows

    def _masks(self, case: AttentionCase) -> list[Check]:
        mask = Mask.of(case)
        aligned = self.bottom_right or not mask.causal or mask.square
        return [
            (self.window or not mask.window, "window", case.window, "is not supported", "none"),
            (
                aligned,
                "causal",
                f"{case.causal} with seqlen={case.seqlen}, seqlen_k={case.seqlen_k}",
                "would be aligned to the top left",
                "equal lengths, or seqlen=1",
            ),
            (
                self.empty_rows or not mask.empty_rows,
                "seqlen_k",
                case.seqlen_k,
                f"leaves {mask.empty_rows} rows without a visible key",
                f"at least seqlen={case.seqlen}",
            ),
        ]


class DenseBackend(Backend[AttentionCase, "AttentionInputs"]):
    """An adapter for the workload `attention` that computes softmax attention."""

    workload = "attention"
    variant = "softmax"
    limits: ClassVar[Limits]

    def check(self, case: AttentionCase, machine: Machine) -> None:
        """Refuse cases that the library does not support.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        self.limits.check(self.name, case, machine)


def largest_term(keys: float, outputs: float) -> float:
    """Return the largest weight times value in any of the sums over `keys`, relative to the outputs' root mean square.

    An output of 8-bit attention is off by at least the rounding of its largest term.  For independent normal scores and
    values a score s and a value v are both met among the keys · outputs terms if (s² + v²) / 2 is at most their
    logarithm; v exp(s) is largest there at v² = s.  A row's other weights add up to keys · exp(1/2), and the mean square
    of the outputs is e / keys.
    """
    score = ((1 + 8 * math.log(max(keys * outputs, 1.0))) ** 0.5 - 1) / 2
    weight = math.exp(score) / (keys * math.exp(0.5))
    return weight / (1 + weight) * score**0.5 * (keys / math.e) ** 0.5


def one_value(case: AttentionCase) -> float:
    """Return the size of a single value relative to the root mean square of the output, for independent normal values.

    A row that averages n of them has 1/n of their variance.  A causal row n sees n keys, so the output's mean square is
    H_S / S of theirs, H_S = 1 + 1/2 + … + 1/S; of more queries than keys the first see none, and their outputs are 0.
    Without a causal mask every row sees all keys, so there are no rows of few keys, and the result is 1.
    """
    if not Mask.of(case).causal:
        return 1.0
    queries = max(case.seqlen, case.seqlen_k)
    return (queries / sum(1 / n for n in range(1, case.seqlen_k + 1))) ** 0.5
