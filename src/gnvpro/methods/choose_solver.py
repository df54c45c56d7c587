"""Which solver takes the steps of GNvpro, from sizes alone: the whole matrix where it is cheap enough, else the hybrid.

With n samples, m = min(n_targets, n_features) rows a sample (n_features with the residual's coupling) and q directions,

    flops of an iteration    n m q^2 + q^3 / 3                  squaring the Jacobian, one Cholesky factorisation
    bytes held at once       4 matrices of q^2, and the Jacobian rows of one chunk of samples, 2 m q each or more

The dense step is worth far more than a Krylov step wherever it can be had (on the paper's CDR problem a fifth of the error at
the same work, and at the same seconds), so `auto` takes it up to a flat limit of about ten seconds an iteration on one core.
Only at the beginning it is not: see `quick_start`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from gnvpro.objectives.gauss_newton_matrix import Assembler
from gnvpro.network.subspace import choose, moving_directions
from gnvpro.head.eliminator import Eliminator
from gnvpro.head.least_squares import LeastSquares
from gnvpro.problem.misfit import Misfit
from gnvpro.head.newton import NewtonKrylov
from gnvpro.objectives.reduced import Problem

SOLVERS = ("auto", "dense", "hybrid", "krylov")
MOST_DIRECTIONS = 3000
MOST_FLOPS = 5e11
MOST_EIGENVALUES = 500  # that a radius may ask for at every step: 0.07 s on one core
SHARE = 0.5  # of the memory, for the matrices and the rows of the Jacobian; the rest is for passes over the samples


@dataclass(frozen=True)
class DenseSettings:
    """The switches of the dense solver, at their measured defaults.

    >>> DenseSettings(damping=True).damping  # whatever the loss
    True
    """

    damping: bool | None = None  # Nielsen's, else a radius; by default for least squares and for many directions
    scaling: float | None = None  # of the norm, by curvature (see `dense`); by default 1/2 for least squares, else 0
    geodesic: bool | None = None  # the geodesic correction; by default for least squares only
    full: bool | None = (
        None  # with the residual's coupling; by default not for least squares (Kaufman), where it is small
    )

    def resolved(self, misfit: Misfit, directions: int) -> DenseSettings:
        """With the defaults that depend on the problem filled in."""
        # A radius took .9 of the seconds of the damping on the ellipse and .8 on peaks, three and two seeds.
        # Scaling: CDR with the paper's levels is best at 3/4 (test errors .0013-.0015, 1/2: .0015-.0020, 0: .0017-.0020),
        # but at 3/4 one of five seeds on the shipped CDR set, deep from the start, ends at .016 instead of .0018.
        # For cross-entropy the probe costs an inner solve as well and gained nothing on the ellipse; the residual's
        # coupling decided there between .035 and .0001. For least squares it costs twice the time and gains nothing.
        return replace(
            self,
            geodesic=misfit.isotropic if self.geodesic is None else self.geodesic,
            full=not misfit.isotropic if self.full is None else self.full,
            scaling=0.5 * misfit.isotropic if self.scaling is None else self.scaling,
            damping=misfit.isotropic or directions > MOST_EIGENVALUES if self.damping is None else self.damping,
        )


def count_directions(problem: Problem) -> int:
    """In which theta can move the features."""
    network = problem.network
    return moving_directions(network.model, network.parameters, problem.inputs.device).count


def seeds_for(problem: Problem, settings: DenseSettings) -> int:
    """Backward passes for the rows of the Jacobian."""
    network = problem.network
    return network.n_features if settings.full else min(network.n_features, network.n_targets)


def exact_passes(problem: Problem, settings: DenseSettings) -> int:
    """What an exact step makes: the rows of the Jacobian, the trial, the probe of the geodesic correction."""
    return seeds_for(problem, settings) + 1 + bool(settings.geodesic)


def squaring_price(problem: Problem, settings: DenseSettings) -> float:
    """What squaring the Jacobian takes, in passes: n m q^2 flops, at 20 to 100 times the speed of a pass's 2 n n_theta or more.

    Measured, a whole exact step took 36 passes for CDR (by this file 54), 46 for peaks (12), 59 for the regression of the race
    (72), 90 for DCR (123).
    """
    return seeds_for(problem, settings) * count_directions(problem) ** 2 / (100 * problem.network.n_theta)


def rows_that_fit(problem: Problem, settings: DenseSettings, directions: int) -> int:
    """Samples whose Jacobian rows, as made and as gathered, fit beside the matrices into the solver's half of the memory."""
    network, seeds = problem.network, seeds_for(problem, settings)
    made = max(8 * seeds * network.n_theta, network.footprint(problem.inputs, seeds).peak)
    each = made + 8 * seeds * (2 if settings.full else 1) * directions
    room = SHARE * network.memory - 4 * 8 * directions**2
    return int(min(room / max(each, 1.0), 2**62))  # not the samples at hand: batches share their chunks


def obstacle(problem: Problem, settings: DenseSettings) -> str | None:
    """Why the dense solver cannot be used here; None where it can."""
    network = problem.network
    trouble = network.jacobian_obstacle(problem.inputs)
    if trouble is not None:
        return trouble
    directions = count_directions(problem)
    if rows_that_fit(problem, settings, directions) < 1:
        return (
            f"four matrices of {directions} x {directions} and the Jacobian of one sample "
            f"do not fit into half of memory={network.memory:.3g} bytes"
        )
    return None


def choose_solver(problem: Problem, eliminator: Eliminator, settings: DenseSettings) -> str:
    """What `auto` stands for."""
    q = count_directions(problem)
    flops = problem.inputs.shape[0] * seeds_for(problem, settings) * q**2 + q**3 / 3
    small = 0 < q <= MOST_DIRECTIONS and flops <= MOST_FLOPS and not isinstance(eliminator, NewtonKrylov)
    trouble = not small or rowwise_obstacle(problem, eliminator) or obstacle(problem, settings)
    return "hybrid" if trouble else "dense"


def rowwise_obstacle(problem: Problem, eliminator: Eliminator) -> str | None:
    """For least squares the matrix is assembled from an inverse Hessian that acts on rows, which only the SVD gives."""
    if problem.misfit.isotropic and not isinstance(eliminator, LeastSquares):
        return f"for least squares it needs the head eliminated by SVD, the default, not by {type(eliminator).__name__}"
    return None


def pick_solver(solver: str, problem: Problem, eliminator: Eliminator, settings: DenseSettings) -> DenseSettings | None:
    """The settings of the dense solver where it is asked for or best; None for the others."""
    settings = settings.resolved(problem.misfit, count_directions(problem))
    if solver == "dense":
        trouble = rowwise_obstacle(problem, eliminator) or obstacle(problem, settings)
        if trouble is not None:
            raise ValueError(f"solver='dense' cannot be used: {trouble}; use solver='krylov' or 'auto'")
        return settings
    return settings if solver == "auto" and choose_solver(problem, eliminator, settings) == "dense" else None


def make_assembler(problem: Problem, theta: Tensor, settings: DenseSettings) -> Assembler:
    """What assembles the Gauss-Newton matrices of a problem; sets the network's chunks to what the memory holds."""
    network = problem.network
    penalty = problem.theta_penalty.hessian(theta)
    directions = choose(network.model, network.parameters, theta, penalty)
    rows = max(1, rows_that_fit(problem, settings, directions.count))
    network.chunk = min(rows, network.chunk or rows)
    network.share = 1 - SHARE
    inside = directions.reduce(directions.reduce(penalty).T)
    return Assembler(directions, inside, bool(settings.full), SHARE * network.memory / 2)
