"""Kernel bodies run as Python: names are replaced by stand-ins, and run-time values are distinguished from constants."""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

import triton.language as tl
from triton.runtime.jit import JITFunction

from .aggregates import Aggregate, aggregate_of, places
from .language import STAND_INS
from .memory import View
from .mistakes import Mistake, Unsupported
from .tiles import Int, Tile, whole

BUILTINS = vars(builtins) | {"range": STAND_INS["range"], "min": STAND_INS["minimum"], "max": STAND_INS["maximum"]}


class Names:
    """What the names in kernel bodies stand for.

    Args:
        objects: pairs of a Triton object and its stand-in, matched by identity, whatever a module calls it.
        words: stand-ins for builtins that a project defines itself, by name.
    """

    def __init__(self, objects: list[tuple[Any, Any]], words: Mapping[str, Any]) -> None:
        self._objects = {id(theirs): (theirs, mine) for theirs, mine in objects}
        self._words = words
        self._functions: dict[int, Function] = {}
        self._aggregates: dict[int, type] = {}

    def of(self, value: Any) -> Any:
        """The stand-in of a value that a kernel names; other values are returned unchanged."""
        if id(value) in self._objects:
            return self._objects[id(value)][1]
        if isinstance(value, tl.constexpr):
            return self.of(value.value)
        if isinstance(value, JITFunction):
            if id(value) not in self._functions:
                self._functions[id(value)] = Function(value, self)
            return self._functions[id(value)]
        if isinstance(value, ModuleType):
            return _Module(value, self)
        if getattr(value, "__triton_aggregate__", False):
            if id(value) not in self._aggregates:
                self._aggregates[id(value)] = aggregate_of(value, self)
            return self._aggregates[id(value)]
        if getattr(value, "__triton_builtin__", False):
            return self._words.get(value.__name__) or _missing(value)
        return like(value, map(self.of, value)) if isinstance(value, tuple) else value


def like(value: Iterable[Any], parts: Iterable[Any]) -> tuple[Any, ...]:
    """A tuple of these parts, with the field names of another tuple if it has any."""
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


class _Module:
    def __init__(self, module: ModuleType, names: Names) -> None:
        self._module, self._names = module, names

    def __getattr__(self, name: str) -> Any:
        return self._names.of(getattr(self._module, name))


def _missing(value: Any) -> Callable:
    def refuse(*_: Any, **__: Any) -> None:
        raise Unsupported(f"the Hopper machine has no {value.__module__}.{value.__name__}")

    return refuse


class Function:
    """A jit function that runs here when it is called."""

    def __init__(self, kernel: JITFunction, names: Names) -> None:
        self.kernel, self._names = kernel, names
        self.name = kernel.fn.__name__
        self._constants = [(place, param.name) for place, param in enumerate(kernel.params) if param.is_constexpr]
        self._body: FunctionType | None = None

    def __call__(self, *values: Any, **named: Any) -> Any:
        for place, name in self._constants:
            value = values[place] if place < len(values) else named.get(name)
            if isinstance(value, (Int, Tile)):
                _constant(value, f"{self.name}({name})")
        if self._body is None:
            self._body = _python(self.kernel.fn, self._names)
        return self._body(*values, **named)


def _python(fn: FunctionType, names: Names) -> FunctionType:
    code, used = _code(fn)
    enclosing = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    space = {name: names.of(fn.__globals__[name]) for name in used if name in fn.__globals__}
    space |= {name: names.of(enclosing[name].cell_contents) for name in used if name in enclosing}
    space |= {"__builtins__": BUILTINS, "__run_time__": _run_time, "__constant__": _constant}
    exec(code, space)
    made = space[fn.__name__]
    made.__defaults__ = fn.__defaults__ and tuple(map(names.of, fn.__defaults__))
    made.__kwdefaults__ = fn.__kwdefaults__ and {name: names.of(value) for name, value in fn.__kwdefaults__.items()}
    return made


@cache
def _code(fn: FunctionType) -> tuple[CodeType, set[str]]:
    """The definition without decorators, annotations and defaults, and the names in it."""
    lines, first = inspect.getsourcelines(fn)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    (body,) = tree.body
    body.decorator_list, body.returns = [], None
    body.args.defaults, body.args.kw_defaults = [], [None] * len(body.args.kwonlyargs)
    for argument in ast.walk(body.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    tree = ast.fix_missing_locations(_Assignments().visit(tree))
    ast.increment_lineno(tree, first - 1)
    return (
        compile(tree, inspect.getsourcefile(fn), "exec"),
        {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)},
    )


class _Assignments(ast.NodeTransformer):
    """Marks assignments: `x = 0` makes a run-time value, `X: gl.constexpr = 0` a constant."""

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        name = node.targets[0].id if isinstance(node.targets[0], ast.Name) else ""
        node.value = self._call("__run_time__", node.value, name)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self._call("__constant__", node.value, ast.unparse(node.target))
        return ast.copy_location(ast.Assign([node.target], node.value), node) if node.value else node

    @staticmethod
    def _call(name: str, value: ast.expr, target: str) -> ast.Call:
        call = ast.Call(ast.Name(name, ast.Load()), [value, ast.Constant(target)], [])
        return ast.copy_location(call, value)


def _run_time(value: Any, name: str) -> Any:
    """The run-time value of a plain assignment; an allocation gets the name of the variable."""
    if type(value) is int:
        return whole(value)
    if isinstance(value, View) and name:
        value.memory.call(value, name)
    elif isinstance(value, Aggregate):
        for place, view in value.views() if name else ():
            view.memory.call(view, f"{name}{place}")
    elif isinstance(value, tuple):
        parts = zip(value, places(value), strict=True)
        return like(value, [_run_time(one, name and name + place) for one, place in parts])
    return value


def _constant(value: Any, name: str) -> Any:
    if isinstance(value, (Int, Tile)):
        raise Mistake(f"{name} is a constexpr, and was given a value of the run")
    return value
