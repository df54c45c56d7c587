"""The equations by name, each with its published number.

The first six are the problems in the logs of f-dangel/kfac-pinns-experiments (float64, a GPU, the best of about fifty tuned
runs for each optimiser): root mean square errors there, relative errors (L2) for the others. Where no solution is known in
closed form it is computed (`references`).
"""

from __future__ import annotations

from gnvpro.experiments.equations.elements import helmholtz2d, inverse_diffusion, l_shape
from gnvpro.experiments.equations.posed import CatalogueEntry
from gnvpro.experiments.equations.smooth import DEEP, heat, poisson2d, poisson5d
from gnvpro.experiments.equations.transport import allen_cahn, burgers, convection

GPU = "second-order optimisers on a GPU"

EQUATIONS: dict[str, CatalogueEntry] = {
    problem.name: problem
    for problem in (
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
            "Burgers, viscosity .01/pi",
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
            "tanh 20-20-20 on a periodic layer, beside the kink of its start, 1000 + 200 points",
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
