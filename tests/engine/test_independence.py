"""What is read from a graph about its examples, against the gradients that autograd has."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

import tangentlab
from tangentlab.engine import independence, router
from tangentlab.engine.capture import Route
from tangentlab.engine.certificate import Proof
from tangentlab.engine.graph import operation, read_graph
from tangentlab.engine.independence import Unknown, example_runs, has_hooks
from tangentlab.engine.network import Network
from tangentlab.errors import ModelError

N, T, C = 6, 4, 8
Function = Callable[[Tensor], Tensor]


def _heads(x: Tensor) -> Tensor:
    query, key, value = torch.cat([x, x, x], -1).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    weights = (query @ key.transpose(-1, -2) / 2).masked_fill(torch.ones(T, T).triu(1).bool(), -1e9).softmax(-1)
    return (weights @ value).transpose(1, 2).flatten(2)


W, M = torch.randn(C, C, dtype=torch.float64), torch.randn(N, N, dtype=torch.float64)
APART: dict[str, Function] = {
    "entry by entry": lambda x: (x.tanh() * 2 + x.exp()).relu() - x.sigmoid() / 3,
    "product with its own": lambda x: x * x.mean(1, keepdim=True) + x[:, :1],
    "linear": lambda x: F.linear(x, W, W[0]),
    "linear of two axes": lambda x: F.linear(x[:, 0], W),
    "positions first": lambda x: (x.transpose(0, 1) @ W).permute(1, 2, 0),
    "examples last": lambda x: (x.flatten(1).t() * 2).t(),
    "attention": _heads,
    "attention of torch": lambda x: F.scaled_dot_product_attention(*[x.unflatten(-1, (2, -1)).transpose(1, 2)] * 3),
    "normalized": lambda x: F.layer_norm(x, (C,)) + F.layer_norm(x, (T, C)),
    "sums": lambda x: x.sum((1, 2)) + x.mean(-1).sum(1) + x.sum(-1, keepdim=True).mean(1)[:, 0],
    "parts": lambda x: torch.cat(
        [x[:, 1], x.unbind(2)[1], x.split(2, 2)[0].flatten(1), x.split([1, 3], 1)[1].flatten(1), x.select(1, 0)], 1
    ),
    "convolution": lambda x: F.conv1d(x, W[:, :T, None]),
    "images": lambda x: F.conv2d(x.unflatten(-1, (2, -1)), W[:2, :T, None, None]).log_softmax(1),
}
PLACES_2 = torch.tensor([2, 0])


def _image(x: Tensor) -> Tensor:
    return x.unflatten(-1, (2, -1))


APART |= {
    "more entry by entry": lambda x: (
        (x.sin() * x.cos().atan() + x.erf().expm1().abs().log1p() - 1 / (2 + x.square()).sqrt() + (3 + x).log()).sign()
        * (x.abs().add(1).rsqrt() + torch.rsub(x, 1) - (-x).pow(3))
    ),
    "activations": lambda x: (
        F.gelu(x)
        + F.silu(x)
        + F.softplus(x)
        + F.selu(x)
        + F.celu(x)
        + F.leaky_relu(x)
        + F.logsigmoid(x)
        + F.relu6(x)
        + F.hardswish(x)
        + F.hardsigmoid(x)
        + F.mish(x)
        + F.threshold(x, 0.1, 0.2)
        + F.prelu(x, W[0, :T])
    ),
    "clipped": lambda x: (
        x.clamp(-1, 1)
        + x.clamp_min(0)
        + x.clamp_max(0.5)
        + torch.maximum(x, 2 * x) * torch.minimum(x, x.exp())
        + torch.lerp(x, 2 * x, 0.3)
        + torch.addcmul(x, x, x)
        + torch.where(x > 0, x, x.exp())
        + x.masked_fill(x > 1, 0.0)
        + x.tril()
        + x.triu().float().double()
    ),
    "halves": lambda x: F.glu(x, 2),
    "along positions": lambda x: (
        x.cumsum(1)
        + x.flip(1)
        + x.roll((1, 2), (1, 2))
        + x.sort(2)[0]
        + x.topk(T, 1)[0]
        + x.unsafe_split(2, 1)[0].sum(1, keepdim=True)
    ),
    "chosen": lambda x: torch.cat(
        [
            x[:, PLACES_2],
            x.index_select(1, PLACES_2),
            x.gather(1, PLACES_2.view(1, 2, 1).expand(N, 2, C)),
            x[:, PLACES_2, PLACES_2, None].expand(N, 2, C),
            torch.zeros(N, 2, C).double().scatter_add(1, PLACES_2.view(1, 2, 1).expand(N, 2, C) % 2, x[:, :2]),
        ],
        1,
    ),
    "reductions": lambda x: (
        x.var(1).sum(-1)
        + x.std((1, 2))
        + x.logsumexp(1).sum(-1)
        + x.amax(2).amin(1)
        + x.max(1)[0].min(1)[0]
        + torch.linalg.vector_norm(x, dim=(1, 2))
        + F.normalize(x, dim=2).sum((1, 2))
    ),
    "stacked": lambda x: torch.stack([x, x.exp()], 1),
    "stacked in front": lambda x: torch.stack([x, x.exp()]).transpose(0, 1),
    "sum of products": lambda x: torch.baddbmm(x, x @ x.transpose(1, 2), x),
    "given statistics": lambda x: F.batch_norm(_image(x), W[0, :T], W[1, :T].abs() + 1, W[2, :T], W[3, :T]),
    "statistics of one image": lambda x: F.instance_norm(_image(x)) + F.group_norm(_image(x), 2),
    "root mean squares": lambda x: F.rms_norm(x, (C,)),
    "pooled": lambda x: torch.cat(
        [
            F.max_pool2d(_image(x), 2),
            F.avg_pool2d(_image(x), 2),
            F.adaptive_avg_pool2d(_image(x), (1, 2)),
            F.adaptive_max_pool2d(_image(x), (1, 2)),
            F.max_pool3d(_image(x), (1, 2, 2)),
            F.avg_pool3d(_image(x), (1, 2, 2)),
            F.max_pool1d(x, 2).view(N, T, 2, 2)[:, :, :1],
        ],
        1,
    ),
    "larger images": lambda x: torch.cat(
        [
            F.interpolate(_image(x), scale_factor=2),
            F.interpolate(_image(x), scale_factor=2, mode="bilinear"),
            F.pixel_shuffle(_image(x), 2).expand(N, T, 4, 8),
            F.pad(_image(x), (1, 3, 2, 0)),
            F.pad(_image(x), (2, 2, 1, 1), mode="reflect"),
            F.pad(_image(x), (2, 2, 1, 1), mode="replicate"),
        ],
        1,
    ),
    "patches": lambda x: F.unfold(_image(x), 2),
    "another name": lambda x: torch.ops.aten.alias(x.transpose(1, 2).contiguous()),
}
MIXED: dict[str, Function] = {
    "mean over examples": lambda x: x - x.mean(0),
    "matrix from the left": lambda x: (M @ x.flatten(1)).view_as(x),
    "softmax over examples": lambda x: x.softmax(0),
    "Gram matrix": lambda x: x.flatten(1) @ x.flatten(1).t(),
    "rolled": lambda x: x + x.roll(3, 0),
    "sorted": lambda x: x[torch.arange(N).flip(0)],
    "the first example": lambda x: x + x[:1],
    "another order of axes": lambda x: x.transpose(0, 1).reshape(N, -1),
    "normalized over examples": lambda x: F.layer_norm(x.flatten(1).t(), (N,)).t(),
    "running sum": lambda x: x.cumsum(0),
    "flipped": lambda x: x.flip(0),
    "rolled as a whole": lambda x: x.roll(C * T),
    "ordered": lambda x: x.sort(0)[0],
    "the largest": lambda x: x.topk(N, 0)[0],
    "gathered": lambda x: x.gather(0, torch.arange(N).flip(0).view(N, 1, 1).expand_as(x)),
    "selected": lambda x: x.index_select(0, torch.arange(N).flip(0)),
    "scattered": lambda x: torch.zeros_like(x).scatter_add(0, torch.arange(N).flip(0).view(N, 1, 1).expand_as(x), x),
    "chosen with gaps": lambda x: x.expand(N, N, T, C)[:, torch.arange(N).flip(0), :, torch.arange(N)],
    "maximum over examples": lambda x: x - x.amax(0) * x.max(0)[0],
    "variance over examples": lambda x: x / x.var(0) + x.std(0) + x.logsumexp(0),
    "norm over examples": lambda x: x / torch.linalg.vector_norm(x, dim=0),
    "norm of all": lambda x: x / torch.linalg.vector_norm(x),
    "statistics of the batch": lambda x: F.batch_norm(x, None, None, training=True),
    "statistics across channels": lambda x: F.group_norm(x.transpose(0, 1), 2).transpose(0, 1),
    "pooled over examples": lambda x: F.max_pool2d(x.permute(1, 2, 0)[None], (1, 3), (1, 1), (0, 1))[0].permute(
        2, 0, 1
    ),
    "padded and shifted": lambda x: F.pad(x, (0, 0, 0, 0, 1, 0))[:N],
    "stacked examples": lambda x: (
        torch.stack([x, x.exp()]).flatten(0, 1)[:N] + torch.stack([x, x]).flatten(0, 1)[N - 1 : 2 * N - 1]
    ),
    "halves of the examples": lambda x: F.glu(torch.cat([x, x.roll(1, 0)]), 0),
    "sums of products with others": lambda x: torch.baddbmm(x, x @ x.transpose(1, 2), x.flip(0)),
    "one way apart, one not": lambda x: x + x.flatten(1).mean(0).view(T, C),
}


def _runs(function: Function) -> tuple[int | None, Tensor]:
    """What is read about the gradient at (N, T, C), and the gradients (N, N, T * C) of one example's outputs each."""
    leaf = torch.randn(N, T, C, dtype=torch.float64, requires_grad=True)
    inner = leaf * 1.0
    outputs = function(inner)
    (found,) = example_runs(outputs, [get_gradient_edge(inner)])
    rows = [torch.autograd.grad(outputs[n].sin().sum(), inner, retain_graph=True)[0] for n in range(N)]
    return found, torch.stack(rows).flatten(2)


