"""Any network that ends in a linear layer trains by every method and solver, or is refused in a sentence with the remedy."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import gnvpro
from gnvpro.methods.stochastic import NESTEROV
from gnvpro.network.derivatives.substitutes import SUBSTITUTES, Substituted

N = 30
G = torch.Generator().manual_seed(0)
FLAT = torch.randn(N, 6, generator=G, dtype=torch.float64)
SEQUENCES = torch.randn(N, 3, 4, generator=G, dtype=torch.float64)
IMAGES = torch.randn(N, 2, 4, 4, generator=G, dtype=torch.float64)
WORDS = torch.randint(0, 9, (N, 3), generator=G)
TARGETS = torch.randn(N, 2, generator=G, dtype=torch.float64)
WAYS = {
    "auto": {},
    "dense": {"solver": "dense"},
    "krylov": {"solver": "krylov"},
    "hybrid": {"solver": "hybrid"},
    "gauss-newton": {"method": "gauss-newton"},
    "lbfgs": {"method": "lbfgs-vpro"},
    # At theta's best head the loss is least; for nearly dependent features a gradient step of W goes up first.
    "adam": {"method": gnvpro.methods.TorchOptimizer(torch.optim.Adam, lr=1e-3, batch_size=10), "head_penalty": 1e-2},
    "nesterov": {"method": gnvpro.methods.TorchOptimizer(NESTEROV, lr=1e-3, batch_size=10), "head_penalty": 1e-2},
}


class Net(nn.Module):
    """A body, and a function of it, before the head."""

    def __init__(self, body, n_features, then=lambda z: z):
        super().__init__()
        self.body, self.then, self.head = body, then, nn.Linear(n_features, 2)

    def forward(self, x):
        return self.head(self.then(self.body(x)))


class Attention(nn.Module):
    def __init__(self, own_module):
        super().__init__()
        self.e = nn.Linear(4, 8)
        self.mha = nn.MultiheadAttention(8, 2, batch_first=True) if own_module else None

    def forward(self, x):
        z = self.e(x)
        if self.mha is not None:
            return self.mha(z, z, z, need_weights=False)[0]
        heads = z.unflatten(-1, (2, 4)).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)


class LoRA(nn.Module):
    """A frozen layer and a trained change of low rank."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(6, 8).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(6, 2)), nn.Parameter(torch.randn(2, 8))

    def forward(self, x):
        return torch.tanh(self.base(x) + x @ self.a @ self.b)


class Centres(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p, self.centres = p, nn.Parameter(torch.randn(8, 6))

    def forward(self, x):
        return torch.exp(-torch.cdist(x, self.centres, self.p))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 6)
        self.b.weight = self.a.weight

    def forward(self, x):
        return torch.tanh(self.b(torch.tanh(self.a(x))))


def last(z):
    return z[0][:, -1]


def encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 1).eval()


def flat(*layers):
    return nn.Sequential(nn.Linear(6, 8), *layers)


TRAINED = {
    "LSTM": (lambda: Net(nn.LSTM(4, 5, batch_first=True), 5, last), SEQUENCES),
    "GRU": (lambda: Net(nn.GRU(4, 5, batch_first=True), 5, last), SEQUENCES),
    "RNN": (lambda: Net(nn.RNN(4, 5, batch_first=True), 5, last), SEQUENCES),
    "TransformerEncoder": (lambda: Net(encoder(), 4, lambda z: z.mean(1)), SEQUENCES),
    "MultiheadAttention": (lambda: Net(Attention(True), 8, lambda z: z.mean(1)), SEQUENCES),
    "scaled_dot_product_attention": (lambda: Net(Attention(False), 8, lambda z: z.mean(1)), SEQUENCES),
    "Embedding": (lambda: Net(nn.Embedding(9, 3), 9, lambda z: torch.tanh(z.flatten(1))), WORDS),
    "EmbeddingBag": (lambda: Net(nn.EmbeddingBag(9, 4), 4, torch.tanh), WORDS),
    "EmbeddingBag, largest": (lambda: Net(nn.EmbeddingBag(9, 4, mode="max"), 4, torch.tanh), WORDS),
    "EmbeddingBag, sum": (lambda: Net(nn.EmbeddingBag(9, 4, mode="sum", padding_idx=1), 4, torch.tanh), WORDS),
    "radial basis functions": (lambda: Net(Centres(2.0), 8), FLAT),
    "radial basis functions, p=3": (lambda: Net(Centres(3.0), 8), FLAT),
    "BatchNorm": (lambda: Net(flat(nn.BatchNorm1d(8), nn.Tanh()).eval(), 8), FLAT),
    "GroupNorm": (lambda: Net(flat(nn.GroupNorm(2, 8), nn.Tanh()), 8), FLAT),
    "LayerNorm": (lambda: Net(flat(nn.LayerNorm(8), nn.Tanh()), 8), FLAT),
    "weight norm": (lambda: Net(nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 8)), nn.Tanh()), 8), FLAT),
    "spectral norm": (
        lambda: Net(nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Tanh()), 8),
        FLAT,
    ),
    "tied weights": (lambda: Net(Tied(), 6), FLAT),
    "LoRA": (lambda: Net(LoRA(), 8), FLAT),
    "DataParallel": (lambda: nn.DataParallel(Net(flat(nn.Tanh()), 8)), FLAT),
    "torch.compile": (lambda: torch.compile(Net(flat(nn.Tanh()), 8)), FLAT),
    "a part by torch.compile": (lambda: Net(torch.compile(flat(nn.Tanh())), 8), FLAT),
    "lazy, initialised": (lambda: initialised(Net(nn.Sequential(nn.LazyLinear(8), nn.Tanh()), 8)), FLAT),
    "1x1 convolution": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 1)), IMAGES),
}


