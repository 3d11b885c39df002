"""A run as a pandas DataFrame, with the columns of the CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnbench.errors import Unavailable
from attnbench.record import Run
from attnbench.store.rows import columns, rows

if TYPE_CHECKING:
    from pandas import DataFrame


def to_pandas(run: Run) -> DataFrame:
    """Return one row per record with the columns of `store.rows`; missing values are NaN or None.

    Raises:
        Unavailable: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        todo = "pip install 'attnbench[pandas]'"
        raise Unavailable(f"to_pandas: module=pandas is not installed; {todo}") from None
    return pandas.DataFrame(rows(run), columns=columns(run))
