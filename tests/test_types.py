"""Cases and inputs have types: no `Any` where a workload's own class, a parameter or the protocol fits."""

from __future__ import annotations

import ast
import inspect
import typing
from pathlib import Path

import pytest

from attnbench.backends.base import Backend
from attnbench.backends.registry import all_backends
from attnbench.workloads.attention.case import AttentionCase
from attnbench.workloads.base import Case, Inputs, Workload, load_workload, workload_names
from attnbench.workloads.hstu.case import HstuCase

SOURCE = Path(__file__).resolve().parents[1] / "src" / "attnbench"
ROOMS = ("backends", "workloads", "check", "measure", "worker", "sweep", "tune", "profile", "suites")


@pytest.mark.parametrize("room", ROOMS)
def test_no_case_and_no_inputs_are_any(room):
    untyped = []
    for path in sorted((SOURCE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.arg) and node.arg in ("case", "inputs") and node.annotation is not None:
                words = ast.unparse(node.annotation)
                if "Any" in words.replace("[", " ").replace("|", " ").split():
                    untyped.append(f"{path.relative_to(SOURCE)}:{node.lineno} {node.arg}: {words}")
    assert not untyped


def parameters(kind: type, base: type) -> tuple:
    """What a class gives for the parameters of a generic base of its."""
    for one in kind.__mro__:
        for given in getattr(one, "__orig_bases__", ()):
            if typing.get_origin(given) is base and not isinstance(typing.get_args(given)[0], typing.TypeVar):
                return typing.get_args(given)
    return ()


CASES = {"attention": AttentionCase, "hstu": HstuCase}


@pytest.mark.parametrize("name", sorted(all_backends()))
def test_a_shipped_backend_names_the_classes_of_its_workload(name):
    backend = all_backends()[name]
    if backend.workload in CASES and type(backend).__module__ != "attnbench.backends.registry":
        assert parameters(type(backend), Backend)[0] is CASES[backend.workload]


@pytest.mark.parametrize("name", workload_names())
def test_a_workload_names_its_classes(name):
    workload = load_workload(name)
    case, inputs = parameters(type(workload), Workload)
    assert isinstance(workload.case({}), case)
    assert str(inspect.signature(type(workload).inputs).return_annotation) == inputs.__forward_arg__


def test_the_protocols_are_bounds():
    case, inputs = Backend.__parameters__
    assert (case.__bound__, inputs.__bound__) == (Case, Inputs)
