"""One page in one file: sections of tables, lists and pictures, put into a template with its style and script.

All text is escaped here; what is HTML already is a `Markup`. The page needs no network.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from io import BytesIO
from pathlib import Path
from typing import Any

TEMPLATE = ("report.html", "report.css", "report.js")


class Markup(str):
    """Text that is HTML already."""


@dataclass(frozen=True)
class Section:
    """A part of a page, and its title in the contents."""

    anchor: str
    title: str
    content: Markup


@dataclass(frozen=True)
class TableRow:
    """A row of a table: its first cell is a heading. Attributes are of the row's element."""

    cells: Sequence[str]
    attributes: Mapping[str, str] = field(default_factory=dict)


def escaped(text: str) -> Markup:
    """Return text as HTML."""
    return text if isinstance(text, Markup) else Markup(html.escape(text))


def section(anchor: str, title: str, *parts: str) -> Section:
    """Return a section with its heading above its parts."""
    body = "".join(map(escaped, parts))
    return Section(
        anchor, title, Markup(f'<section id="{html.escape(anchor)}"><h2>{html.escape(title)}</h2>{body}</section>')
    )


def paragraph(text: str) -> Markup:
    """Return a paragraph."""
    return Markup(f"<p>{escaped(text)}</p>")


def table(caption: str, head: Sequence[str], rows: Iterable[TableRow], kind: str = "") -> Markup:
    """Return a table that scrolls by itself if it is wider than the window."""
    top = "".join(f"<th>{escaped(cell)}</th>" for cell in head)
    body = "".join(map(_row, rows))
    above = f"<caption>{escaped(caption)}</caption>" if caption else ""
    style = f' class="{kind}"' if kind else ""
    return Markup(
        f'<div class="wide"><table{style}>{above}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _row(row: TableRow) -> str:
    given = "".join(f' {name}="{html.escape(value)}"' for name, value in row.attributes.items())
    first, *rest = map(escaped, row.cells)
    return f"<tr{given}><th>{first}</th>{''.join(f'<td>{cell}</td>' for cell in rest)}</tr>"


def bullets(intro: str, items: Iterable[str], kind: str = "") -> Markup:
    """Return a list below a sentence; nothing if the list is empty."""
    listed = "".join(f"<li>{escaped(item)}</li>" for item in items)
    if not listed:
        return Markup("")
    style = f' class="{kind}"' if kind else ""
    return Markup(f"<div{style}><p>{escaped(intro)}</p><ul>{listed}</ul></div>")


def picture(png: bytes, caption: str = "", file: str = "", narrow: bool = False) -> Markup:
    """Return a picture inside the page, with its caption and the name of the file that also holds it."""
    text, content = html.escape(caption), base64.b64encode(png).decode()
    style = ' class="narrow"' if narrow else ""
    image = f'<div class="picture"><img{style} src="data:image/png;base64,{content}" alt="{text}"></div>'
    note = f" <small>({html.escape(file)})</small>" if file else ""
    below = f"<figcaption>{text}{note}</figcaption>" if text else ""
    return Markup(f"<figure>{image}{below}</figure>")


def drawn(figure: Any) -> bytes:
    """Return a figure as the bytes of a PNG file."""
    file = BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def page(
    title: str, intro: str, sections: Sequence[Section], data: Mapping[str, Any], problems: Sequence[str] = ()
) -> str:
    """Return the text of a page; `data` are the curves for its script."""
    parts = {name: resources.files(__package__).joinpath(name).read_text() for name in TEMPLATE}
    links = (f'<a href="#{html.escape(each.anchor)}">{html.escape(each.title)}</a>' for each in sections)
    contents = {
        "STYLE": parts["report.css"],
        "SCRIPT": parts["report.js"],
        "TITLE": html.escape(title),
        "INTRO": html.escape(intro),
        "CONTENTS": "".join(links) if len(sections) > 1 else "",
        "PROBLEMS": bullets("Left out:", problems, "problems"),
        "SECTIONS": "\n".join(each.content for each in sections),
        "DATA": json.dumps(data, allow_nan=False).replace("<", "\\u003c"),  # so that no text in it can end the script
    }
    # at once: a mark that stands in some content is not one
    return re.sub(r"<!--([A-Z]+)-->|/\*([A-Z]+)\*/", lambda mark: contents[mark[1] or mark[2]], parts["report.html"])


def own_file(path: Path) -> Path:
    """Return the path after removing a symbolic link there, so that a page is written to this path only."""
    if path.is_symlink():
        path.unlink()
    return path