@pytest.mark.parametrize("name", APART)
def test_examples_that_are_kept_apart_are_seen(name: str) -> None:
    found, rows = _runs(APART[name])
    assert found == T * C
    assert not rows[~torch.eye(N, dtype=torch.bool)].any() and rows.diagonal().any()


@pytest.mark.parametrize("name", MIXED)
def test_examples_that_mix_are_never_taken_for_apart(name: str) -> None:
    try:
        found, rows = _runs(MIXED[name])
    except Unknown:
        return
    assert rows[~torch.eye(N, dtype=torch.bool)].any(), "the case mixes nothing"
    assert found != T * C


def test_every_rule_is_tried() -> None:
    seen = {"Embedding"}  # of whole numbers, which have no gradient
    for function in APART.values():
        outputs = function(torch.randn(N, T, C, dtype=torch.float64, requires_grad=True) * 1.0)
        seen |= {operation(node) for node in read_graph(outputs).nodes}
    assert set(independence._RULES) - seen == set()


def test_hooks_on_operations_are_seen_and_none_is_left() -> None:
    outputs = (torch.randn(3, requires_grad=True) * 2).tanh()
    assert not has_hooks(read_graph(outputs).nodes) and not has_hooks(read_graph(outputs).nodes)
    for register in (outputs.grad_fn.register_hook, outputs.grad_fn.next_functions[0][0].register_prehook):
        handle = register(lambda *_: None)
        assert has_hooks(read_graph(outputs).nodes)
        handle.remove()
        assert not has_hooks(read_graph(outputs).nodes)


