"""Read suites from TOML: data only, every key checked, nothing executed.

A suite file is one table::

    name = "mine"
    title = "what it asks"                           # optional
    workload = "attention"
    backends = ["sdpa", "flash-attn-2|sdpa-flash"]   # or "all"; a|b is the first that can run
    baseline = "sdpa"
    references = ["flash-attn-2|sdpa-flash"]         # measured beside name[*]; default: the baseline
    layout = "seed-004"                              # a seed's console output and files
    settings = { rel_ci = 0.02, max_seconds = 2.0 }
    axes = { seqlen = [512, 1024], causal = [false, true] }          # their cross product, or
    cases = [{ name = "gpt2-small", batch = 8, seqlen = 1024 }]      # cases one by one
    batch_by_seqlen = { 512 = 16, 1024 = [4, 8] }    # batch follows seqlen; other lengths are refused, or
                                                     # with otherwise = 1 have that batch
    env = { batch = "BATCH" }                        # environment variables that set an axis
    [cpu]                                            # replaces whole keys of the above on a CPU
    [cuda]                                           # or on a GPU

The shipped suites are the ``.toml`` files of this folder; a named case of one is also a suite.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from attnbench.errors import FOLDER, UsageError, absent, did_you_mean, nearest, parsed, refusal, unknown, unreadable
from attnbench.suites.settings import setting, settle, suite_keys
from attnbench.text import shown
from attnbench.workloads.base import Axis, Workload, load_workload, nearest_axes

DEVICES = ("cpu", "cuda")
"""Kinds of device for which a suite may have a section."""

SECTION = ("backends", "baseline", "references", "settings", "axes", "cases", "batch_by_seqlen", "title")
OTHERWISE = "otherwise"
"""Key of batch_by_seqlen for all other lengths."""
TOP = tuple(dict.fromkeys(("name", "title", "workload", *SECTION, "layout", "env", *DEVICES)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCase:
    """One listed case: the values of the axes it states; the other axes are open."""

    name: str | None
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A named set of cases and backends, for one kind of device."""

    name: str
    title: str
    workload: str
    backends: tuple[str, ...]
    "selectors"
    baseline: str | None = None
    references: tuple[str, ...] = ()
    "selectors of backends measured beside the configurations that a wildcard such as name[*] names"
    layout: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    cases: tuple[NamedCase, ...] = ()
    "empty for a suite of axes"
    batch_by_seqlen: Mapping[Any, tuple[Any, ...]] = field(default_factory=dict)
    batch_otherwise: tuple[Any, ...] = ()
    "batches of lengths that batch_by_seqlen does not list; if empty, such lengths are refused"
    env: Mapping[str, str] = field(default_factory=dict)
    "axis -> environment variable that sets it if no flag does"
    file: str | None = None
    "file name of a user's suite"

    @property
    def who(self) -> str:
        """Its name in messages."""
        return f"suite {self.file or self.name}"


def load_suite(name: str, device: str, *, asked: tuple[str, str] = ("attnbench", "suite")) -> Suite:
    """Find and read a suite.

    Args:
        name: a shipped suite, a named case of one, or the path of a file ending in ``.toml``.
        device: ``cpu`` or ``cuda``, whose section applies.
        asked: subject and field of the message about a name that is not known.

    Raises:
        UsageError: there is no such suite, or the file has a mistake; the message names its key and value.
    """
    if name.endswith(".toml"):
        return _build(_read(Path(name)), device)
    shipped = _shipped()
    if name in shipped:
        return _build(shipped[name], device)
    for document in shipped.values():
        suite = _build(document, device)
        chosen = tuple(case for case in suite.cases if case.name == name)
        if chosen:
            shape = ", ".join(f"{key} {str(value).lower()}" for key, value in chosen[0].values.items())
            return replace(suite, name=name, title=f"of {suite.name}: {shape}", cases=chosen)
    if (wrong := absent(name)) == FOLDER:
        raise UsageError(refusal(*asked, name, wrong, "a suite's name, or a file ending in .toml"))
    raise unknown(*asked, name, [*shipped, *case_names()])


def with_cases_of(suite: Suite, name: str, device: str, who: str) -> Suite:
    """Return the suite with the cases of another one of its workload; backends, baseline and settings are its own.

    Args:
        suite: the suite that is measured.
        name: name or path of the other one.
        device: ``cpu`` or ``cuda``.
        who: subject of error messages.

    Raises:
        UsageError: there is no such suite, or its cases are those of another workload.
    """
    other = load_suite(name, device, asked=(who, "--cases"))
    if other.workload != suite.workload:
        wrong = f"has cases of {other.workload}, {suite.name} measures {suite.workload}"
        same = [one for one in suite_names() if load_suite(one, device).workload == suite.workload]
        raise UsageError(refusal(who, "--cases", name, wrong, f"such as {', '.join(same)}, or a file"))
    return replace(
        suite,
        axes=other.axes,
        cases=other.cases,
        batch_by_seqlen=other.batch_by_seqlen,
        batch_otherwise=other.batch_otherwise,
    )


