"""Networks of the paper: feature extractors to put in front of a linear head."""

from gnvpro.networks.convnet import ConvNet
from gnvpro.networks.mlp import MLP
from gnvpro.networks.neural_ode import NeuralODE
from gnvpro.networks.resnet import ResNet

__all__ = ["MLP", "ConvNet", "NeuralODE", "ResNet"]