NO_ROWS = ("1x1 convolution", "LSTM", "GRU", "RNN")  # vmap cannot run recurrent layers


def initialised(model):
    model(FLAT.to(torch.float32))
    return model


def trained_ok(name, build, inputs, way, dtype=torch.float64):
    torch.manual_seed(3)
    model = build().to(dtype)
    inputs = inputs if inputs.dtype == torch.int64 else inputs.to(dtype)
    targets = TARGETS.to(dtype)
    if name == "1x1 convolution":
        targets = targets[:, :, None, None].expand(-1, -1, 4, 4).contiguous()
    if way == "dense" and name in NO_ROWS:
        with pytest.raises(ValueError, match="use solver='krylov'"):
            gnvpro.train(model, inputs, targets, loss="least_squares", **WAYS[way])
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the model has BatchNorm")
        result = gnvpro.train(model, inputs, targets, loss="least_squares", work=100, **WAYS[way])
    losses = [record.loss for record in result.history if record.accepted]
    assert losses[-1] < losses[0]
    assert all(torch.isfinite(p).all() for p in model.parameters())
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        outputs = copy.deepcopy(result.model).eval()(inputs)
    rows = outputs.movedim(1, -1).reshape(-1, 2) - targets.movedim(1, -1).reshape(-1, 2)
    stored = 0.5 * float(rows.double().square().sum(1).mean())
    accepted = [record for record in result.history if record.accepted]
    head = list(model.parameters())[-2].detach()
    largest = max(1.0, float(head.double().abs().flatten(1).sum(1).max()))  # terms of an output: features are about one
    rounding = 30 * torch.finfo(dtype).eps * largest
    assert accepted[-1].misfit ** 0.5 == pytest.approx(stored**0.5, abs=rounding)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TRAINED)
def test_it_trains(name, way):
    trained_ok(name, *TRAINED[name], way)


@pytest.mark.parametrize("way", ["auto", "krylov", "gauss-newton", "lbfgs", "adam"])
@pytest.mark.parametrize("name", ["LSTM", "TransformerEncoder", "EmbeddingBag", "LayerNorm"])
def test_it_trains_in_single_precision(name, way):
    trained_ok(name, *TRAINED[name], way, torch.float32)


@pytest.mark.parametrize("way", ["auto", "krylov", "lbfgs"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_trains_in_half_precision(dtype, way):
    trained_ok("tanh", lambda: Net(flat(nn.Tanh()), 8), FLAT, way, dtype)


def test_torch_chooses_its_kernels_again_afterwards():
    flags = torch.backends.cuda
    before = (flags.flash_sdp_enabled(), flags.mem_efficient_sdp_enabled(), torch.backends.mha.get_fastpath_enabled())
    trained_ok("TransformerEncoder", *TRAINED["TransformerEncoder"], "krylov")
    after = (flags.flash_sdp_enabled(), flags.mem_efficient_sdp_enabled(), torch.backends.mha.get_fastpath_enabled())
    assert before == after == (True, True, True)


def test_distributed_data_parallel_is_unwrapped(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        trained_ok("DDP", lambda: nn.parallel.DistributedDataParallel(Net(flat(nn.Tanh()), 8).double()), FLAT, "auto")
    finally:
        torch.distributed.destroy_process_group()


# -- refused


@torch.jit.ignore
def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would rather have us export
        return torch.jit.script(flat(nn.Tanh(), nn.Linear(8, 2)))


def partly_on_meta():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2, device="meta"))


REFUSED = {
    "softmax": (lambda: nn.Sequential(nn.Linear(6, 2), nn.Softmax(1)), FLAT, "leave the final activation to the loss"),
    "k x k convolution": (lambda: nn.Conv2d(2, 2, 3), IMAGES, r"append nn.Conv2d\(2, 2, 1\)"),
    "k x k convolution, last": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.Conv2d(3, 2, 3)),
        IMAGES,
        r"append nn.Conv2d\(2, 2, 1\)",
    ),
    "transposed convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.ConvTranspose2d(3, 2, 2)),
        IMAGES,
        r"append nn.Conv2d\(2, 2, 1\)",
    ),
    "head with spectral norm": (
        lambda: nn.Sequential(nn.Linear(6, 8), parametrizations.spectral_norm(nn.Linear(8, 2))),
        FLAT,
        "use a plain nn.Linear",
    ),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 2)), FLAT, "run it once on a batch first"),
    "torch.jit.script": (scripted, FLAT, "train the module that it was made from"),
    "partly on meta": (partly_on_meta, FLAT, "meta device.*load or initialise"),
    "batch_first=False": (lambda: Net(nn.LSTM(4, 5), 5, last), SEQUENCES, "batch_first=True"),
}


