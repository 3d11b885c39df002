"""Parse untrusted JSON: no impossible numbers, limited nesting, and a one-line error if truncated or malformed."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from attnbench.errors import RunFileError, refusal

LARGEST = 1e100
SMALLEST = 1e-100
"Limits of numbers in a file; larger ones are refused, smaller ones read as 0, so that results stay finite."
EXTREME = re.compile(r"[eE][+-]?[0-9]{3}|[0-9]{90}")


def parse(text: str, who: str, accepted: str) -> Any:
    """Return the data of a JSON document.

    Args:
        text: text of the document.
        who: subject of error messages.
        accepted: the expected document, for error messages.

    Raises:
        RunFileError: it is truncated, not JSON, nested too deeply, or holds an impossible number.
    """
    # Most files have no such number and are parsed without Python callbacks, which is faster.
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
