"""Train any PyTorch network that ends in a linear layer by eliminating that layer."""