@pytest.mark.parametrize("way", ["auto", "adam"])
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_the_remedy(name, way):
    build, inputs, remedy = REFUSED[name]
    with pytest.raises(ValueError, match=remedy):
        gnvpro.train(build().double(), inputs, TARGETS, loss="least_squares", **WAYS[way])


def test_a_model_and_inputs_on_the_meta_device_are_refused():
    model = nn.Linear(6, 2, device="meta")
    with pytest.raises(ValueError, match="meta device: they hold no numbers"):
        gnvpro.train(model, FLAT.to("meta"), TARGETS.to("meta"), loss="least_squares")


class OnceOnly(torch.autograd.Function):
    """An operation with a first derivative only."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 - torch.tanh(x) ** 2)


def test_an_operation_without_a_second_derivative_is_refused_before_the_head_is_touched():
    model = Net(flat(), 8, OnceOnly.apply).double()
    before = copy.deepcopy(model.state_dict())
    for way in ("auto", "krylov", "gauss-newton"):
        with pytest.raises(ValueError, match=r"twice.*use method='lbfgs-vpro' or 'adam'"):
            gnvpro.train(model, FLAT, TARGETS, loss="least_squares", **WAYS[way])
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for way in ("lbfgs", "adam"):
        trained_ok("first derivative", lambda: Net(flat(), 8, OnceOnly.apply), FLAT, way)


SECOND = {
    "hardsigmoid": (F.hardsigmoid, FLAT),
    "hardsigmoid, in place": (lambda z: F.hardsigmoid(z.clone(), inplace=True), FLAT),
    "logcumsumexp": (lambda z: torch.logcumsumexp(z, 1), FLAT),
    "logcumsumexp, a method": (lambda z: z.logcumsumexp(dim=0), 100 * FLAT),
    "logcumsumexp, from nothing on": (lambda z: torch.cat([z[:, :1] - 1e3, z], 1).logcumsumexp(1), FLAT),
}


@pytest.mark.parametrize("name", SECOND)
def test_substitutes_compute_the_same_and_have_second_derivatives(name):
    f, z = SECOND[name]

    def substituted(z):
        with Substituted():
            return f(z)

    assert torch.allclose(substituted(z), f(z), rtol=1e-12)
    z = z.clone().requires_grad_()
    torch.autograd.gradcheck(substituted, z)
    u = torch.zeros_like(f(z)).requires_grad_()
    (pulled,) = torch.autograd.grad(substituted(z), z, u, create_graph=True)
    v = torch.ones_like(z)
    (product,) = torch.autograd.grad(pulled, u, v)
    h = 1e-6
    assert torch.allclose(product, ((f(z + h * v) - f(z - h * v)) / (2 * h)).detach(), atol=1e-7)


class Scanned(nn.Module):
    """A recurrence in logarithms, computed for all times at once, as minimal GRUs do."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 6)

    def forward(self, x):
        z, h = self.gate(x).unflatten(-1, (2, 3)).unbind(-2)
        decay = F.logsigmoid(-z).cumsum(1)
        return (decay + (F.logsigmoid(z) + F.softplus(h).log() - decay).logcumsumexp(1)).exp()[:, -1]


@pytest.mark.parametrize("way", WAYS)
def test_operations_without_a_second_derivative_train_by_all_methods(way):
    trained_ok("logcumsumexp", lambda: Net(Scanned(), 3), SEQUENCES, way)
    trained_ok("hardsigmoid", lambda: Net(flat(nn.Hardsigmoid()), 8), FLAT, way)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 1, -1])
def test_the_substitute_of_embedding_bag_computes_the_same(mode, padding):
    weight, words = torch.randn(9, 4, dtype=torch.float64), torch.tensor([[1, 2, 8], [1, 1, 1], [8, 8, 8], [3, 1, 3]])
    bag = F.embedding_bag
    expected = bag(words, weight, mode=mode, padding_idx=padding)
    assert torch.allclose(SUBSTITUTES[bag](words, weight, mode=mode, padding_idx=padding), expected)
    with Substituted():
        assert torch.allclose(bag(words, weight, mode=mode, padding_idx=padding), expected)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, float("inf")])
def test_the_substitute_of_cdist_computes_the_same(p):
    assert torch.allclose(SUBSTITUTES[torch.cdist](FLAT, FLAT[:5], p), torch.cdist(FLAT, FLAT[:5], p), atol=1e-6)
