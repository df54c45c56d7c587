import torch

torch.set_num_threads(1)  # small tensors and many threads do not mix, and pytest-xdist uses the cores already
