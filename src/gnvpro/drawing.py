"""Parts shared by all figures: a figure that shows itself in a notebook, readable logarithmic axes, colours.

matplotlib is imported when the first figure is made: nothing else in the library needs it.
"""

from __future__ import annotations

import math
import sys
from io import BytesIO
from typing import TYPE_CHECKING, Any

from gnvpro.extras import need

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# By Okabe and Ito, safe for colour-blind readers.
BLUE, ORANGE, GREEN, VERMILION, PINK, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#666666"
FEW_DECADES = 3.5  # on an axis; then ticks at 1, 2, 5 are labelled, not only powers of ten


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in inches, laid out so that nothing overlaps.

    If pyplot is in use, it belongs to pyplot, so that `pyplot.show()` shows it; else it draws itself in a notebook.
    """
    module: Any = need("matplotlib.figure", "plot")

    class SelfShown(module.Figure):  # type: ignore[misc]  # matplotlib may be missing
        """A figure that a notebook can show without pyplot."""

        def _repr_png_(self) -> bytes:
            file = BytesIO()
            self.savefig(file, format="png")
            return file.getvalue()

    pyplot = sys.modules.get("matplotlib.pyplot")
    settings = {"figsize": (width, height), "layout": "constrained", "dpi": 130}
    if pyplot is not None and "inline" not in sys.modules["matplotlib"].get_backend():
        figure: Figure = pyplot.figure(**settings)
        return figure
    return SelfShown(**settings)


def page_figure(width: float, height: float) -> Any:
    """Return an empty figure in inches for a page or a file: pyplot does not know of it."""
    return need("matplotlib.figure", "plot").Figure(figsize=(width, height), layout="constrained", dpi=130)


def plain(text: str) -> str:
    r"""Return text that matplotlib draws literally: no formula between dollar signs, no line break or control character.

    >>> print(plain("cost in $"))
    cost in \$
    """
    return "".join(c if c.isprintable() else " " for c in text).replace("$", r"\$")


def readable_log_axis(axis: Any, low: float, high: float) -> None:
    """Enough labelled ticks on a logarithmic axis, however short it is, and not too many."""
    ticker = need("matplotlib.ticker", "plot")
    short = math.log10(high / low) < FEW_DECADES
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if short else (1,), numticks=12))
    axis.set_minor_formatter(ticker.NullFormatter())
    if short:
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, position: f"{value:g}"))


def spans_decades(values: list[float]) -> bool:
    """Return whether positive values span so many decades that a logarithmic axis shows them better.

    >>> spans_decades([1.0, 20.0]), spans_decades([0.0, 20.0]), spans_decades([1.0, 2.0])
    (True, False, False)
    """
    return bool(values) and min(values) > 0 and max(values) > 10 * min(values)
