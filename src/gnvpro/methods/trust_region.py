"""The trust-region loop as a training method, one class for each way to build the local models.

TrustRegionMethod   Krylov spaces            reduced or full objective
DenseMethod         the whole matrix         reduced
HybridMethod        quasi-Newton directions  reduced; Krylov spaces from time to time
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gnvpro.minimize.quasi_newton import Hybrid
from gnvpro.minimize.krylov import Krylov, KrylovModel
from gnvpro.methods.protocol import Settings, State, Trial
from gnvpro.objectives.reduced import FullPoint, ReducedPoint
from gnvpro.minimize.line_model import SHORTEST, LineModel
from gnvpro.minimize.status import Status
from gnvpro.minimize.step_rules import Bound, Damping, Search
from gnvpro.minimize.trust_region import Point, TrustRegion


@dataclass
class KrylovWithinBudget:
    """Krylov spaces no larger than the work budget leaves room for, the trial and its gradient counted."""

    settings: Settings
    cap: int = 0

    def __call__(self, point: Point) -> KrylovModel:
        """The local model at a point."""
        affordable = max(1, int((self.settings.passes_left() - 2) // 2))
        self.cap = min(self.settings.max_rank, affordable)
        return self.build(point)

    def build(self, point: Point) -> KrylovModel:
        """The local model with the cap as it is: the budget was another when it was built first."""
        return Krylov(self.cap, self.settings.rtol)(point)

    @property
    def pays(self) -> bool:
        """Whether the budget lasts for a space and as many passes again for steps that use what it learnt."""
        return self.settings.passes_left() > 4 * self.settings.max_rank

    def state(self) -> State:
        """The cap."""
        return {"cap": self.cap}

    def resume(self, state: State) -> None:
        """Take up the cap."""
        self.cap = state["cap"]


class TrustRegionMethod:
    """GNvpro and full Gauss-Newton: the same loop and the same Krylov space, on the reduced or on the full objective."""

    solver = "krylov"
    bound_type: type[Damping] | type[Search] = Damping  # where the bound is not a plain radius

    def __init__(self, region: TrustRegion[ReducedPoint] | TrustRegion[FullPoint], settings: Settings) -> None:
        self.region, self.settings = region, settings

    @property
    def status(self) -> Status:
        """Why the loop cannot go on."""
        return self.region.status

    @property
    def point(self) -> ReducedPoint | FullPoint:
        """The last accepted model."""
        return self.region.point

    @property
    def bound(self) -> Bound | None:
        """What bounds the next trial."""
        return self.region.bound

    @property
    def builder(self) -> KrylovWithinBudget | Hybrid | None:
        """What builds the local models, where it remembers something."""
        build: object = self.region.build_model
        return build if isinstance(build, KrylovWithinBudget | Hybrid) else None

    @property
    def next_passes(self) -> int:
        """A trial and the gradient after it, and a Krylov space where there is none yet."""
        return 2 if self.region.model is not None else 4

    @property
    def gradient_passes(self) -> int:
        """Passes that the gradient still costs: one, until it was asked for."""
        return 0 if "_gradient" in self.point.__dict__ else 1

    def gradient_norm(self) -> float | None:
        """The norm of the gradient; not told where the budget has no room for it."""
        if self.gradient_passes > self.settings.passes_left():
            return None
        return float(torch.linalg.vector_norm(self.point.gradient()))

    def iterate(self) -> Trial | None:
        """One trial step."""
        done = self.region.iterate()
        if done is None:
            return None
        radius = done.bound.radius if isinstance(done.bound, Search) else done.bound
        damping = done.damping if self.solver == "dense" else None
        return Trial(
            done.accepted,
            radius if isinstance(radius, float) else None,
            done.ratio,
            done.rank,
            damping,
            self.solver,
        )

    def state(self) -> State:
        """The point, how its head was found, the bound on the step, and whether gradient and model were built."""
        region, start = self.region, getattr(self.point, "start", None)
        return {
            "x": region.point.x,
            "start_W": start.W if start else None,
            "start_factor": start.factor if start else None,
            "bound": list(region.bound) if isinstance(region.bound, tuple) else region.bound,
            "below_rounding": region.below_rounding,
            "has_gradient": self.gradient_passes == 0,
            "has_model": region.model is not None,
            "builder": self.builder.state() if self.builder else None,
        }

    def resume(self, state: State) -> None:
        """Build again what a run that was put aside had built at its point."""
        bound = state["bound"]
        self.region.bound = self.bound_type(*bound) if isinstance(bound, list) else bound
        self.region.below_rounding = state["below_rounding"]
        if state["has_gradient"]:
            self.point.gradient()
        if self.builder:
            self.builder.resume(state["builder"])
        if state["has_model"]:
            again = self.builder.build if self.builder else self.region.build_model
            self.region.model = again(self.point)  # type: ignore[arg-type]


class DenseMethod(TrustRegionMethod):
    """GNvpro with the exact step: the gradient comes with the matrix."""

    solver = "dense"
    region: TrustRegion[ReducedPoint]

    def __init__(self, region: TrustRegion[ReducedPoint], settings: Settings, geodesic: bool, begun_at: Tensor) -> None:
        super().__init__(region, settings)
        self.geodesic = geodesic
        self.begun_at = begun_at  # theta that decided on the directions of all matrices

    @property
    def gradient_passes(self) -> int:
        """Passes that the matrix still costs."""
        point = self.region.point
        if "gauss_newton" in point.__dict__ or point.assembler is None:
            return 0
        network = point.problem.network
        return point.assembler.passes(network.n_features, network.n_targets, point.problem.misfit.isotropic)

    @property
    def next_passes(self) -> int:
        """A trial, the probe of the geodesic correction, and a matrix where there is none yet."""
        return 1 + self.geodesic + self.gradient_passes

    def state(self) -> State:
        """And where it began."""
        return {**super().state(), "begun_at": self.begun_at}


class HybridMethod(TrustRegionMethod):
    """GNvpro with quasi-Newton steps between Krylov spaces."""

    solver = "hybrid"
    bound_type = Search
    region: TrustRegion[ReducedPoint]

    def iterate(self) -> Trial | None:
        """One trial step; a quasi-Newton direction that only leads up is given up for a Krylov space."""
        region, bound = self.region, self.region.bound
        too_short = isinstance(bound, Search) and bound.fraction < SHORTEST
        if too_short and isinstance(region.model, LineModel) and isinstance(self.builder, Hybrid):
            region.model = self.builder.renew(self.point)
        return super().iterate()
