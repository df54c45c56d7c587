"""One look for all figures."""

from __future__ import annotations

from typing import Any

from gnvpro.data.extras import need

# Of Okabe and Ito, told apart by colour-blind readers.
COLOURS = {
    "gnvpro": "#0072B2",
    "lbfgs-vpro": "#009E73",
    "gauss-newton": "#D55E00",
    "adam": "#E69F00",
    "nesterov": "#CC79A7",
}
MARKERS = {"gnvpro": "o", "lbfgs-vpro": "s", "gauss-newton": "^", "adam": "D", "nesterov": "v"}


def new_figure(width: float, height: float) -> Any:
    """An empty figure in inches, laid out so that nothing overlaps."""
    return need("matplotlib.figure", "plot").Figure(figsize=(width, height), layout="constrained", dpi=130)
