"""Libraries for charts and pages, which machines with GPUs often lack."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec

from attnbench.errors import Unavailable, refusal

PACKAGES = {"altair": "altair", "vl_convert": "vl-convert-python", "jinja2": "jinja2"}
"""Modules, and their names on package indexes."""


def require(who: str, modules: Iterable[str]) -> None:
    """Import libraries before anything is measured or read.

    Raises:
        Unavailable: one is missing or broken; the message has the command that installs it.
    """
    for module in modules:
        wrong = "is not installed" if find_spec(module) is None else _fault(module)
        if wrong is not None:
            raise Unavailable(refusal(who, "module", module, wrong, "what the charts are drawn with",
                                      f"pip install {PACKAGES[module]}"))  # fmt: skip


def _fault(module: str) -> str | None:
    """Return the error of importing a module; None if it succeeds."""
    try:
        import_module(module)
    except ImportError as error:  # a part is missing, or built for another system
        return f"cannot be imported ({' '.join(str(error).split())})"
    return None
