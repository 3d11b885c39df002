"""Functions that the harness and other backends call: detects whether a backend has replaced them.

Of the harness methods, constants, classes and imported modules are watched too.
"""

from __future__ import annotations

import importlib
import operator
import pkgutil
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from attnbench.check.setting import Setting

MODULES = frozenset(
    {
        "builtins",
        "json",
        "os",
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
"""The clocks, what attention is made of, and what everybody uses."""
ROOMS = ("attnbench.check.", "attnbench.measure.", "attnbench.worker.", "attnbench.workloads.", "attnbench.stats.")
"""Module prefixes of the harness."""

CLOCKS = ("time.",)
OWN = ("attnbench.",)
"""Prefixes of the names of functions that are listed as replaced."""

FUNCTION = "function"
CONSTANT = "constant"
"""Words of the settings."""

Replaced = frozenset[str]
"""Full names of what is not as it was when this process saw it first."""


def functions() -> tuple[Setting, ...]:
    """Three settings: functions of modules, constants of the harness, and methods of tensors."""
    called, constant = _Watched(_is_function, MODULES), _Watched(_is_constant)
    return (
        Setting(FUNCTION, called.replaced, called.put_back, which=_names),
        Setting(CONSTANT, constant.replaced, constant.put_back, which=_names),
        Setting("method of tensors", _methods, _put_methods_back, which=_methods_that_differ),
    )


def import_all(workload: str) -> None:
    """Import what the harness imports later, its timers and oracles: what a file replaces unseen there is not found."""
    for package in ("attnbench.measure.timers", f"attnbench.workloads.{workload.replace('-', '_')}"):
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
            with suppress(ImportError):  # it needs what is not installed here, and is not needed
                importlib.import_module(module.name)


@dataclass(slots=True)
class _Watched:
    """What each module held when it was first seen; compared often, so nothing is copied again."""

    wanted: Callable[[Any, Any], bool]
    "whether a name and its value are watched"
    modules: frozenset[str] = frozenset()
    "beside those of the harness"
    owners: dict[str, tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = field(default_factory=dict)
    "by its name each module, or class or dictionary of the harness: its watched names, and their values"
    seen: int = 0
    "number of modules that the process had imported at the last look"

    def replaced(self) -> Replaced:
        if len(sys.modules) != self.seen:
            self._look_around()
        return frozenset(full for full, *_ in self._differing())

    def put_back(self, then: Replaced) -> None:
        for full, owner, name, value in self._differing():
            if full in then:
                continue
            if isinstance(owner, dict):
                owner[name] = value
            else:
                setattr(owner, name, value)

    def _differing(self) -> list[tuple[str, Any, Any, Any]]:
        """Full name, owner, name and the value that it had."""
        found = []
        for module, (owner, names, values) in self.owners.items():
            inside = _inside(owner)
            if not all(map(operator.is_, map(inside.get, names), values)):
                found += [
                    (f"{module}.{name}", owner, name, value)
                    for name, value in zip(names, values, strict=True)
                    if inside.get(name) is not value and not _of_torch(inside.get(name))
                ]
        return found

    def _look_around(self) -> None:
        for name, module in list(sys.modules.items()):
            ours = name.startswith(ROOMS)
            if name not in self.owners and isinstance(module, ModuleType) and (ours or name in self.modules):
                self._remember(name, module)
                for key, value in list(vars(module).items()) if ours else ():
                    if (isinstance(value, type) and value.__module__ == name) or (
                        isinstance(value, dict) and key.isupper()
                    ):
                        self._remember(f"{name}.{key}", value)
        self.seen = len(sys.modules)

    def _remember(self, name: str, owner: Any) -> None:
        watched = {key: value for key, value in _inside(owner).items() if self.wanted(key, value)}
        self.owners[name] = owner, tuple(watched), tuple(watched.values())


def _inside(owner: Any) -> Any:
    return owner if isinstance(owner, dict) else vars(owner)


def _is_function(name: Any, value: Any) -> bool:
    return callable(value) and not isinstance(value, ModuleType | type)


def _is_constant(name: Any, value: Any) -> bool:
    """What cannot change itself, and has another in its place only if somebody puts it there."""
    kinds = ModuleType | type | int | float | str | bytes | tuple | frozenset | re.Pattern
    return isinstance(value, kinds) and not str(name).startswith("__")


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