def suite_names() -> list[str]:
    """Return the names of the shipped suites."""
    return list(_shipped())


def case_names() -> list[str]:
    """Return the names of their named cases; each is a suite of its own."""
    return [
        str(case["name"])
        for document in _shipped().values()
        for case in document.data.get("cases", ())
        if "name" in case
    ]


@dataclass(frozen=True, slots=True)
class _Document:
    """A suite file as read."""

    data: dict[str, Any]
    file: str
    shipped: bool

    @property
    def who(self) -> str:
        return f"suite {self.file}"


@cache
def _shipped() -> dict[str, _Document]:
    paths = sorted(Path(__file__).parent.glob("*.toml"), key=lambda path: path.stem)
    return {path.stem: _Document(tomllib.loads(path.read_text("utf-8")), path.name, True) for path in paths}


def _read(path: Path) -> _Document:
    who = f"suite {path.name}"
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise OSError(None, "not a regular file")  # a read from a pipe or device may never end
        # Some editors begin a file with a byte order mark.
        return _Document(tomllib.loads(path.read_text("utf-8-sig")), path.name, False)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(refusal(who, "path", path, f"is not TOML ({error})", "a TOML file")) from None
    except RecursionError:
        raise UsageError(refusal(who, "path", path, "is nested too deeply", "a TOML file of a few levels")) from None
    except (OSError, ValueError) as error:
        todo = f"shipped suites: {', '.join(suite_names())}" if isinstance(error, FileNotFoundError) else ""
        raise UsageError(refusal(who, "path", path, unreadable(error), "a TOML file", todo)) from None


def _build(document: _Document, device: str) -> Suite:
    who, data = document.who, {"name": Path(document.file).stem, **document.data}
    _check_keys(who, "", data, TOP)
    if "workload" not in data:
        raise UsageError(f"{who}: workload is missing; a text in quotes")
    for key in {"name", "title", "workload"} & data.keys():
        _text(who, key, data[key])
    workload = load_workload(_known_workload(who, data["workload"]))
    suites = {}
    for kind in DEVICES:
        section = _table(who, kind, data.get(kind, {}))
        _check_keys(who, f"{kind}.", section, SECTION)
        suites[kind] = _flat(document, workload, _replaced(data, section), kind if section else "")
    return suites[device]