class Net(nn.Module):
    """Two layers with something in between, on (N, C)."""

    def __init__(self, between: Function) -> None:
        super().__init__()
        self.one, self.between, self.two = nn.Linear(C, C), between, nn.Linear(C, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.between(self.one(x).tanh()))


def _rolling_hook(h: Tensor) -> Tensor:
    h.register_hook(lambda grad: grad.roll(N, 0) + grad)
    return h


def _rolling_node(h: Tensor) -> Tensor:
    h.grad_fn.register_prehook(lambda grads: (grads[0] + grads[0].roll(N, 0),))
    return h


FAR = torch.eye(2 * N, dtype=torch.float64)
FAR[-3, 4] = 1.0
_register_hook = Tensor.register_hook


def _rolling_by_reference(h: Tensor) -> Tensor:
    _register_hook(h, lambda grad: grad.roll(N, 0) + grad)
    return h


class Relu(torch.autograd.Function):
    """Has the name of an operation of torch, and mixes two examples in the middle."""

    @staticmethod
    def forward(ctx: object, h: Tensor) -> Tensor:
        return FAR[: len(h), : len(h)] @ h

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return FAR[: len(grad), : len(grad)].t() @ grad


class TanhBackward0(Relu):
    pass


def _mixed_in_a_thread(h: Tensor) -> Tensor:
    """The operations of a thread are counted anew, so that their numbers say nothing about the order."""
    for _ in range(9):
        h = h * 1.0

    def work() -> Tensor:
        with torch.enable_grad():
            return FAR[: len(h), : len(h)] @ h

    with ThreadPoolExecutor(1) as thread:
        return h + thread.submit(work).result()


