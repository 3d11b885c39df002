"""The libraries that draw charts and fill pages; a card's machine often has none of them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec

from attnbench.errors import Unavailable, refusal

PACKAGES = {"altair": "altair", "vl_convert": "vl-convert-python", "jinja2": "jinja2"}
"""Modules, and what pip calls them."""


def require(who: str, modules: Iterable[str]) -> None:
    """Import libraries before anything is measured or read.

    Raises:
        Unavailable: one is missing, or is there and does not work; the line says what installs it.
    """
    for module in modules:
        wrong = "is not installed" if find_spec(module) is None else _fault(module)
        if wrong is not None:
            raise Unavailable(refusal(who, "module", module, wrong, "what the charts are drawn with",
                                      f"pip install {PACKAGES[module]}"))  # fmt: skip


def _fault(module: str) -> str | None:
    """What an import says; None where it succeeds."""
    try:
        import_module(module)
    except ImportError as error:  # a part of it is missing, or made for another system
        return f"cannot be imported ({' '.join(str(error).split())})"
    return None
