"""One look for all figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gnvpro.extras import need

# By Okabe and Ito, safe for colour-blind readers.
COLOURS = {
    "gnvpro": "#0072B2",
    "lbfgs-vpro": "#009E73",
    "adam-vpro": "#56B4E9",
    "gauss-newton": "#D55E00",
    "adam": "#E69F00",
    "nesterov": "#CC79A7",
}
MARKERS = {"gnvpro": "o", "lbfgs-vpro": "s", "adam-vpro": "P", "gauss-newton": "^", "adam": "D", "nesterov": "v"}


def colour(method: str, settings: str, all_settings: Sequence[str]) -> str:
    """The method's colour; darker and lighter for the second and third of several settings."""
    red, green, blue = (int(COLOURS[method][i : i + 2], 16) for i in (1, 3, 5))
    share, towards = ((0.0, 0), (0.55, 0), (0.5, 255))[list(all_settings).index(settings) % 3]
    mixed = [round((1 - share) * part + share * towards) for part in (red, green, blue)]
    return "#{:02X}{:02X}{:02X}".format(*mixed)


def new_figure(width: float, height: float) -> Any:
    """An empty figure in inches, laid out so that nothing overlaps."""
    return need("matplotlib.figure", "plot").Figure(figsize=(width, height), layout="constrained", dpi=130)
