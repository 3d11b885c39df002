"""Removes private data from texts: folders, passwords, names of the user and of the machine.

Records are committed and shared.  `without_paths` is applied to every text that becomes a reason, a note or a
version of a record, before it is shortened, because half a name is still a name.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from attnbench.backends import files
from attnbench.text import without_passwords

NOBODY = {
    "root",
    "user",
    "users",
    "admin",
    "administrator",
    "ubuntu",
    "debian",
    "runner",
    "docker",
    "guest",
    "nobody",
    "test",
    "tests",
    "build",
    "localhost",
    "local",
    "host",
    "node",
    "server",
    "worker",
    "gpu",
    "cpu",
    "cuda",
    "torch",
    "triton",
    "home",
    "work",
    "bench",
    "attnbench",
    "app",
    "data",
}
"""Common names that identify nobody; replacing them would garble sentences."""
SHORTEST = 3
"Least length of a name that is replaced."
MOST = 4096
"Characters of a text that are processed: a library may produce megabytes, and only the beginning is useful."
USERS = ("LOGNAME", "USER", "LNAME", "USERNAME", "SUDO_USER")
HOSTS = ("HOSTNAME", "HOST", "COMPUTERNAME")

WEB = r"\b(?:https?|ftps?|ssh|git|s3|gs|hf|tcp|grpc|redis|postgres(?:ql)?)(?:\+\w+)?://[^\s'\"<>]+"
# A user's file as a module has its path in its name (`backends.files`).
MODULE = re.compile(rf"\b{re.escape(files.__name__)}\.(?:[0-9a-f]{{2}})+")
FILE_URL = re.compile(r"\bfile:(?://[^/\s'\"]*)?(?=/)", re.IGNORECASE)
# A character of a folder's name: brackets and commas only where they stand within names, not around them.
LETTER = r"(?:[^\s/\\'\"`,:;()<>|]|\([^()/\s]*\)|,(?=[^\s/]))"
STOP = (
    r"(?:and|or|in|at|is|are|was|for|with|while|to|of|the|a|an|from|than|not|as|on|but|by|has|have|vs|after|before|"
    r"via|into|when|that|which|needs?|failed|during)"
)
# A further word of a name with spaces, unless the word before has an extension (x.so) or the sentence continues.
WORD = rf"(?<!\.\w)(?<!\.\w\w)(?<!\.\w\w\w) (?!{STOP}\b){LETTER}+"
FOLDERS = rf"(?:(?=[\w.(@+$-]){LETTER}+(?:{WORD}){{0,3}}/+)+"
BEFORE = r"(?:~[\w.-]*|\$\w+|\$\{\w+\}|%\w+%|(?<![A-Za-z])[A-Za-z]:)?"
OPTION = r"(?:(?<=\s)|^)--?[A-Za-z]{1,12}(?=/)"
POSIX = re.compile(rf"(?P<option>{OPTION})?(?(option)|(?<![\w.)\]}}/])){BEFORE}/+{FOLDERS}", re.MULTILINE)
QUOTED = re.compile(r"(?P<quote>['\"`])(?:~[\w.-]*|[A-Za-z]:)?/(?=[^\s/])[^'\"`\n]*/(?=[^'\"`\n]*(?P=quote))")
WINDOWS = re.compile(r"(?<![A-Za-z])(?:[A-Za-z]:|\\\\+[\w.?$-]{2,})\\+(?:[^\\/:*?\"<>|\n]+[\\/]+)*")
HOME = re.compile(
    rf"(?<![\w.)\]}}])/+(?:home|Users)/+[\w.-]+(?![\w/.-]|(?:{WORD}){{1,3}}/)|"
    r"(?<![\w/])~[A-Za-z_][\w.-]*(?![\w/.-])"
)
HOME_OF_WINDOWS = re.compile(r"(?<![A-Za-z])[A-Za-z]:[\\/]+Users[\\/]+[\w.-]+(?![\w\\/])", re.IGNORECASE)


def without_paths(text: str) -> str:
    """Shorten every absolute path in `text` to its last name; remove passwords and names of user and host."""
    if len(text) > MOST:
        text = f"{text[:MOST]} … and {len(text) - MOST} more letters"
    text = MODULE.sub(lambda module: files.file_of(module[0]).stem, text)
    text = FILE_URL.sub("", without_passwords(text))
    parts = re.split(f"({WEB})", text)
    parts[::2] = [_without_folders(part) for part in parts[::2]]
    text = "".join(parts)
    for pattern, instead in _own_names():
        text = pattern.sub(instead, text)
    return text


def _without_folders(text: str) -> str:
    for folder in _own_folders():
        text = folder.sub("/_/", text)  # a plain folder name, which is removed with the names behind it
    text = QUOTED.sub(lambda match: match["quote"], text)
    text = HOME.sub("~", HOME_OF_WINDOWS.sub("~", text))
    text = WINDOWS.sub("", text)
    return POSIX.sub(lambda match: match["option"] or "", text)


def _own_folders() -> Iterator[re.Pattern[str]]:
    """Patterns of folders that are known here, whatever characters their names have."""
    found = {_folder(Path.cwd), _folder(Path.home)}
    for folder in sorted((one for one in found if one), key=len, reverse=True):
        parts = [re.escape(part) for part in folder.split("/") if part]
        if parts:
            yield re.compile("/+" + "/+".join(parts) + "/+")


def _folder(find: object) -> str:
    try:
        return str(find())  # type: ignore[operator]  # given a function
    except (OSError, RuntimeError):  # the folder does not exist, or the user has no home
        return ""


@cache
def _own_names() -> tuple[tuple[re.Pattern[str], str], ...]:
    return own_names(os.environ)


def own_names(environment: Mapping[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Return patterns of the names of the user and of the machine, each with its replacement.

    Args:
        environment: variables to read; the system's own data are read too.
    """
    users = {environment.get(name, "") for name in USERS} | set(_account()) | {Path(environment.get("HOME", "")).name}
    hosts = {environment.get(name, "") for name in HOSTS} | {socket.gethostname()}
    hosts |= {host.partition(".")[0] for host in hosts}
    found = [(name, "<host>", r"(?:\.[A-Za-z][\w-]*)*") for name in hosts]
    found += [(name, "<user>", "") for name in users]
    return tuple(
        (re.compile(rf"(?<![\w-]){re.escape(name)}{more}(?![\w-])", re.IGNORECASE), instead)
        for name, instead, more in sorted(found, key=lambda one: -len(one[0]))
        if len(name) >= SHORTEST and name.casefold() not in NOBODY and not name.isdigit()
    )


def _account() -> tuple[str, ...]:
    """Return the user's name and full name, as known to the system."""
    try:
        import pwd

        account = pwd.getpwuid(os.getuid())
    except (ImportError, KeyError):  # not a Unix, or a container's user without an account
        return ()
    return account.pw_name, account.pw_gecos.partition(",")[0]
