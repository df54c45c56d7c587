"""The derivative of the outputs in the features when the head follows them: one identity for every loss.

With G and H the gradient and Hessian of the misfit in the outputs, and inv the inverse Hessian of the inner problem,

    mixed(dZ) = (H (dZ W'))' Z + G' dZ                       derivative of grad_W Phi in the features
    dW(dZ)    = -inv mixed(dZ)                               implicit differentiation of grad_W Phi = 0   (paper, eq. 16)
    P(dZ)     = dZ W' + Z dW(dZ)'                            d outputs                                    (paper, eq. 14)

The Gauss-Newton model of the reduced objective, as a map on feature tangents, is

    curvature = P' H P + a2 dW' dW.

If inv is exact, the cross terms cancel and it simplifies to

    <dZ, curvature dZ> = <dZ W', H dZ W'> - <S1, inv S1> + <S2, inv S2>,     S1 = (H (dZ W'))' Z,  S2 = G' dZ,

which costs half the products. If H only multiplies rows by weights (least squares), W enters through W'W, and no
array of (rows, n_targets) is formed except in S2. Nothing here depends on the network, which multiplies from the
right: J_red = P J_F, with J_F = d features / d theta.

Legend: J_theta w -> head_jacobian, J_theta G_red -> output_jacobian @ feature Jacobian, grad L -> G, grad^2 L -> H.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gnvpro.head.eliminator import HeadFit
from gnvpro.linalg.columns import matmul_small
from gnvpro.linalg.operators import LinearOperator, symmetric
from gnvpro.linalg.rows import Chunk, parts
from gnvpro.problem.misfit import Misfit


@dataclass(frozen=True)
class HeadSensitivity:
    """The eliminated head's derivatives, as far as they do not depend on the network."""

    Z: Tensor  # with the column of ones, if any
    n_features: int  # without it
    misfit: Misfit
    fit: HeadFit
    head_penalty: float

    def on(self, chunk: Chunk) -> HeadSensitivity:
        """Return the sensitivity on a chunk of samples that are not held in memory."""
        Z, misfit, outputs = parts((self.Z, self.misfit.pieces, self.fit.outputs), chunk)
        return replace(self, Z=Z, misfit=misfit, fit=replace(self.fit, outputs=outputs))

    @cached_property
    def G(self) -> Tensor:
        """Gradient of the misfit in the outputs."""
        return self.misfit.gradient(self.fit.outputs)

    @cached_property
    def W(self) -> Tensor:
        """The head without its bias."""
        return self.fit.W[:, : self.n_features].contiguous()

    @cached_property
    def _gram(self) -> Tensor:
        return self.W.T @ self.W

    @cached_property
    def _apply_hessian(self):  # type: ignore[no-untyped-def]
        return self.misfit.hessian(self.fit.outputs)

    def feature_gradient(self) -> Tensor:
        """Gradient of the reduced misfit in the features; the motion of the head contributes nothing at a minimum."""
        return matmul_small(self.G, self.W)

    def _pad(self, D: Tensor) -> Tensor:
        """Append a zero column to (n_targets, n_features) for the bias, whose feature is constant."""
        return torch.nn.functional.pad(D, (0, self.Z.shape[1] - self.n_features))

    @property
    def head_jacobian(self) -> LinearOperator:
        """Map dZ -> dW."""
        inverse, over = self.fit.inverse_hessian, self.misfit.over

        def mv(dZ: Tensor) -> Tensor:
            S1, S2 = over.inners(self._apply_hessian(matmul_small(dZ, self.W.T)), self.Z, self.G, dZ)
            return -inverse.mv(S1 + self._pad(S2))

        def rmv(dW: Tensor) -> Tensor:
            D = -inverse.rmv(dW)
            return matmul_small(self._apply_hessian(matmul_small(self.Z, D.T)), self.W) + matmul_small(
                self.G, D[:, : self.n_features]
            )

        return LinearOperator((self.Z.shape[0], self.n_features), tuple(self.fit.W.shape), mv, rmv)

    @property
    def output_jacobian(self) -> LinearOperator:
        """Map dZ -> d_outputs, with the head following."""
        head = self.head_jacobian

        def mv(dZ: Tensor) -> Tensor:
            return matmul_small(dZ, self.W.T) + matmul_small(self.Z, head.mv(dZ).T)

        def rmv(d_outputs: Tensor) -> Tensor:
            return matmul_small(d_outputs, self.W) + head.rmv(self.misfit.over.inner(d_outputs, self.Z))

        return LinearOperator(head.domain, tuple(self.fit.outputs.shape), mv, rmv)

    @property
    def curvature(self) -> LinearOperator:
        """Map dZ -> the Gauss-Newton model of the reduced misfit and head penalty, times dZ."""
        shape = (self.Z.shape[0], self.n_features)
        if not self.fit.inverse_is_exact:
            return symmetric(shape, self._curvature_composed)
        if self.misfit.identity_hessian and self.fit.inverse_acts_on_rows:
            return symmetric(shape, self._curvature_rowwise)
        return symmetric(shape, self._curvature_exact)

    def _curvature_composed(self, dZ: Tensor) -> Tensor:
        P, head = self.output_jacobian, self.head_jacobian
        return P.rmv(self._apply_hessian(P.mv(dZ))) + self.head_penalty * head.rmv(head.mv(dZ))

    def _curvature_exact(self, dZ: Tensor) -> Tensor:
        inverse = self.fit.inverse_hessian.mv
        bent = self._apply_hessian(matmul_small(dZ, self.W.T))
        S1, S2 = self.misfit.over.inners(bent, self.Z, self.G, dZ)
        bent = bent - self._apply_hessian(matmul_small(self.Z, inverse(S1).T))
        return matmul_small(bent, self.W) + self._residual_term(S2)

    def _curvature_rowwise(self, dZ: Tensor) -> Tensor:
        # inv multiplies from the right only, so it may act on (n_features, n_features) blocks before W does
        weights = self.misfit.weights
        weighted = weights * dZ
        S1, S2 = self.misfit.over.inners(weighted, self.Z, self.G, dZ)
        block = self.fit.inverse_hessian.mv(S1)
        return matmul_small(weighted - weights * matmul_small(self.Z, block.T), self._gram) + self._residual_term(S2)

    def _residual_term(self, S2: Tensor) -> Tensor:
        return matmul_small(self.G, self.fit.inverse_hessian.mv(self._pad(S2))[:, : self.n_features])
