"""All equations as rows of one least-squares problem in the head, at given parameters of the features.

    rho_e,i(theta, c, W) = sqrt(w_e / n_e) (F_e(u)(x_i) - values_i)                 weight w_e, n_e rows, constants c
    Phi(theta, c, W)     = 1/2 sum |rho|^2 + alpha/2 |W|^2

    Z = d rho / d W        from the jets of the features, weighted by dF/d atoms
    J = d rho / d (theta, c)

Sites that need the same derivatives share one pass through the network. A linear equation without unknown constants
is differentiated only once.

Balanced weights are w_e = 1 / s_e, with s_e the size of F_e for the longest half wave that fits between its points;
a derivative along axis a multiplies it by pi / (extent of the points along a). 1 / s_e^2 would measure every
equation in units of the field; with the square root of that, runs are faster at first and no worse at the end.

Legend: alpha -> head_penalty, sqrt(w_e / n_e) -> roots, (theta, c) -> x.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gnvpro.pde.carry import Pass, carrier_for
from gnvpro.pde.equation import Compiled, Equation, Key, Linearized, Values
from gnvpro.pde.expressions import Constant
from gnvpro.pde.field import Field
from gnvpro.pde.jets import Channels, Laplacian
from gnvpro.pde.shared import SharedCarrier
from gnvpro.processes import ALONE, Processes

PASSES = 1000  # cost of an entry of the Jacobian, in operations of its factorisation


@dataclass(frozen=True)
class Place:
    """Position of a site's points in the shared passes."""

    group: int
    points: slice


@dataclass(frozen=True)
class Carried:
    """The features of all sites at some theta."""

    passes: list[Pass]


@dataclass(frozen=True)
class Assembled:
    """The rows at some W: Z, the residuals, and their parts."""

    Z: Tensor
    residual: Tensor
    parts: list[Linearized]


