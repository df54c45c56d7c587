"""Methods for `train(method=...)`, and the optimiser for a training loop of your own.

GNvpro          trust region on the reduced objective                    head eliminated at every point
GaussNewton     the same trust region on the full objective              theta and W together
LBFGSvpro       L-BFGS with a strong-Wolfe search, reduced objective
AdamVPro        stochastic gradients, reduced loss of each batch
TorchOptimizer  an optimiser of torch.optim on theta and W together
Batches         parts of the samples on which a method trains in turn
RotatedAdam     a torch optimiser for the reduced loss: ADAM in rotated coordinates
"""

from gnvpro.methods.adam_vpro import AdamVPro
from gnvpro.methods.gnvpro import GaussNewton, GNvpro
from gnvpro.methods.lbfgs import LBFGSvpro
from gnvpro.methods.protocol import Batches
from gnvpro.methods.stochastic import TorchOptimizer
from gnvpro.stochastic.rotated_adam import RotatedAdam

__all__ = [
    "AdamVPro",
    "Batches",
    "GNvpro",
    "GaussNewton",
    "LBFGSvpro",
    "RotatedAdam",
    "TorchOptimizer",
]
