"""One look for all figures."""

from __future__ import annotations

from typing import NamedTuple


class Look(NamedTuple):
    """Appearance of a method in print: its title, its colour and its marker."""

    title: str
    colour: str  # by Okabe and Ito, safe for colour-blind readers
    marker: str


# in the order of tables and legends
LOOKS = {
    "gnvpro": Look("GNvpro", "#0072B2", "o"),
    "lbfgs-vpro": Look("L-BFGSvpro", "#009E73", "s"),
    "adam-vpro": Look("ADAMvpro", "#56B4E9", "P"),
    "gauss-newton": Look("Gauss-Newton", "#D55E00", "^"),
    "adam": Look("ADAM", "#E69F00", "D"),
    "nesterov": Look("Nesterov", "#CC79A7", "v"),
}


def shade(colour: str, which: int) -> str:
    """The colour, darker or lighter for the second and third of several settings."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    share, towards = ((0.0, 0), (0.55, 0), (0.5, 255))[which % 3]
    mixed = [round((1 - share) * part + share * towards) for part in (red, green, blue)]
    return "#{:02X}{:02X}{:02X}".format(*mixed)
