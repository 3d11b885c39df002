"""Functions that the harness and other backends call: detects whether a backend has replaced them.

Of the harness's own modules, methods are watched too.
"""

from __future__ import annotations

import operator
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from attnbench.check.setting import Setting

MODULES = frozenset(
    {
        "builtins",
        "time",
        "gc",
        "math",
        "statistics",
        "torch",
        "torch.nn.functional",
        "torch.cuda",
        "torch.autograd",
        "torch.autograd.grad_mode",
        "torch.backends.cuda",
    }
)
"""The clocks, and the operations that attention consists of."""
ROOMS = ("attnbench.check.", "attnbench.measure.", "attnbench.worker.", "attnbench.workloads.", "attnbench.stats.")
"""Module prefixes of the harness."""

CLOCKS = ("time.",)
OWN = ("attnbench.",)
"""Prefixes of the names of functions that are listed as replaced."""

FUNCTION = "function"
"""Name of the setting in notes."""

Replaced = frozenset[str]
"""Full names of functions that are no longer what this process saw first."""


def functions() -> tuple[Setting, ...]:
    """Return two settings: functions of modules, and methods of tensors."""
    watched = _Watched()
    return (
        Setting(FUNCTION, watched.replaced, watched.put_back, which=_names),
        Setting("method of tensors", _methods, _put_methods_back, which=_methods_that_differ),
    )


@dataclass(slots=True)
class _Watched:
    """What each module held when it was first seen; compared often, so nothing is copied again."""

    owners: dict[str, tuple[Any, tuple[str, ...], tuple[Any, ...]]] = field(default_factory=dict)
    "by name, each module or class of the harness with the names of its functions and the functions"
    seen: int = 0
    "number of modules that the process had imported at the last look"

    def replaced(self) -> Replaced:
        if len(sys.modules) != self.seen:
            self._look_around()
        found = []
        for module, (owner, names, values) in self.owners.items():
            inside = vars(owner)
            if not all(map(operator.is_, map(inside.get, names), values)):
                found += [
                    f"{module}.{name}"
                    for name, value in zip(names, values, strict=True)
                    if inside.get(name) is not value and not _of_torch(inside.get(name))
                ]
        return frozenset(found)

    def put_back(self, then: Replaced) -> None:
        for full in self.replaced() - then:
            module, _, name = full.rpartition(".")
            owner, names, values = self.owners[module]
            setattr(owner, name, values[names.index(name)])

    def _look_around(self) -> None:
        for name, module in list(sys.modules.items()):
            if (
                name not in self.owners
                and isinstance(module, ModuleType)
                and (name in MODULES or name.startswith(ROOMS))
            ):
                self._remember(name, module)
                if name.startswith(ROOMS):
                    for key, value in vars(module).items():
                        if isinstance(value, type) and value.__module__ == name:
                            self._remember(f"{name}.{key}", value)
        self.seen = len(sys.modules)

    def _remember(self, name: str, owner: Any) -> None:
        calls = {
            key: value
            for key, value in vars(owner).items()
            if callable(value) and not isinstance(value, ModuleType | type)
        }
        self.owners[name] = owner, tuple(calls), tuple(calls.values())


def _of_torch(value: Any) -> bool:
    """Return whether torch itself put it there, as its compiler does on import."""
    return str(getattr(value, "__globals__", {}).get("__name__", "")).startswith("torch.")


def _names(then: Replaced, now: Replaced) -> str:
    return _some(sorted(now ^ then))


def _methods() -> dict[str, Any]:
    """Return what the class itself defines: methods of its bases cannot be replaced, only overridden."""
    torch: Any = sys.modules.get("torch")
    return dict(vars(torch.Tensor)) if torch is not None else {}


def _put_methods_back(then: dict[str, Any]) -> None:
    import torch

    for name in set(vars(torch.Tensor)) - set(then):
        delattr(torch.Tensor, name)
    for name, value in then.items():
        if vars(torch.Tensor).get(name) is not value:
            setattr(torch.Tensor, name, value)


def _methods_that_differ(then: dict[str, Any], now: dict[str, Any]) -> str:
    return _some(sorted(name for name in {*then, *now} if then.get(name) is not now.get(name)))


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