class System:
    """Equations, their field, and the variables x = (theta, constants)."""

    def __init__(
        self,
        field: Field,
        equations: Sequence[Equation],
        weights: Sequence[float] | None = None,
        constants: Sequence[Constant] | None = None,
        processes: Processes = ALONE,
    ) -> None:
        self.field, self.equations, self.processes = field, tuple(equations), processes
        own = list({id(c): c for e in equations for c in e.constants}.values())
        self.constants: list[Constant] = own if constants is None else list(constants)
        self._parameters = {n: p for n, p in field.features.named_parameters() if p.requires_grad}
        self._sizes = [p.numel() for p in self._parameters.values()]
        carrier = carrier_for(field.features, list(self._parameters))
        self.carrier = carrier if processes.alone else SharedCarrier(carrier, processes)
        self.linear = all(e.linear for e in equations)
        self.weights = [balanced_weight(e) for e in equations] if weights is None else list(weights)
        self.roots = [math.sqrt(w / e.rows) for w, e in zip(self.weights, equations, strict=True)]
        self.n_features, self.outputs = field.head.in_features, field.outputs
        self._group()
        self._fixed: list[Linearized | None] = [
            e.compiled.linearize(e.compiled.zeros(), {}) if e.linear and not e.constants else None for e in equations
        ]

    def holding(self, equations: Sequence[Equation], weights: Sequence[float] | None = None) -> System:
        """Return a system of other equations for the same field and constants, with the weights of these unless others
        are given.
        """
        return System(
            self.field, equations, self.weights if weights is None else weights, self.constants, self.processes
        )

    @property
    def rows(self) -> int:
        """Number of residuals of all equations."""
        return sum(e.rows for e in self.equations)

    @property
    def n_theta(self) -> int:
        """Number of trained parameters of the features."""
        return sum(self._sizes)

    def x(self) -> Tensor:
        """Current variables of the field and the constants."""
        parts = [p.detach().reshape(-1) for p in self._parameters.values()]
        return torch.cat([*parts, torch.tensor([c.value for c in self.constants], dtype=torch.float64)])

    @torch.no_grad()
    def store(self, x: Tensor, W: Tensor) -> None:
        """Write variables and head into the field and the constants."""
        for name, value in self._split(x).items():
            self._parameters[name].copy_(value)
        for constant, value in zip(self.constants, x[self.n_theta :], strict=True):
            constant.value = float(value)
        self.field.store_head(W)

    def _split(self, x: Tensor) -> dict[str, Tensor]:
        pieces = x[: self.n_theta].split(self._sizes)
        shapes = zip(self._parameters.items(), pieces, strict=True)
        return {name: piece.view(p.shape) for (name, p), piece in shapes}

    def multiplied(self, x: Tensor, factors: Mapping[int, Tensor]) -> Tensor:
        """Return x with some parameters, given by id, multiplied by numbers."""
        pieces = zip(self._parameters.values(), self._split(x).values(), strict=True)
        return torch.cat([*((v * factors.get(id(p), 1.0)).reshape(-1) for p, v in pieces), x[self.n_theta :]])

    def _values(self, x: Tensor) -> dict[int, float]:
        return {id(c): float(v) for c, v in zip(self.constants, x[self.n_theta :], strict=True)}

    # -- passes

    def _group(self) -> None:
        """Group points by the derivatives that they need."""
        groups: dict[Channels, list[Tensor]] = {}
        self.places: list[list[Place]] = []
        for equation in self.equations:
            places = []
            for site in equation.compiled.sites:
                channels = Channels.closed(channel for _, channel in site.atoms)
                points = groups.setdefault(channels, [])
                start = sum(len(p) for p in points)
                points.append(site.points)
                places.append(Place(list(groups).index(channels), slice(start, start + len(site.points))))
            self.places.append(places)
        self.groups = [(channels, torch.cat(points)) for channels, points in groups.items()]

    def carry(self, x: Tensor) -> Carried:
        """Run one pass forward over all points."""
        params = self._split(x)
        return Carried([self.carrier.run(params, points, channels) for channels, points in self.groups])

    def _features(self, carried: Carried, place: Place, key: Key) -> Tensor:
        index = self.groups[place.group][0].index(key[1])
        return carried.passes[place.group].jet[index, place.points]

    def atoms(self, carried: Carried, W: Tensor) -> list[Values]:
        """Return the derivatives of the field that every equation needs."""
        made = []
        for equation, places in zip(self.equations, self.places, strict=True):
            sites = []
            for site, place in zip(equation.compiled.sites, places, strict=True):
                values = {}
                for key in site.atoms:
                    u = self._features(carried, place, key) @ W[key[0], :-1]
                    values[key] = u + W[key[0], -1] if key[1] == () else u
                sites.append(values)
            made.append(sites)
        return made

    # -- rows

    def assemble(self, carried: Carried, x: Tensor, W: Tensor) -> Assembled:
        """Return Z and the residuals at W."""
        constants = self._values(x)
        blocks, residuals, parts = [], [], []
        every = self.atoms(carried, W)
        for e, equation in enumerate(self.equations):
            part = self._fixed[e] or equation.compiled.linearize(every[e], constants)
            block = self._block(carried, equation.compiled, self.places[e], part) * self.roots[e]
            if self._fixed[e] is None:
                residual = self.roots[e] * (part.values - equation.targets)
            else:
                residual = block @ W.reshape(-1) + self.roots[e] * (part.values - equation.targets)
            blocks.append(block)
            residuals.append(residual)
            parts.append(part)
        return Assembled(torch.cat(blocks), torch.cat(residuals), parts)

    def assemble_around(self, carried: Carried, x: Tensor, every: list[Values]) -> tuple[Tensor, Tensor]:
        """Return Newton's linearisation around a field given by its atoms: Z and r with residuals Z W + r for these
        features.
        """
        constants = self._values(x)
        blocks, rest = [], []
        for e, equation in enumerate(self.equations):
            part = self._fixed[e] or equation.compiled.linearize(every[e], constants)
            blocks.append(self.roots[e] * self._block(carried, equation.compiled, self.places[e], part))
            values = part.values - equation.targets
            if self._fixed[e] is None:
                for site, atoms, slopes in zip(equation.compiled.sites, every[e], part.in_atoms, strict=True):
                    for key, slope in slopes.items():
                        moved = slope * atoms[key]
                        values = values - moved if site.rows is None else values.index_add(0, site.rows, -moved)
            rest.append(self.roots[e] * values)
        return torch.cat(blocks), torch.cat(rest)

    def residual(self, carried: Carried, x: Tensor, W: Tensor) -> Tensor:
        """Return the residuals alone."""
        constants = self._values(x)
        made = []
        for e, (equation, atoms) in enumerate(zip(self.equations, self.atoms(carried, W), strict=True)):
            values = equation.compiled.evaluate(atoms, lambda node, site: constants[id(node)])
            made.append(self.roots[e] * (values - equation.targets))
        return torch.cat(made)

    def _block(self, carried: Carried, compiled: Compiled, places: list[Place], part: Linearized) -> Tensor:
        """Return dF / dW, (rows, outputs (n_features + 1))."""
        width = self.n_features + 1
        block = torch.zeros(compiled.rows, self.outputs * width, dtype=torch.float64)
        for site, place, slopes in zip(compiled.sites, places, part.in_atoms, strict=True):
            for key, slope in slopes.items():
                first = key[0] * width
                columns = slice(first, first + self.n_features)
                phi = slope[:, None] * self._features(carried, place, key)
                if site.rows is None:
                    block[:, columns] += phi
                    if key[1] == ():
                        block[:, first + self.n_features] += slope
                else:
                    block[:, columns].index_add_(0, site.rows, phi)
                    if key[1] == ():
                        block[:, first + self.n_features].index_add_(0, site.rows, slope)
        return block

    def _cotangents(self, carried: Carried, W: Tensor, parts: list[Linearized], by_row: Tensor | None) -> list[Tensor]:
        """Return d rho / d features at W, each row multiplied by a number if numbers are given."""
        G = [torch.zeros_like(done.jet) for done in carried.passes]
        factors = [None] * len(self.equations) if by_row is None else self.by_equation(by_row)
        for e, equation in enumerate(self.equations):
            factor = factors[e]
            for site, place, slopes in zip(equation.compiled.sites, self.places[e], parts[e].in_atoms, strict=True):
                channels = self.groups[place.group][0]
                for key, slope in slopes.items():
                    slope = self.roots[e] * slope
                    if factor is not None:
                        slope = slope * (factor if site.rows is None else factor[site.rows])
                    G[place.group][channels.index(key[1]), place.points] += slope[:, None] * W[key[0], :-1]
        return G

    def gradient(self, x: Tensor, W: Tensor) -> tuple[float, Tensor, Tensor]:
        """Return 1/2 |rho|^2 and its gradients in x and W, for methods that do not eliminate the head."""
        carried = self.carry(x)
        assembled = self.assemble(carried, x, W)
        rho = assembled.residual
        G = self._cotangents(carried, W, assembled.parts, rho)
        in_x = torch.stack([done.gradient(g) for done, g in zip(carried.passes, G, strict=True)]).sum(0)
        in_constants = [
            sum(
                self.roots[e] * float(part.in_constants[id(c)] @ own)
                for e, (part, own) in enumerate(zip(assembled.parts, self.by_equation(rho), strict=True))
                if id(c) in part.in_constants
            )
            for c in self.constants
        ]
        in_x = torch.cat([in_x, torch.tensor(in_constants, dtype=torch.float64)])
        return 0.5 * float(rho @ rho), in_x, (assembled.Z.T @ rho).view_as(W)

    def jacobian(self, carried: Carried, x: Tensor, W: Tensor, parts: list[Linearized]) -> Tensor:
        """Return d rho / d x at W by one pass backward over all points."""
        linearized = self._at(carried, x, W, parts) if self.constants else list(parts)
        G = self._cotangents(carried, W, linearized, None)
        rows = [done.jacobian(g) for done, g in zip(carried.passes, G, strict=True)]
        in_theta = torch.cat(
            [self._rows_of(e.compiled, places, rows) for e, places in zip(self.equations, self.places, strict=True)]
        )
        return torch.cat([in_theta, self._in_constants(linearized)], 1) if self.constants else in_theta

    def jacobian_in_constants(self, carried: Carried, x: Tensor, W: Tensor, parts: list[Linearized]) -> Tensor:
        """Return d rho / d constants at W, (rows, constants)."""
        return self._in_constants(self._at(carried, x, W, parts))

    def _at(self, carried: Carried, x: Tensor, W: Tensor, parts: list[Linearized]) -> list[Linearized]:
        """Return the parts, with equations that contain constants linearised at W."""
        constants, every = self._values(x), self.atoms(carried, W)
        return [
            equation.compiled.linearize(every[e], constants) if equation.constants else parts[e]
            for e, equation in enumerate(self.equations)
        ]

    def _in_constants(self, linearized: list[Linearized]) -> Tensor:
        columns = [
            root * torch.stack([part.in_constants.get(id(c), torch.zeros(e.rows).double()) for c in self.constants], 1)
            for e, root, part in zip(self.equations, self.roots, linearized, strict=True)
        ]
        return torch.cat(columns)

    @staticmethod
    def _rows_of(compiled: Compiled, places: list[Place], rows: list[Tensor]) -> Tensor:
        """Sum points to rows."""
        if len(places) == 1 and compiled.sites[0].rows is None:
            return rows[places[0].group][places[0].points]
        block = rows[0].new_zeros(compiled.rows, rows[0].shape[1])
        for site, place in zip(compiled.sites, places, strict=True):
            part = rows[place.group][place.points]
            block = block + part if site.rows is None else block.index_add(0, site.rows, part)
        return block

    @property
    def operations(self) -> float:
        """Operations of a Gauss-Newton step: rows n (n + PASSES) with n = n_x + n_W."""
        unknowns = self.n_theta + self.outputs * (self.n_features + 1)
        return float(self.rows * unknowns * (unknowns + PASSES))

    def by_equation(self, rows: Tensor) -> list[Tensor]:
        """Split a vector of rows by equation."""
        return list(rows.split([e.rows for e in self.equations]))


def zero_value(system: System) -> float:
    """Return the misfit of the zero field."""
    x = system.x()
    rows = system.residual(system.carry(x), x, torch.zeros_like(system.field.W()))
    return 0.5 * float(rows @ rows)


def balanced_weight(equation: Equation) -> float:
    """Return the user's weight, or 1 / (size of the equation in units of the field)."""
    if equation.weight is not None:
        return equation.weight
    compiled = equation.compiled
    part = compiled.linearize(compiled.zeros(1.0), {id(c): c.value for c in equation.constants})
    square = 0.0
    for site, slopes in zip(compiled.sites, part.in_atoms, strict=True):
        extent = site.points.max(0).values - site.points.min(0).values
        for (_, channel), slope in slopes.items():
            axes = [(i, i) for i in channel.axes] if isinstance(channel, Laplacian) else [channel]
            wave = sum(math.prod(math.pi / float(extent[i]) if extent[i] > 0 else 1.0 for i in each) for each in axes)
            mean = float(slope.square().mean())
            if site.rows is not None:  # integrals are sums over many points
                mean *= (len(site.points) / compiled.rows) ** 2
            square += mean * wave**2
    return 1.0 / math.sqrt(square) if square > 0 and math.isfinite(square) else 1.0
