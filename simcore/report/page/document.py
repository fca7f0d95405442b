"""The frame of a page: style, script and data in one HTML file."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from simcore.files import whole_text

_FOLDER = "simcore.report.page"
#: What a table shows in a cell: a text, or one with the number that it stands for.
Cell = str | tuple[str, float]


def write_document(path: Path, title: str, sections: Iterable[str], data: Mapping[str, Any]) -> None:
    """Write a page of ``sections`` (HTML), with ``data`` for its script.  InputError where it cannot be."""
    whole_text(path, document(title, sections, data))


def document(title: str, sections: Iterable[str], data: Mapping[str, Any]) -> str:
    """The page as text."""
    packed = base64.b64encode(zlib.compress(json.dumps(data, separators=(",", ":")).encode(), 9)).decode()
    licence = " ".join(_asset("vendor/LICENSE-uPlot").split())
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            # An empty icon: a browser asks a server for one otherwise.
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title>",
            f"<style>{_asset('vendor/uPlot.min.css')}{_asset('page.css')}</style>",
            "</head><body>",
            f"<main>{''.join(sections)}</main>",
            f'<script type="application/octet-stream" id="data">{packed}</script>',
            f"<script>/* uPlot: {licence} */\n{_asset('vendor/uPlot.iife.min.js')}</script>",
            f"<script>{_asset('page.js')}</script>",
            "</body></html>\n",
        ]
    )


def _asset(name: str) -> str:
    return resources.files(_FOLDER).joinpath(name).read_text(encoding="utf-8")


def section(name: str, heading: str, *content: str, intro: str = "") -> str:
    """A part of the page that can be linked to by its ``name``."""
    said = f'<p class="intro">{escape(intro)}</p>' if intro else ""
    return (
        f'<section id="{name}" aria-labelledby="{name}-h"><h2 id="{name}-h">{escape(heading)}</h2>{said}'
        f"{''.join(content)}</section>"
    )


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    caption: str = "",
    sortable: bool = False,
) -> str:
    """A table whose first column heads its rows; a cell may be (text, number): numbers are what it sorts by.

    Texts are escaped.  ``caption`` is read out, and not shown.
    """
    kind = ' class="sortable"' if sortable else ""
    out = [f"<table{kind}>"]
    out.append(f'<caption class="unseen">{escape(caption)}</caption>' if caption else "")
    body = list(rows)
    numbers = [not isinstance(cell, str) for cell in body[0]] if body else [False] * len(head)
    cells = "".join(
        f'<th scope="col"{" class=n" if number else ""}>{escape(one)}</th>'
        for one, number in zip(head, numbers, strict=True)
    )
    out.append(f"<thead><tr>{cells}</tr></thead><tbody>")
    for first, *rest in body:
        text = first if isinstance(first, str) else first[0]
        line = [f'<th scope="row">{escape(text)}</th>']
        for cell in rest:
            if isinstance(cell, str):
                line.append(f"<td>{escape(cell)}</td>")
            else:
                line.append(f'<td class="n" data-v="{cell[1]!r}">{escape(cell[0])}</td>')
        out.append(f"<tr>{''.join(line)}</tr>")
    return scrolled("".join([*out, "</tbody></table>"]), caption or head[0])


def scrolled(content: str, label: str) -> str:
    """Something that may be wider than the page: it scrolls in itself, by keys too."""
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(label)}">{content}</div>'


def shortened(head: Sequence[str], rows: Sequence[Sequence[Cell]], shown: int, *, caption: str = "") -> str:
    """A table that can be sorted, of whose rows those behind the first are shown when they are asked for."""
    first = table(head, rows[:shown], caption=caption, sortable=True)
    rest = rows[shown:]
    return first + (
        details(f"{len(rest)} more", table(head, rest, caption=caption, sortable=True)) if rest else ""
    )


def bars(rows: Sequence[tuple[str, str, float, float, str]], caption: str) -> str:
    """Horizontal bars: (label, value as text, where it begins and how long it is as shares, kind)."""
    out = [f'<ol class="bars" aria-label="{escape(caption)}">']
    for label, value, begin, length, kind in rows:
        left, width = 100 * (begin if length >= 0 else begin + length), max(100 * abs(length), 0.08)
        out.append(
            f'<li><span class="l">{escape(label)}</span><span class="b" aria-hidden="true">'
            f'<i class="{kind}" style="left:{left:.3f}%;width:{width:.3f}%"></i></span>'
            f'<span class="v">{escape(value)}</span></li>'
        )
    return "".join([*out, "</ol>"])


def details(summary: str, *content: str, name: str = "", opened: bool = False) -> str:
    """Something that is shown when it is asked for."""
    start = f"<details{f' id={name}' if name else ''}{' open' if opened else ''}>"
    return f"{start}<summary>{escape(summary)}</summary>{''.join(content)}</details>"


def lines(texts: Iterable[str], kind: str = "plain") -> str:
    """Texts one below the other."""
    return f'<ul class="{kind}">' + "".join(f"<li>{escape(one)}</li>" for one in texts) + "</ul>"