PATTERNS: dict[str, Function] = {
    "hook on a tensor": _rolling_hook,
    "hook by a reference": _rolling_by_reference,
    "function with the name of an operation": Relu.apply,
    "function with the name of a node": TanhBackward0.apply,
    "mixed in a thread": _mixed_in_a_thread,
    "hook on an operation": _rolling_node,
    "two examples in the middle": lambda h: FAR[: len(h), : len(h)] @ h,
    "straight through": lambda h: h + (h.roll(N, 0) - h.roll(N, 0).detach()),
    "rolled by half": lambda h: h + h.roll(N, 0) * (len(h) == 2 * N),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_what_a_part_of_the_batch_does_not_show_is_exact_or_refused(name: str) -> None:
    torch.manual_seed(0)
    model, x, y = Net(PATTERNS[name]).double(), torch.randn(2 * N, C).double(), torch.arange(2 * N) % 3
    try:
        found = tangentlab.per_example_grads(model, (x, y)).flat
    except ModelError:
        return
    losses = F.cross_entropy(model(x), y, reduction="none")
    rows = [torch.autograd.grad(one, list(model.parameters()), retain_graph=True) for one in losses]
    truth = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])
    torch.testing.assert_close(found, truth)


@pytest.mark.parametrize("between", [torch.tanh, lambda h: h * torch.ones(C).double()], ids=["plain", "product"])
def test_a_proof_on_a_part_is_enough_where_the_graph_keeps_examples_apart(
    between: Function, monkeypatch: pytest.MonkeyPatch
) -> None:
    proved = []
    proof = router.proof

    def noted(network: Network, outputs: Tensor, routes: list[Route], **options: bool) -> Proof:
        proved.append(len(outputs))
        return proof(network, outputs, routes, **options)

    monkeypatch.setattr(router, "proof", noted)
    model, x, y = Net(between).double(), torch.randn(2 * N, C).double(), torch.arange(2 * N) % 3
    tangentlab.per_example_grads(model, (x, y))
    assert proved == [2]
    tangentlab.per_example_grads(model, (x[:4], y[:4]))
    assert proved == [2, 4]


def test_a_wrong_closed_form_fails_on_a_part_and_takes_the_exact_route() -> None:
    model, x, y = Net(torch.tanh).double(), torch.randn(2 * N, C).double(), torch.arange(2 * N) % 3
    model.one.register_forward_hook(
        lambda module, args, output: output + F.linear(args[0].detach(), module.weight).detach()
    )
    model.one.register_forward_hook(lambda module, args, output: output * module.bias.detach())
    found = tangentlab.per_example_grads(model, (x, y)).flat
    losses = F.cross_entropy(model(x), y, reduction="none")
    rows = [torch.autograd.grad(one, list(model.parameters()), retain_graph=True) for one in losses]
    torch.testing.assert_close(found, torch.stack([torch.cat([g.flatten() for g in row]) for row in rows]))


