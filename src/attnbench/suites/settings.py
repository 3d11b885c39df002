"""Settings of a measurement in suite files and flags: every field of `record.Settings` with its check.

A suite's ``[settings]`` and the flags of the command line use the same parsers, so both accept the same values.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from attnbench.errors import UsageError, parsed, refusal
from attnbench.record import Settings
from attnbench.workloads.base import ATTENTION_KINDS, Workload, one_of
from attnbench.workloads.given_files import is_known, known_as


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of `record.Settings`."""

    name: str
    "name of the field; with dashes, of the flag"
    parse: Callable[[str], Any]
    "raises ValueError with the accepted values"
    help: str
    metavar: str
    in_suite: bool = True
    "whether a suite may set it; it may not if the setting belongs to a machine or a moment"

    @property
    def flag(self) -> str:
        """The flag of the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def default(self) -> Any:
        """Default of the field."""
        return _DEFAULTS[self.name]


MOST = 10**18 - 1
"largest whole number of a setting that has no limit of its own"

_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Settings)}


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a parser of whole numbers from `least` on, up to and including `most`, or `MOST`."""
    top = MOST if most is None else most

    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]+", text):
            raise ValueError(f"a whole number, at least {least}")
        digits = text.lstrip("0") or "0"
        if len(digits) > len(str(top)) or int(digits) > top:
            raise ValueError(f"{least} to {top}")
        if int(digits) < least:
            raise ValueError(f"a whole number, at least {least}")
        return int(digits)

    return parse


def between(low: float, high: float = math.inf) -> Callable[[str], float]:
    """Return a parser of numbers above `low` and below `high`."""
    accepted = f"a number above {low:g}" + (f" and below {high:g}" if math.isfinite(high) else "")

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(accepted) from None
        if not low < value < high:
            raise ValueError(accepted)
        return value

    return parse


def matching(pattern: str, accepted: str) -> Callable[[str], str]:
    """Return a parser of texts that match a pattern."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(accepted)
        return text

    return parse


def parse_input(text: str) -> str:
    """Return a kind of values, or for a file of captured tensors its name and hash."""
    if text in ATTENTION_KINDS:
        return text
    if text.endswith(".safetensors") or is_known(text):
        return known_as(text)
    raise ValueError(f"one of {', '.join(ATTENTION_KINDS)}, or a .safetensors file")


def check_input(workload: Workload, kind: str) -> None:
    """Refuse kinds of values that a workload's inputs cannot have.

    Raises:
        UsageError: naming the kind.
    """
    if kind not in workload.input_kinds and not (workload.captured and is_known(kind)):
        accepted = f"one of {', '.join(workload.input_kinds)}" + ", or a .safetensors file" * workload.captured
        raise UsageError(refusal(workload.name, "input", kind, "is not known", accepted))


SETTINGS: tuple[Setting, ...] = (
    Setting("warmup", whole(0), "launches before the counted ones, where --iterations fixes the count", "N"),
    Setting("iterations", whole(1), "fix the number of samples instead of stopping on the interval", "N"),
    Setting("rel_ci", between(0, 1), "stop when the 95 % interval of the median is this narrow", "SHARE"),
    Setting("max_seconds", between(0), "sampling time of a group, at most", "S"),
    Setting("timeout", between(0), "seconds without progress after which a backend is given up", "S"),
    Setting(
        "timer",
        matching(r"[a-z][a-z0-9-]*(,[a-z][a-z0-9-]*)*", "names of `attnbench list timers` or auto; or all"),
        "what measures a launch: auto, all, or names of `attnbench list timers`, such as auto,wall",
        "NAME",
    ),
    Setting("l2", one_of("auto", "cold", "warm"), "L2 cache before a launch: auto (cold on a GPU), cold, warm", "L2"),
    Setting("regime", one_of("burst", "sustained"), "burst (cool, full clock) or sustained (power-limited)", "NAME"),
    Setting(
        "lock_clocks",
        matching(r"[1-9][0-9]{1,5}(,[1-9][0-9]{1,5})?", "SM[,MEM] in MHz, such as 1110,1512"),
        "lock the GPU clocks (MHz) while measuring, where you may",
        "SM[,MEM]",
        in_suite=False,
    ),
    Setting(
        "input",
        parse_input,
        f"values of the inputs: {', '.join(ATTENTION_KINDS)}, or a .safetensors file with "
        "tensors q, k and v; workloads other than attention and sparse take the first three",
        "KIND",
    ),
    Setting("seed", whole(0), "seed of the inputs and of the order within rounds", "N"),
    Setting("replicates", whole(1), "repeat every group in this many fresh processes", "N"),
    Setting(
        "device",
        matching(r"auto|cpu|cuda(:[0-9]{1,3})?", "auto, cpu, cuda or cuda:N; several GPUs by --gpus of run and check"),
        "auto (the GPU if there is one), cpu, cuda, cuda:N",
        "DEVICE",
        in_suite=False,
    ),
)

DEFAULT_WARMUP = 5
"""Default of launches before the counted ones if only the number of iterations is given."""


def setting(name: str) -> Setting:
    """Return the setting of that name."""
    return next(one for one in SETTINGS if one.name == name)


def parse_setting(who: str, name: str, text: str) -> Any:
    """Return one setting, parsed from text.

    Raises:
        UsageError: naming the flag, the value and what is accepted.
    """
    one = setting(name)
    return parsed(who, one.flag, text, one.parse)


def settle(who: str, suite: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """Merge the requested settings into a suite's, and check that they agree.

    Fixed counts and stopping on the interval exclude each other: a request for one replaces the other in the suite; a
    request for both is refused.

    Args:
        who: subject of error messages.
        suite: settings of the suite.
        asked: settings of the request.

    Raises:
        UsageError: the request has both, or a warm-up without a count.
    """
    stopping = [name for name in ("rel_ci", "max_seconds") if name in asked]
    if "iterations" in asked and stopping:
        flag = setting(stopping[0]).flag
        raise UsageError(
            refusal(
                who,
                "--iterations",
                asked["iterations"],
                f"fixes what {flag} is to find",
                "either a fixed count or an interval",
                f"leave out --iterations or {flag}",
            )
        )
    merged = {**suite, **asked}
    if stopping:
        merged = {name: value for name, value in merged.items() if name not in ("iterations", "warmup")} | {
            name: asked[name] for name in ("warmup",) if name in asked
        }
    if "iterations" in merged:
        merged.setdefault("warmup", DEFAULT_WARMUP)
    elif "warmup" in merged:
        raise UsageError(
            refusal(
                who,
                "--warmup",
                merged["warmup"],
                "has no count to go with",
                "a warm-up is fixed together with the count",
                "add --iterations N",
            )
        )
    return merged


def suite_keys() -> Iterable[str]:
    """Return the names of the settings that a suite file may hold."""
    return [one.name for one in SETTINGS if one.in_suite]
