"""A registry of backends that do nothing: plans must not depend on what is installed."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from attnbench.backends import registry
from attnbench.backends.base import Backend
from attnbench.errors import Unavailable
from attnbench.suites import choice, user_backends


def fake(name, devices=("cpu", "cuda"), installed=True, compiles=False, ahead=False):
    def probe(self):
        if not installed:
            raise Unavailable(f"{name}: module={name} is not installed; pip install {name}")

    body = {
        "name": name,
        "workload": "attention",
        "variant": "softmax",
        "install": "part of torch",
        "devices": devices,
        "compiles": compiles,
        "ahead": ahead,
        "probe": probe,
        "session": lambda self, case, inputs: nullcontext(),
    }
    return type(name, (Backend,), body)()


@pytest.fixture
def backends(monkeypatch):
    """eager, sdpa*, flash-attn-2 (missing) and flex (compiles); tests may change the dictionary."""
    cuda = ("cuda",)
    found = [
        fake("eager"),
        fake("sdpa"),
        fake("sdpa-math"),
        fake("sdpa-flash"),
        fake("sdpa-efficient", cuda),
        fake("sdpa-cudnn", cuda),
        fake("flash-attn-2", cuda, installed=False),
        fake("flex", compiles=True),
    ]
    known = {one.name: one for one in found}

    for module in (registry, user_backends):
        monkeypatch.setattr(module, "all_backends", lambda: dict(known))
    for module in (choice, user_backends):
        monkeypatch.setattr(module, "user_backends", lambda files: {"mine": fake("mine")} if files else {})
    return known
