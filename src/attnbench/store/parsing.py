"""JSON from outside: numbers that are quantities, nothing too deep, and one line where it is cut or spoilt."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from attnbench.errors import RunFileError, refusal

LARGEST = 1e100
SMALLEST = 1e-100
"Of all numbers of a file, the one refused and the other read as 0: what is computed from them stays finite."
EXTREME = re.compile(r"[eE][+-]?[0-9]{3}|[0-9]{90}")


def parse(text: str, who: str, accepted: str) -> Any:
    """Data of a JSON document.

    Args:
        text: of the document.
        who: is named in errors.
        accepted: what it should have been, for errors.

    Raises:
        RunFileError: it is cut short, no JSON, nested too deeply, or holds a number that no quantity has.
    """
    # The usual file has no such number, and is read by a quicker reader.
    parse_float, parse_int = (_float, _int) if EXTREME.search(text) else (None, None)
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=parse_float, parse_int=parse_int)
    except json.JSONDecodeError as error:
        whole = text.rstrip().endswith("}") and text[error.pos :].strip()
        cut = text.lstrip().startswith("{") and not whole
        wrong = "is cut short" if cut else f"is not JSON ({error.msg})"
        place = f"{error.lineno}, column {error.colno}"
        raise RunFileError(refusal(who, "line", place, wrong, accepted)) from None
    except RecursionError:
        raise RunFileError(f"{who}: its content is nested too deeply; {accepted}") from None
    except ValueError as error:
        raise RunFileError(f"{who}: its content cannot be read ({error}); {accepted}") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if abs(value) >= LARGEST:
        raise ValueError(f"{text[:20]} is larger than any quantity")
    return value if abs(value) >= SMALLEST else 0.0


def _int(text: str) -> int:
    _float(text)
    return int(text)
