"""An extension of griffe for the site: doctests in the running text of a docstring are shown as code.

Markdown would take their `>>>` for quotations.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

PARAGRAPH = re.compile(r"^(?P<indent>[ ]*)>>> .*(?:\n[ ]*\S.*)*", flags=re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts a fence around every doctest."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of a module, class or function."""
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            obj.docstring.value = PARAGRAPH.sub(fenced, obj.docstring.value)


def fenced(match: re.Match[str]) -> str:
    """The doctest between fences of its own indentation."""
    indent = match["indent"]
    return f"{indent}```pycon\n{match[0]}\n{indent}```"
