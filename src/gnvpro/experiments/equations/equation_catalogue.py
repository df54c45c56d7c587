"""The equations by name, each with its published number.

The first six are the problems in the logs of f-dangel/kfac-pinns-experiments (float64, a GPU, the best of about fifty tuned
runs for each optimiser): root mean square errors there, relative errors (L2) for the others. `CHOSEN` are the problems whose
network the solver chooses. Where no solution is known in closed form it is computed (`references`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gnvpro.experiments.equations import chosen
from gnvpro.experiments.equations.elements import helmholtz2d, inverse_diffusion, l_shape
from gnvpro.experiments.equations.posed import CatalogueEntry, PosedEquations
from gnvpro.experiments.equations.smooth import DEEP, heat, poisson2d, poisson5d
from gnvpro.experiments.equations.transport import allen_cahn, burgers, convection

GPU = "second-order optimisers on a GPU"


def _chosen(
    name: str,
    title: str,
    pose: Callable[[int], PosedEquations],
    seconds: float,
    published: str,
    goal: float,
    axes: tuple[str, str] = ("x", "y"),
) -> CatalogueEntry:
    """A problem of the table of 2026: relative errors, the network chosen by the solver."""
    summary = "network chosen by pde.solve"
    return CatalogueEntry(name, title, summary, pose, seconds, published, goal=goal, relative=True, axes=axes)


TIME, LINE = ("t", "x"), ("t", "t")
CHOSEN = (
    _chosen(
        "helmholtz-1-4", "Helmholtz, (1, 4)", lambda s: chosen.helmholtz(s, 1, 4, 1.0), 30.0, "2e-9 in 540 s", 1e-12
    ),
    _chosen("helmholtz-6-6", "Helmholtz, (6, 6)", lambda s: chosen.helmholtz(s, 6, 6, 1.0), 60.0, "1e-7", 1e-10),
    _chosen("helmholtz-5-3", "Helmholtz, (5, 3), k = 2", lambda s: chosen.helmholtz(s, 5, 3, 2.0), 60.0, "-", 1e-10),
    _chosen("chirp", "Helmholtz with a chirp", chosen.chirp, 60.0, "-", 6e-5),
    _chosen("nonlinear-helmholtz", "Nonlinear Helmholtz", chosen.nonlinear_helmholtz, 60.0, "1e-8 to 1e-10", 1e-10),
    _chosen("wave", "Wave, c = 2", lambda s: chosen.wave(s, 2.0, 4), 60.0, "1e-15 in 635 s (H100)", 1e-12, TIME),
    _chosen("wave-5", "Wave, c = 1.5, five half-waves", lambda s: chosen.wave(s, 1.5, 5), 60.0, "-", 1e-12, TIME),
    _chosen("klein-gordon", "Klein-Gordon", chosen.klein_gordon, 60.0, "1e-8 to 1e-10", 1e-10, TIME),
    _chosen("sine-gordon", "Sine-Gordon, a breather", chosen.sine_gordon, 60.0, "1e-8 to 1e-10", 1e-10, TIME),
    _chosen(
        "burgers-chosen",
        "Burgers, viscosity 0.01/pi, periodic",
        lambda s: chosen.burgers(s, 0.01 / math.pi),
        120.0,
        "8e-9; 1.6e-8 in 2,900 s (GPU)",
        1e-6,
        TIME,
    ),
    _chosen(
        "burgers-smooth",
        "Burgers, viscosity 0.01, periodic",
        lambda s: chosen.burgers(s, 0.01),
        120.0,
        "2e-12 in 144 s (H100)",
        1e-7,
        TIME,
    ),
    _chosen("allen-cahn-chosen", "Allen-Cahn, periodic", chosen.allen_cahn, 120.0, "9e-7 to 2e-6", 1e-5, TIME),
    _chosen("kdv", "Korteweg-de Vries", chosen.korteweg_de_vries, 120.0, "8e-11 in 1,210 s (H100)", 1e-5, TIME),
    _chosen("lotka-volterra", "Lotka-Volterra", chosen.lotka_volterra, 30.0, "1e-8 in 0.1 s (solve_ivp)", 1e-8, LINE),
    _chosen("van-der-pol", "Van der Pol, mu = 10", chosen.van_der_pol, 30.0, "1e-8 in 0.1 s (solve_ivp)", 1e-6, LINE),
    _chosen("robertson", "Robertson's reaction", chosen.robertson, 30.0, "1e-8 in 0.1 s (solve_ivp)", 1e-4, LINE),
    _chosen("kovasznay", "Kovasznay's flow, Re = 40", chosen.kovasznay, 60.0, "-", 1e-9),
    _chosen("inverse-burgers", "Coefficients of Burgers' equation", chosen.inverse_burgers, 60.0, "-", 1e-2, TIME),
)

EQUATIONS: dict[str, CatalogueEntry] = {
    problem.name: problem
    for problem in (
        *CHOSEN,
        CatalogueEntry(
            "poisson2d",
            "Poisson, 2 dimensions",
            "tanh 64, 900 + 120 points",
            poisson2d,
            10.0,
            f"6.1e-8 in 468 s ({GPU})",
            goal=1e-8,
        ),
        CatalogueEntry(
            "poisson2d-deep",
            "Poisson, 2 dimensions, deep",
            "tanh 64-64-48-48, 900 + 120 points",
            lambda seed: poisson2d(seed, DEEP),
            60.0,
            f"7.9e-7 in 1000 s ({GPU})",
            goal=1e-7,
        ),
        CatalogueEntry(
            "heat1d",
            "Heat, 1 dimension",
            "tanh 64, 900 + 120 points",
            lambda seed: heat(seed, 1),
            15.0,
            f"2.8e-8 in 923 s ({GPU})",
            goal=1e-8,
            axes=("t", "x"),
        ),
        CatalogueEntry(
            "heat1d-deep",
            "Heat, 1 dimension, deep",
            "tanh 64-64-48-48, 900 + 120 points",
            lambda seed: heat(seed, 1, DEEP),
            100.0,
            f"4.3e-8 in 1000 s ({GPU})",
            goal=4e-8,
            axes=("t", "x"),
        ),
        CatalogueEntry(
            "poisson5d",
            "Poisson, 5 dimensions",
            "tanh 64, 3000 + 500 points",
            poisson5d,
            100.0,
            f"6.4e-7 at 100 s, 5.6e-8 at 3000 s ({GPU})",
            goal=5e-7,
        ),
        CatalogueEntry(
            "heat4d",
            "Heat, 4 dimensions",
            "tanh 64, 3000 + 500 points",
            lambda seed: heat(seed, 4),
            300.0,
            f"7.4e-7 in 3000 s ({GPU})",
            goal=7e-7,
            axes=("t", "x"),
        ),
        CatalogueEntry(
            "convection",
            "Convection u_t + 40 u_x = 0",
            "sine 64, 3000 + 200 + 200 points",
            convection,
            60.0,
            "about 2e-3 (reported for ADAM, L-BFGS and NNCG)",
            goal=1e-5,
            relative=True,
            axes=("t", "x"),
        ),
        CatalogueEntry(
            "convection-plain",
            "Convection, weights as torch draws them",
            "sine 64, 3000 + 200 + 200 points",
            lambda seed: convection(seed, spread=None),
            60.0,
            "about 2e-3 (reported for ADAM, L-BFGS and NNCG)",
            goal=1e-5,
            relative=True,
            axes=("t", "x"),
        ),
        CatalogueEntry(
            "burgers",
            "Burgers, viscosity 0.01/pi",
            "tanh 20-20-20, 1000 + 260 points",
            burgers,
            120.0,
            "2e-5 to 5e-4 (GPU)",
            goal=0.0001,
            relative=True,
            axes=("t", "x"),
        ),
        CatalogueEntry(
            "allen-cahn",
            "Allen-Cahn, 1 dimension",
            "tanh 20-20-20 on a periodic layer, plus the kink of its initial values, 1000 + 200 points",
            allen_cahn,
            120.0,
            "5.4e-5 (jaxpi), 2.2e-5 (PirateNet), GPU",
            goal=0.0001,
            relative=True,
            axes=("t", "x"),
        ),
        CatalogueEntry(
            "helmholtz2d",
            "Helmholtz with a source",
            "tanh 100, 2000 + 300 points",
            helmholtz2d,
            30.0,
            "-",
            relative=True,
        ),
        CatalogueEntry(
            "l-shape",
            "Poisson on an L, mixed conditions",
            "tanh 60 and two corner functions, 1500 + 350 points",
            l_shape,
            30.0,
            "-",
            relative=True,
        ),
        CatalogueEntry(
            "inverse-diffusion",
            "A diffusion coefficient from data",
            "tanh 64, 900 + 200 + 16 points",
            inverse_diffusion,
            20.0,
            "-",
            relative=True,
        ),
    )
}
