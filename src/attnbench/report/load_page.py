"""The result of a load as one self-contained page: the chart as an image, the tables, the notes."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from attnbench.presentation.load import Table, notes, sentence, tables, title_of
from attnbench.report.libraries import require
from attnbench.report.load_chart import figure
from attnbench.report.plots import LIBRARIES, inline
from attnbench.store.load_file import LoadRun
from attnbench.text import for_terminal

WHO = "load"
STYLE = """
:root { color-scheme: light dark; --quiet: light-dark(#59636e, #9aa4af); --grid: light-dark(#e3e7eb, #30363d);
  --page: light-dark(#ffffff, #0d1117); --shade: light-dark(rgb(31 35 40 / .22), rgb(230 237 243 / .22)); }
body { font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif;
  color: light-dark(#1f2328, #e6edf3); background: var(--page); margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
code { background: light-dark(#f3f4f6, #151b23); overflow-wrap: anywhere; padding: .1rem .3rem; }
/* Content hidden at the right is indicated by a shadow, which the end of the content covers. */
div.wide { overflow-x: auto; background:
  linear-gradient(var(--page), var(--page)) right / 1.6rem 100% no-repeat local,
  linear-gradient(to left, var(--shade), transparent) right / 1.6rem 100% no-repeat scroll; }
svg { max-width: 100%; min-width: 34rem; height: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .2rem .8rem .2rem 0; white-space: nowrap; }
th { color: var(--quiet); font-weight: normal; } th:first-child, td:first-child { text-align: left; }
tr + tr td { border-top: 1px solid var(--grid); }
"""


def page(run: LoadRun) -> str:
    """Return the text of the file.

    Raises:
        Unavailable: the chart library is missing; the message has the command that installs it.
    """
    require(WHO, LIBRARIES)
    drawn = figure(run)
    parts = [f"<h1>{_text(title_of(run))}</h1>", f"<p><code>{_text(run.command)}</code></p>"]
    parts += [f"<p><strong>{_text(sentence(one))}</strong></p>" for one in run.highest]
    if drawn is not None:
        parts.append(f'<div class="wide" role="img" aria-label="{_text(drawn.alt)}">{inline(drawn)}</div>')
    parts += map(_table, tables(run))
    said = "".join(f"<li>{_text(one)}</li>" for one in notes(run))
    parts += [f"<h2>Notes</h2><ul>{said}</ul>"] if said else []
    title = _text(f"attnbench load {run.model} {run.id}")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n<body>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _table(found: Table) -> str:
    rows = "".join(_row("td", row) for row in found.rows)
    title = _text(found.title[:1].upper() + found.title[1:])
    return f'<h2>{title}</h2><div class="wide"><table>{_row("th", found.heading)}{rows}</table></div>'


def _row(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{_text(cell)}</{tag}>" for cell in cells) + "</tr>"


def _text(text: str) -> str:
    return escape(for_terminal(text))
