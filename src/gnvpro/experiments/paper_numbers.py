"""Numbers reported in the paper, shown next to ours and never mixed with them.

Relative errors are means over the samples of a set, with their standard deviations; accuracies are fractions.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reported:
    """One row of the paper: its budget, and mean and deviation (or accuracy and None) for each set that it reports."""

    work: float | None
    train: tuple[float, float | None] | None = None
    validation: tuple[float, float | None] | None = None
    test: tuple[float, float | None] | None = None
    note: str = ""


PAPER: dict[str, dict[str, Reported]] = {
    "cdr": {
        "gauss-newton": Reported(600, (0.0115, 0.0055), (0.0138, 0.0075), (0.0142, 0.0072)),
        "adam": Reported(1200, (0.0091, 0.0045), (0.0114, 0.0086), (0.0116, 0.0072)),
        "lbfgs-vpro": Reported(600, (0.0171, 0.0102), (0.0219, 0.0127), (0.0260, 0.0187)),
        "gnvpro": Reported(600, (0.0045, 0.0021), (0.0057, 0.0033), (0.0060, 0.0032)),
    },
    "dcr": {
        "gauss-newton": Reported(1200, (0.3837, 0.8384), (0.3650, 0.6920), (0.3517, 0.6638)),
        "adam": Reported(2400, (0.2994, 0.3652), (0.2839, 0.2776), (0.2904, 0.3256)),
        "lbfgs-vpro": Reported(1200, (0.0786, 0.1878), (0.0763, 0.1887), (0.0747, 0.1625)),
        "gnvpro": Reported(1200, (0.0198, 0.0311), (0.0191, 0.0258), (0.0199, 0.0322)),
    },
    "indian-pines": {
        "gnvpro": Reported(1500, note="test accuracy more than 2 points above ADAM's"),
    },
    "cifar10": {
        "gauss-newton": Reported(400, note="below 30% on the training set"),
        "nesterov": Reported(400, (0.7650, None), None, (0.7295, None)),
        "adam": Reported(400, (0.6966, None), None, (0.6634, None)),
        "lbfgs-vpro": Reported(400, None, None, (0.6728, None)),
        "gnvpro": Reported(400, None, None, (0.6805, None)),
    },
}

# Share of its time that GNvpro spends on eliminating the head.
INNER_SHARE = {"indian-pines": 0.064, "cifar10": 0.142}