def _replaced(data: Mapping[str, Any], section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data with a device's section applied; new cases replace the old ones altogether."""
    base = {key: value for key, value in data.items() if key not in DEVICES}
    if "axes" in section or "cases" in section:
        base = {key: value for key, value in base.items() if key not in ("axes", "cases", "batch_by_seqlen")}
    return {**base, **section}


def _flat(document: _Document, workload: Workload, data: dict[str, Any], kind: str) -> Suite:
    who = document.who + (f" [{kind}]" if kind else "")
    axes = {axis.name: axis for axis in workload.axes}
    if ("axes" in data) == ("cases" in data):
        wrong = "are both there" if "axes" in data else "are both missing"
        raise UsageError(f"{who}: axes and cases {wrong}; one of the two: axes (a cross product) or cases (a list)")
    if "cases" in data and "batch_by_seqlen" in data:
        raise UsageError(f"{who}: batch_by_seqlen goes with axes; listed cases state their batch")
    batches = _batches(who, axes, data.get("batch_by_seqlen", {}))
    return Suite(
        name=data["name"],
        title=data.get("title", ""),
        workload=workload.name,
        backends=_selectors(who, data.get("backends", "all")),
        baseline=_text(who, "baseline", data["baseline"]) if "baseline" in data else None,
        references=_references(who, data),
        layout=_text(who, "layout", data["layout"]) if "layout" in data else None,
        settings=_settings(who, data.get("settings", {})),
        axes=_axes(who, axes, data.get("axes", {})),
        cases=_cases(who, axes, data["cases"]) if "cases" in data else (),
        batch_by_seqlen={key: value for key, value in batches.items() if key != OTHERWISE},
        batch_otherwise=batches.get(OTHERWISE, ()),
        env=_env(who, axes, data.get("env", {})),
        file=None if document.shipped else document.file,
    )


def _known_workload(who: str, name: str) -> str:
    from attnbench.workloads.base import workload_names

    if name not in workload_names():
        raise unknown(who, "workload", name, workload_names())
    return name


def _selectors(who: str, value: Any) -> tuple[str, ...]:
    if value == "all":
        return ("all",)
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        raise _wrong(who, "backends", value, 'a list of names such as ["sdpa"], or "all"')
    return tuple(value)


def _references(who: str, data: Mapping[str, Any]) -> tuple[str, ...]:
    value = data.get("references", [data["baseline"]] if "baseline" in data else [])
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise _wrong(who, "references", value, 'a list of names such as ["flash-attn-2|sdpa-flash"]')
    return tuple(value)


def _settings(who: str, value: Any) -> dict[str, Any]:
    table = _table(who, "settings", value)
    _check_keys(who, "settings.", table, suite_keys())
    settings = {}
    for key, item in table.items():
        want = setting(key)
        text = str(item) if isinstance(item, int | float | str) and not isinstance(item, bool) else ""
        settings[key] = parsed(who, f"settings.{key}", text, want.parse, shown(item))
        if isinstance(item, str) != isinstance(settings[key], str):
            raise _wrong(who, f"settings.{key}", item, "a number without quotes")
    return settle(who, settings, {})


def _axes(who: str, axes: Mapping[str, Axis], value: Any) -> dict[str, tuple[Any, ...]]:
    table = _table(who, "axes", value)
    _check_keys(who, "axes.", table, (), axes)
    for key, items in table.items():
        if not isinstance(items, list) or not items:
            raise _wrong(who, f"axes.{key}", items, "a list of values, in brackets")
    return {key: tuple(_value(who, f"axes.{key}", axes[key], item) for item in items) for key, items in table.items()}


def _cases(who: str, axes: Mapping[str, Axis], value: Any) -> tuple[NamedCase, ...]:
    if not isinstance(value, list) or not value:
        raise _wrong(who, "cases", value, "a list of tables, [[cases]] each")
    cases: list[NamedCase] = []
    for index, row in enumerate(value):
        where = f"cases[{index}]"
        table = _table(who, where, row)
        _check_keys(who, f"{where}.", table, ("name",), axes)
        name = _text(who, f"{where}.name", table["name"]) if "name" in table else None
        if name is not None and name in [case.name for case in cases]:
            raise _wrong(who, f"{where}.name", name, "a name once")
        values = {key: _value(who, f"{where}.{key}", axes[key], item) for key, item in table.items() if key != "name"}
        cases.append(NamedCase(name=name, values=values))
    return tuple(cases)


def _batches(who: str, axes: Mapping[str, Axis], value: Any) -> dict[Any, tuple[Any, ...]]:
    table = _table(who, "batch_by_seqlen", value)
    if table and not {"batch", "seqlen"} <= set(axes):
        raise UsageError(f"{who}: batch_by_seqlen needs the axes batch and seqlen; this workload has {', '.join(axes)}")
    found = {}
    for key, items in table.items():
        where = f"batch_by_seqlen.{key}"
        try:
            length = key if key == OTHERWISE else axes["seqlen"].parse(key)
        except ValueError as error:
            raise _wrong(who, where, items, f"the key is {OTHERWISE}, or a seqlen, {error}") from None
        listed = items if isinstance(items, list) and items else [items]
        found[length] = tuple(_value(who, where, axes["batch"], item) for item in listed)
    return found


def _env(who: str, axes: Mapping[str, Axis], value: Any) -> dict[str, str]:
    table = _table(who, "env", value)
    _check_keys(who, "env.", table, (), axes)
    return {key: _text(who, f"env.{key}", item) for key, item in table.items()}


def _value(who: str, where: str, axis: Axis, item: Any) -> Any:
    """Return a value of an axis: as a flag accepts it, but in TOML's own type."""
    if axis.boolean:
        if not isinstance(item, bool):
            raise _wrong(who, where, item, "true or false")
        return item
    if isinstance(item, bool) or not isinstance(item, int | float | str):
        raise _wrong(who, where, item, axis.help)
    value = parsed(who, where, str(item), axis.parse, shown(item))
    if isinstance(item, str) and isinstance(value, int | float):
        raise _wrong(who, where, item, "a number without quotes")
    return value


def _table(who: str, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(who, key, value, "a table of keys and values")
    return value


def _text(who: str, key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(who, key, value, "a text in quotes")
    return value


def _check_keys(
    who: str, prefix: str, table: Mapping[str, Any], known: Iterable[str], axes: Mapping[str, Axis] | None = None
) -> None:
    """Refuse a key that is neither in `known` nor an axis."""
    names = [*known, *(axes or ())]
    for key, value in table.items():
        if key not in names:
            meant = nearest_axes(key, axes.values()) if axes else []
            todo = did_you_mean(meant or nearest(key, names))
            accepted = f"one of {', '.join(names)}"
            raise UsageError(refusal(who, prefix + key, shown(value), "is not a key", accepted, todo))


def _wrong(who: str, key: str, value: Any, accepted: str) -> UsageError:
    return UsageError(refusal(who, key, shown(value), "cannot be used", accepted))