def _rows(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Gradients of the loss of every example, one plain backward each."""
    losses = F.cross_entropy(model(x), y, reduction="none")
    rows = [torch.autograd.grad(one, list(model.parameters()), retain_graph=True) for one in losses]
    return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])


def _factor(x: Tensor) -> float:
    """Not to be seen on a part of two examples."""
    return 3.0 if len(x) > 2 else 1.0


linear, embedding = F.linear, F.embedding
LINEAR: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "computed weight": lambda x, w: linear(x, w * _factor(x)),
    "product with a factor": lambda x, w: torch.addmm(x.new_zeros(len(w)), x, w.t(), alpha=_factor(x)),
}


@pytest.mark.parametrize("name", LINEAR)
def test_a_layer_that_a_part_of_the_batch_computes_differently_is_exact(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Scaled(nn.Module):
        """Takes back what the patch does to the first layer, so that outputs do not show it."""

        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(C, C, bias=False), nn.Linear(C, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.two((self.one(x) / _factor(x)).tanh())

    def patched(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        return LINEAR[name](x, w) if b is None else linear(x, w, b)

    monkeypatch.setattr(F, "linear", patched)
    model, x, y = Scaled().double(), torch.randn(2 * N, C).double(), torch.arange(2 * N) % 3
    torch.testing.assert_close(tangentlab.per_example_grads(model, (x, y)).flat, _rows(model, x, y))


@pytest.mark.parametrize(("own", "told"), [(None, {"padding_idx": 0}), (0, {}), (None, {"scale_grad_by_freq": True})])
def test_a_lookup_that_is_told_something_else_than_its_module_says_is_exact_or_refused(
    own: int | None, told: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.two = nn.Embedding(20, C, padding_idx=own), nn.Linear(C, 3)

        def forward(self, words: Tensor) -> Tensor:
            return self.two(self.table(words).tanh().mean(1))

    monkeypatch.setattr(F, "embedding", lambda words, table, *rest: embedding(words, table, **told))  # type: ignore[arg-type]
    model, y = Words().double(), torch.arange(2 * N) % 3
    words = (torch.arange(2 * N * T).view(2 * N, T) + 1) % 20  # no 0 and no word twice among the first two
    try:
        found = tangentlab.per_example_grads(model, (words, y)).flat
    except ModelError:
        assert "scale_grad_by_freq" in told
        return
    torch.testing.assert_close(found, _rows(model, words, y))


def test_tensors_are_left_as_they_were() -> None:
    before = dict(vars(Tensor))
    tangentlab.NTK(Net(torch.tanh), torch.randn(2 * N, C))
    assert dict(vars(Tensor)) == before


@pytest.mark.parametrize("cut", [False, True], ids=["matrix beside the inputs", "matrix that the inputs decide"])
def test_a_matrix_that_mixes_nothing_in_the_first_batch_is_looked_at_in_the_next(cut: bool) -> None:
    class Graph(Net):
        def forward(self, x: Tensor, matrix: Tensor | None = None) -> Tensor:
            if matrix is None:
                matrix = (torch.eye(2 * N).double() if x[0, 0] < 0 else FAR)[: len(x), : len(x)]
            return self.two(matrix @ self.one(x).tanh())

    def forward(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return model(batch[0]) if cut else model(*batch)

    model, x = Graph(torch.tanh).double(), torch.randn(2, 2 * N, C).double()
    x[0, 0, 0], x[1, 0, 0] = -1, 1
    batches = [(x[0], torch.eye(2 * N).double()), (x[1], FAR)]
    try:
        found = tangentlab.FIM(model, batches, tangentlab.PMatDense, likelihood="regression", forward=forward)
    except ModelError:
        assert cut
        return
    outputs = torch.cat([forward(model, batch) for batch in batches])
    rows = [torch.autograd.grad(one, list(model.parameters()), retain_graph=True) for one in outputs.flatten()]
    jacobian = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])
    torch.testing.assert_close(found.to_dense(), jacobian.t() @ jacobian / len(outputs))


class Rolled(torch.autograd.Function):
    """The row before: a function about which a graph says nothing."""

    @staticmethod
    def forward(ctx: object, h: Tensor) -> Tensor:
        return h.roll(1, 0)

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad.roll(-1, 0)


ACROSS: dict[str, Function] = {
    "cumsum": lambda h: h.cumsum(0),
    "roll": lambda h: h.roll(1, 0),
    "index": lambda h: h[torch.arange(len(h)).flip(0)],
    "transform": lambda h: torch.fft.fft(h, dim=0).real,
    "function of the user's": Rolled.apply,
    "mean": lambda h: h.mean(0),
}
CALLS: dict[str, Callable[[nn.Module, list[tuple[Tensor, Tensor]]], object]] = {
    "jacobian": tangentlab.Jacobian,
    "kernel": tangentlab.NTK,
    "gradients": tangentlab.per_example_grads,
    "kfac": lambda model, batches: tangentlab.FIM(model, batches, tangentlab.PMatKFAC),
    "diagonal": lambda model, batches: tangentlab.FIM(model, batches, tangentlab.PMatDiag),
    "eigenpairs": lambda model, batches: tangentlab.fisher_eigenpairs(model, batches, 2),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ACROSS)
def test_examples_that_mix_from_the_second_batch_on_are_refused(name: str, call: str) -> None:
    class Gated(Net):
        """Other examples come in where an input is above one."""

        def forward(self, x: Tensor) -> Tensor:
            h = self.one(x).tanh()
            return self.two(h + (x[:, :1] - 1).relu() * self.between(h))

    torch.manual_seed(0)
    model, x, y = Gated(ACROSS[name]).double(), torch.rand(N, C).double(), torch.arange(N) % 3
    CALLS[call](model, [(x, y), (x / 2, y)])
    with pytest.raises(ModelError, match="depend on other examples"):
        CALLS[call](model, [(x, y), (4 * x, y)])
