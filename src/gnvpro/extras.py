"""Optional libraries: imported when they are needed; an error names the extra to install if one is missing.

The advice names the libraries of the extra, not `gnvpro[extra]`: `pip install 'matplotlib>=3.8'` works wherever this
package came from, a checkout, a wheel or an index.
"""

from __future__ import annotations

import re
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires
from types import ModuleType


def need(module: str, extra: str) -> ModuleType:
    """Import and return a module, or raise an ImportError that names the extra of this package to install.

    >>> need("json", "plot").dumps([1])
    '[1]'
    """
    library = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise  # the library is installed, but something that it needs is not
        raise ImportError(f"{library} is not installed; {how_to_get(extra)}") from error


def how_to_get(extra: str) -> str:
    """Return the command that installs an extra.

    >>> how_to_get("plot")
    "get it with: pip install 'matplotlib>=3.8' (the extra gnvpro[plot])"
    """
    libraries = " ".join(f"{each!r}" for each in requirements(extra))
    return f"get it with: pip install {libraries} (the extra gnvpro[{extra}])"


def requirements(extra: str) -> list[str]:
    """Return the packages of an extra, with extras inside it resolved; the extra itself if none are recorded."""
    found: dict[str, None] = {}
    for line in _recorded():
        name, _, marker = line.partition(";")
        if re.search(rf"""extra\s*==\s*["']{re.escape(extra)}["']""", marker) is None:
            continue
        inside = re.fullmatch(r"gnvpro\[(.+)\]", name.strip())
        parts = [r for part in inside[1].split(",") for r in requirements(part.strip())] if inside else [name.strip()]
        found |= dict.fromkeys(parts)
    return list(found) or [f"gnvpro[{extra}]"]


def _recorded() -> list[str]:
    try:
        return requires("gnvpro") or []
    except PackageNotFoundError:  # run from a checkout that is not installed
        return []
