"""A function of a library, replaced during a call alone: for what a library makes inside a call and does not give back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, by: Callable[..., Any]) -> Iterator[None]:
    """Another function under a name of a module; the library's own afterwards, whatever happened."""
    function = getattr(owner, name)
    setattr(owner, name, by)
    try:
        yield
    finally:
        setattr(owner, name, function)
