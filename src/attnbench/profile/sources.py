"""Read an earlier capture, with its format detected from its content."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from pathlib import Path

from attnbench.errors import RunFileError, Unavailable, UsageError, refusal, unreadable
from attnbench.machine.tools import find_program
from attnbench.profile import capture, ncu_csv, ncu_rep, nsys_sqlite, nsys_text, torch_trace
from attnbench.profile.capture import Capture
from attnbench.profile.categories import Categories, by_range
from attnbench.profile.running import reason, run
from attnbench.text import without_passwords

HEAD = 1 << 16
NCU_MAGIC = b"NVR\0"
"""First bytes of an ncu report."""

SUFFIXES = re.compile(r"(\.(ncu-rep|nsys-rep|qdrep|sqlite|csv|tsv|txt|log|json|gz|pt|trace))+$")
EXPORT_S = 600.0
NSYS = (".nsys-rep", ".qdrep")
ACCEPTED = (
    "an .ncu-rep, ncu's CSV (--page raw --csv), nsys's SQLite export, what `nsys stats` printed, a trace of "
    "torch.profiler, or what attnbench profile --json wrote"
)


def read(path: str | Path, rules: Categories) -> tuple[Capture, ...]:
    """Read a capture of any tool in any supported format.

    Args:
        path: path of the file.
        rules: categories; captures in attnbench's own JSON are categorized again.

    Returns:
        One capture, or all captures of attnbench's own JSON.

    Raises:
        UsageError: there is no such file.
        RunFileError: the file is truncated or in none of the formats.
        Unavailable: only a tool that is not installed can read it.
    """
    path = Path(path)
    head = _head(path)
    name = SUFFIXES.sub("", path.name).removeprefix("profile_") or path.name
    if head.startswith(nsys_sqlite.MAGIC):
        return (nsys_sqlite.parse(path, name=name, rules=rules),)
    if path.suffix == ".ncu-rep" or head.startswith(NCU_MAGIC):
        return (ncu_rep.parse(path, name=name, rules=rules),)
    if path.suffix in NSYS:
        return (_exported(path, name, rules),)
    if head.startswith(torch_trace.GZIP):
        return (torch_trace.parse(path, name=name, rules=rules),)
    return _text(path, head, name, rules)


def _exported(path: Path, name: str, rules: Categories) -> Capture:
    """Read a report of nsys through the installed nsys."""
    nsys = find_program("nsys")
    if nsys.reason is not None or nsys.path is None:
        raise Unavailable(
            refusal(
                "nsys",
                "capture",
                path.name,
                "is in a format that only nsys reads",
                "its SQLite export",
                f"where nsys is: nsys export --type sqlite {path.name}",
            )
        )
    with tempfile.TemporaryDirectory(prefix="attnbench-") as folder:
        database = Path(folder) / f"{path.stem}.sqlite"
        done = run(
            [nsys.path, "export", "--type=sqlite", f"--output={database}", str(path.absolute())],
            timeout_s=EXPORT_S,
            log=Path(folder) / "log",
        )
        if not done.ok or not database.is_file():
            wrong = f"was not exported ({reason('nsys', done, EXPORT_S)})"
            raise RunFileError(refusal("nsys", "capture", path.name, wrong, "a report of this nsys or an older one"))
        found = nsys_sqlite.parse(database, name=name, rules=rules)
    return dataclasses.replace(found, source=path.name, tool_version=nsys.version)


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except (OSError, ValueError) as error:
        raise UsageError(refusal("profile", "--from", path, unreadable(error), ACCEPTED)) from None
    if not head.strip():
        raise RunFileError(refusal("profile", "--from", path.name, "is empty", ACCEPTED))
    return head


def _text(path: Path, head: bytes, name: str, rules: Categories) -> tuple[Capture, ...]:
    start = head.decode("utf-8-sig", errors="replace").lstrip()
    if start.startswith(("{", "[")):
        if capture.FORMAT.split(" ")[0] in start[:200]:
            return _own(path, rules)
        return (torch_trace.parse(path, name=name, rules=rules),)
    try:
        # Before parsing: without the beginning of a URL its password cannot be recognized.
        text = without_passwords(path.read_text(encoding=_encoding(head)))
    except UnicodeDecodeError:
        raise RunFileError(refusal("profile", "--from", path.name, "is none of the known formats", ACCEPTED)) from None
    if ncu_csv.looks_like(text):
        return (ncu_csv.parse(text, name=name, source=path.name, rules=rules),)
    if nsys_text.looks_like(text):
        return (nsys_text.parse(text, name=name, source=path.name, rules=rules),)
    raise RunFileError(refusal("profile", "--from", path.name, "is none of the known formats", ACCEPTED))


def _encoding(head: bytes) -> str:
    """Return UTF-8, or UTF-16 as PowerShell writes redirected output."""
    return "utf-16" if head.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"


def _own(path: Path, rules: Categories) -> tuple[Capture, ...]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RunFileError(refusal("profile", "--from", path.name, unreadable(error), ACCEPTED)) from None
    return tuple(
        dataclasses.replace(
            one, kernels=by_range(dataclasses.replace(row, category=rules.of(row.name)) for row in one.kernels)
        )
        for one in capture.loads(text, path.name)
    )
