"""Rows that only look like the examples of the batch are found, and announced as what they are."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tangentlab.optim import PRECONDITIONERS, ConjugateGradient, Diagonal, make_preconditioner, observer
from tests.optim.truth import backward, data, flat_gradient, tiny_conv, tiny_mlp

N = 4
MEASURING = [name for name in PRECONDITIONERS if name not in ("diagonal-ra", "cg")]


class Model(nn.Module):
    """A linear layer, something in the middle, and a head on the mean over positions."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.head = nn.Linear(3, 3), middle, nn.Linear(3, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        h = self.middle(self.first(x).tanh())
        return self.head(h.mean(1))


class Positions(nn.Module):
    """A table that is looked up once for all examples, by indices, by their row, or through another layer."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.table, self.layer, self.how = nn.Embedding(N, 3), nn.Linear(3, 3), how
        self.bare = nn.Parameter(torch.randn(N, 3))

    def forward(self, h: Tensor) -> Tensor:
        places = torch.arange(h.shape[1])
        if self.how == "bare":
            return h + self.layer(self.bare)
        if self.how == "last":
            return h[:, -1:] * self.table(places)[-1]
        places = self.table(places[None] if self.how == "row" else places)
        return h + (self.layer(places) if self.how == "layer" else places)


class Experts(nn.Module):
    """As many tokens go to the expert as there are examples."""

    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.Linear(3, 3)

    def forward(self, h: Tensor) -> Tensor:
        flat = h.flatten(0, 1)
        return flat.index_add(0, torch.arange(N), self.expert(flat[:N])).reshape(h.shape)


class Transposed(nn.Module):
    """Positions first."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, h: Tensor) -> Tensor:
        return self.fc(h.transpose(0, 1)).transpose(0, 1).tanh()


class Shifted(nn.Module):
    """Every example sees the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.fc(h).roll(1, 0)


STRANGE = {
    "indices": (lambda: Positions("indices"), {"middle.table"}),
    "row": (lambda: Positions("row"), {"middle.table"}),
    "last": (lambda: Positions("last"), {"middle.table"}),
    "layer": (lambda: Positions("layer"), {"middle.table", "middle.layer"}),
    "bare": (lambda: Positions("bare"), {"middle.layer"}),
    "experts": (Experts, {"middle.expert"}),
    "transposed": (Transposed, {"middle.fc"}),
    "shifted": (Shifted, {"first", "middle.fc"}),
}


def announced(precond) -> set[str]:
    rows = [row for row in precond.report().rows if "positions count as examples" in row.method]
    return {name.rpartition(".")[0] for row in rows for name in row.names}


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("name", MEASURING)
def test_rows_that_are_no_examples_are_announced(name: str, strange: str) -> None:
    make, expected = STRANGE[strange]
    model = Model(make())
    precond = make_preconditioner(name, model)
    for seed in range(2):
        backward(model, *data(N, N, 3, seed=seed))
        precond.step()
    assert announced(precond) == expected


@pytest.mark.parametrize("strange", STRANGE)
def test_products_of_the_whole_matrix_leave_them_alone(strange: str) -> None:
    make, expected = STRANGE[strange]
    model = Model(make())
    with pytest.warns(RuntimeWarning, match="Not preconditioned"):
        precond = ConjugateGradient(model)
        backward(model, *data(N, N, 3))
        precond.step()
    assert {group.names[0].rpartition(".")[0] for group in precond.groups}.isdisjoint(expected)


@pytest.mark.parametrize("model", [tiny_mlp(), tiny_conv()], ids=["mlp", "conv"])
def test_every_layer_is_asked_once(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, ask = [], observer.meet_other_examples
    monkeypatch.setattr(observer, "meet_other_examples", lambda *args: asked.append(len(args[1])) or ask(*args))
    shape = (4,) if isinstance(model[0], nn.Linear) else (2, 4, 4)
    precond = Diagonal(model)
    for step in range(5):
        backward(model, *data(6 + step, *shape, seed=step))
        precond.step()
    assert asked == [2] and announced(precond) == set()
    precond.remove()


def test_an_axis_that_turns_up_later_is_asked_for() -> None:
    model = Model(Transposed())
    precond = Diagonal(model)
    backward(model, *data(N + 1, N, 3))
    precond.step()
    assert announced(precond) == set()
    backward(model, *data(N, N, 3))
    precond.step()
    assert announced(precond) == {"middle.fc"}


def test_asking_changes_nothing_else() -> None:
    model, (x, y) = tiny_mlp(), data(12, 4)
    precond = Diagonal(model, damping=1e20)
    backward(model, x, y)
    expected = flat_gradient(model)
    precond.step()
    model, random = tiny_mlp(), torch.get_rng_state()
    precond = Diagonal(model, damping=1e20)
    loss = F.cross_entropy(model(x), y)
    assert all(p.grad is None for p in model.parameters())
    loss.backward()
    assert (flat_gradient(model) == expected).all() and torch.equal(torch.get_rng_state(), random)
    assert precond.step()


class Once(torch.autograd.Function):
    """A sine that refuses to be differentiated with the graph kept."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        if torch._C._autograd._get_current_graph_task_keep_graph():
            raise RuntimeError("retain_graph=False is required")
        return grad * ctx.saved_tensors[0].cos()


@pytest.mark.parametrize("how", ["once", "reentrant checkpoint"])
def test_a_graph_that_cannot_be_asked_trains_as_before(how: str) -> None:
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)
            self.double()

        def forward(self, x: Tensor) -> Tensor:
            x = x.requires_grad_()
            h = Once.apply(self.a(x)) if how == "once" else checkpoint(lambda z: self.a(z).sin(), x, use_reentrant=True)
            return self.b(h)

    model = Stubborn()
    precond = Diagonal(model)
    for step in range(2):
        backward(model, *data(6, 4, seed=step))
        precond.step()
    assert precond.report().share == 1.0 and announced(precond) == set()


def test_batch_norm_couples_all_rows_and_is_no_reason() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()
    precond = Diagonal(model)
    backward(model, *data(8, 4))
    precond.step()
    assert announced(precond) == set()
    model.eval()
    backward(model, *data(8, 4))
    with pytest.warns(RuntimeWarning, match="eval mode"):
        precond.step()
    assert announced(precond) == set()
