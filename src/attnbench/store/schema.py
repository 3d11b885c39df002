"""The JSON Schemas of the run file and of a load's result, generated from the dataclasses that read and write them.

They are published as docs/run-file.schema.json and docs/load-file.schema.json, which tests compare with this module.
To publish a change::

    python -c "from attnbench.store import schema; schema.publish('docs/run-file.schema.json')"
    python -c "from attnbench.store import schema; schema.publish('docs/load-file.schema.json', schema.load_schema())"
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from attnbench import record
from attnbench.record import SCHEMA, Environment, PlannedGroup, Record, Run, Status
from attnbench.store import load_file
from attnbench.store.files import write_bytes
from attnbench.text import AXIS, RUN_ID

PLAIN: Mapping[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
}


def json_schema() -> dict[str, Any]:
    """Return the schema of a run file as plain data (JSON Schema 2020-12)."""
    documents = _field_documents(record)
    known = {name: item for name, item in vars(record).items() if dataclasses.is_dataclass(item)}
    definitions = {name: _object(item, documents[name]) for name, item in known.items()}  # type: ignore[arg-type]  # `known` has classes alone
    run = definitions.pop(Run.__name__)
    records = run["properties"].pop("records")
    run["properties"]["id"]["pattern"] = f"^{RUN_ID.pattern}$"
    for kind in (Record, PlannedGroup):
        definitions[kind.__name__]["properties"]["case"]["propertyNames"] = {"pattern": f"^{AXIS.pattern}$"}
    definitions[Record.__name__] |= _by_status()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "attnbench run file",
        "description": "One run. Times are ms, memory MiB, clocks MHz, power W; what is not known is null, never 0.",
        "type": "object",
        "properties": {"schema": {"const": SCHEMA}, "run": run, "records": records},
        "required": ["schema", "run", "records"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def load_schema() -> dict[str, Any]:
    """Return the schema of a load's result (`store.load_file`)."""
    documents = _field_documents(load_file) | {Environment.__name__: _field_documents(record)[Environment.__name__]}
    kinds = (load_file.LoadRun, load_file.Point, load_file.Spread, load_file.Goodput, load_file.Highest, Environment)
    definitions = {kind.__name__: _object(kind, documents[kind.__name__]) for kind in kinds}
    load = definitions.pop(load_file.LoadRun.__name__)
    points = load["properties"].pop("points")
    load["properties"]["id"]["pattern"] = f"^{RUN_ID.pattern}$"
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "attnbench load file",
        "description": "One load. Times are ms, rates requests a second; what is not known is null, never 0.",
        "type": "object",
        "properties": {"schema": {"const": load_file.SCHEMA}, "load": load, "points": points},
        "required": ["schema", "load", "points"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def publish(path: str | Path, schema: Mapping[str, Any] | None = None) -> None:
    """Write a schema, by default that of the run file, to a path."""
    text = json.dumps(json_schema() if schema is None else schema, indent=1, ensure_ascii=False)
    write_bytes(path, (text + "\n").encode())


def _object(kind: type, documents: Mapping[str, str]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    properties = {}
    for field in dataclasses.fields(kind):
        note = {"description": documents[field.name]} if field.name in documents else {}
        properties[field.name] = _type(hints[field.name]) | note
    return {
        "description": inspect.cleandoc(kind.__doc__ or ""),
        "type": "object",
        "properties": properties,
        "required": [field.name for field in dataclasses.fields(kind) if _must_be_there(field)],
        "additionalProperties": False,
    }


def _must_be_there(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _type(hint: Any) -> dict[str, Any]:
    if hint in PLAIN:
        return dict(PLAIN[hint])
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return {"enum": list(args)}
    if origin is tuple:
        return {"type": "array", "items": _type(args[0])}
    if origin in (types.UnionType, typing.Union):  # a union with a Literal is the latter
        return _union([_type(item) for item in args])
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _type(args[1])}
    if issubclass(hint, StrEnum):
        return {"enum": [item.value for item in hint]}
    return {"$ref": f"#/$defs/{hint.__name__}"}


def _union(kinds: list[dict[str, Any]]) -> dict[str, Any]:
    if all(set(kind) == {"type"} for kind in kinds):
        return {"type": [kind["type"] for kind in kinds]}
    return {"anyOf": kinds}


def _by_status() -> dict[str, Any]:
    """Return the rules of `Record.__post_init__`: only a passed record has times, every other has a reason."""
    lost = {
        "time": {"type": "null"},
        "speedup": {"type": "null"},
        "phases": {"maxProperties": 0},
        "yardsticks": {"maxProperties": 0},
        "reason": {"type": "string", "minLength": 1},
    }
    return {"if": {"properties": {"status": {"const": Status.PASSED.value}}}, "else": {"properties": lost}}


def _field_documents(module: types.ModuleType) -> dict[str, dict[str, str]]:
    """Return the string below each field of each class of a module, which Python discards."""
    documents: dict[str, dict[str, str]] = {}
    for item in ast.parse(inspect.getsource(module)).body:
        if isinstance(item, ast.ClassDef):
            documents[item.name] = _strings_under_fields(item)
    return documents


def _strings_under_fields(item: ast.ClassDef) -> dict[str, str]:
    found = {}
    for above, below in zip(item.body, item.body[1:], strict=False):
        if not (isinstance(above, ast.AnnAssign) and isinstance(above.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            found[above.target.id] = below.value.value
    return found
