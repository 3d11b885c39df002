"""Settings for sampling a group, and when to stop."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

from attnbench.errors import UsageError, refusal, unknown

REGIMES = ("burst", "sustained")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Settings for sampling a group."""

    timer: str = "auto"
    "auto, all, or the name of a timer"
    l2: str = "auto"
    "auto (cold on a GPU, warm on a CPU), cold, warm"
    regime: str = "burst"
    "burst (cool, at full clock) or sustained (under load until the clock settles)"
    warmup: int | None = None
    "rounds before the first sample; None: for a minimum time"
    iterations: int | None = None
    "rounds; None: until `rel_ci` or `max_seconds`"
    rel_ci: float = 0.01
    max_seconds: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.regime not in REGIMES:
            raise unknown("measure", "regime", self.regime, REGIMES)
        for name, least in (("warmup", 0), ("iterations", 1)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                raise UsageError(
                    refusal("measure", name, repr(value), "cannot be used", f"a whole number, at least {least}")
                )
        if not (_is_number(self.rel_ci) and 0 < self.rel_ci < 1):
            accepted = "a number above 0 and below 1"
            raise UsageError(refusal("measure", "rel_ci", repr(self.rel_ci), "cannot be used", accepted))
        if not (_is_number(self.max_seconds) and self.max_seconds > 0):
            raise UsageError(
                refusal("measure", "max_seconds", repr(self.max_seconds), "cannot be used", "a number above 0")
            )


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
