"""Matrices that are never stored speak of the model as it is now, whatever has changed; inside `frozen()` and inside one
operation nothing is computed twice."""

from collections.abc import Callable
from contextlib import nullcontext
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tangentlab as tl
from tangentlab.errors import ModelError
from tangentlab.linearized import kernel_descent
from tangentlab.objects.fmat import FMat
from tangentlab.objects.maps import PullBack

DOUBLE = torch.float64


class Count:
    """Forwards of a model; no attribute of it, so that nobody puts it back."""

    forwards = 0


class Net(nn.Module):
    """Whatever a model may depend on: attributes, lists, buffers, modes, hooks, its layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.bend, self.last = nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)
        self.register_buffer("shift", torch.tensor([0.1, -0.2, 0.3, 0.5]))
        self.temperature, self.scales, self.table = 1.0, [1.0], {"slope": 1.0}
        self.no_grad, self.count = False, Count()

    def forward(self, x: Tensor) -> Tensor:
        self.count.forwards += 1
        hidden = self.bend(self.first(x)) + self.shift
        with torch.no_grad() if self.no_grad else nullcontext():
            hidden = hidden * (1 + self.first.weight.square().mean())
        if self.training:
            hidden = hidden * 2
        return self.last(hidden) / self.temperature * self.scales[0] * self.table["slope"]


SCALE = {"forward": 1.0}


def forward(model: Any, batch: Any) -> Any:
    return model(batch[0] if isinstance(batch, tuple) else batch) * SCALE["forward"]


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 3, dtype=DOUBLE, generator=generator)
    return x, torch.randn(6, 3, dtype=DOUBLE, generator=generator)


def pvector(model: nn.Module, batch: int = 2) -> tl.PVector:
    return tl.PVector.random_unit(model, batch=batch, generator=torch.Generator().manual_seed(2))


def fvector(batch: int = 2) -> tl.FVector:
    return tl.FVector(torch.randn(batch, 3, 6, dtype=DOUBLE, generator=torch.Generator().manual_seed(3)))


def hessian(model: nn.Module, batch: Any, kind: Any) -> Any:
    return tl.Hessian(model, batch, kind, loss=lambda f, y: (f - y).pow(4).sum(1), forward=forward)


def second(model: nn.Module, batch: Any) -> Any:
    """The same network, as a term of a sum."""
    return tl.FIM_Empirical(model, batch, tl.PMatImplicit, "regression", forward=forward)


Make = Callable[[nn.Module, Any], Any]
WITHOUT_STORE: dict[str, tuple[Make, Make]] = {
    "FIM": tuple(
        lambda m, b, kind=kind: tl.FIM(m, b, kind, forward=forward) for kind in (tl.PMatImplicit, tl.PMatDense)
    ),
    "GGN": tuple(
        lambda m, b, kind=kind: tl.GGN(m, b, kind, loss="regression", forward=forward)
        for kind in (tl.PMatImplicit, tl.PMatDense)
    ),
    "empirical": tuple(
        lambda m, b, kind=kind: tl.FIM_Empirical(m, b, kind, "regression", forward=forward)
        for kind in (tl.PMatImplicit, tl.PMatDense)
    ),
    "Hessian": tuple(lambda m, b, kind=kind: hessian(m, b, kind) for kind in (tl.PMatImplicit, tl.PMatDense)),
    "scaled": (
        lambda m, b: 2 * tl.FIM(m, b, tl.PMatImplicit, forward=forward),
        lambda m, b: 2 * tl.FIM(m, b, tl.PMatDense, forward=forward),
    ),
    "sum": (
        lambda m, b: hessian(m, b, tl.PMatImplicit) + second(m, b),
        lambda m, b: hessian(m, b, tl.PMatDense) + tl.FIM_Empirical(m, b, tl.PMatDense, "regression", forward=forward),
    ),
    "product": (
        lambda m, b: tl.FIM(m, b, tl.PMatImplicit, forward=forward) @ second(m, b),
        lambda m, b: (
            tl.FIM(m, b, tl.PMatDense, forward=forward)
            @ tl.FIM_Empirical(m, b, tl.PMatDense, "regression", forward=forward)
        ),
    ),
    "NTK": (
        lambda m, b: tl.NTK(m, b, representation=tl.FMatImplicit, forward=forward),
        lambda m, b: tl.NTK(m, b, forward=forward),
    ),
    "cross NTK": (
        lambda m, b: tl.NTK(m, b[0], data()[1], representation=tl.FMatImplicit, forward=forward),
        lambda m, b: tl.NTK(m, b[0], data()[1], forward=forward),
    ),
    "push": (
        lambda m, b: tl.Jacobian(m, b, tl.PushForwardImplicit, forward=forward),
        lambda m, b: tl.Jacobian(m, b, forward=forward),
    ),
    "pull": (
        lambda m, b: tl.Jacobian(m, b, tl.PullBackImplicit, forward=forward),
        lambda m, b: tl.Jacobian(m, b, forward=forward).T,
    ),
}


def product(matrix: Any, model: nn.Module) -> Tensor:
    on_functions = isinstance(matrix, FMat | PullBack)
    return matrix.mv(fvector() if on_functions else pvector(model)).flat


def _permuted(tensor: Tensor) -> None:
    """Other values with the same sum and the same sum of squares, where no version tells."""
    tensor.data.copy_(tensor.data.flatten().roll(1).reshape(tensor.shape).clone())


def _in_numpy(tensor: Tensor) -> None:
    array = tensor.detach().numpy()
    array[...] = array[..., ::-1].copy()


def _set(key: str, value: Any) -> Callable[[Net, Tensor], None]:
    return lambda net, _: setattr(net, key, value)


def _relu(net: Net, _: Tensor) -> None:
    net.bend = nn.Softplus()


def _other_layer(net: Net, _: Tensor) -> None:
    torch.manual_seed(5)
    net.last = nn.Linear(4, 3).double()


def _doubled(net: Net, _: Tensor) -> None:
    net.last.register_forward_hook(lambda module, args, output: 2 * output)


def _before(net: Net, _: Tensor) -> None:
    net.first.register_forward_pre_hook(lambda module, args: (3 * args[0],))


def _own_forward(net: Net, _: Tensor) -> None:
    net.bend.forward = torch.sin  # type: ignore[method-assign]


def _closure(net: Net, _: Tensor) -> None:
    SCALE["forward"] = 2.0


CHANGES: dict[str, Callable[[Net, Tensor], None]] = {
    "attribute": _set("temperature", 3.0),
    "no_grad inside the forward": _set("no_grad", True),
    "list": lambda net, _: net.scales.__setitem__(0, 4.0),
    "dict": lambda net, _: net.table.update(slope=0.5),
    "weight in place": lambda net, _: net.first.weight.data.mul_(1.5),
    "weight permuted through .data": lambda net, _: _permuted(net.first.weight),
    "weight through numpy": lambda net, _: _in_numpy(net.last.weight),
    "bias permuted": lambda net, _: _permuted(net.first.bias),
    "buffer permuted": lambda net, _: _permuted(net.shift),
    "buffer through numpy": lambda net, _: _in_numpy(net.shift),
    "buffer replaced": _set("shift", torch.tensor([0.5, 0.3, -0.2, 0.1], dtype=DOUBLE)),
    "mode": lambda net, _: net.eval(),
    "hook": _doubled,
    "pre-hook": _before,
    "activation": _relu,
    "layer": _other_layer,
    "forward of a module": _own_forward,
    "what forward= reads": _closure,
    "data through numpy": lambda _, x: _in_numpy(x),
    "data permuted through .data": lambda _, x: _permuted(x),
}


@pytest.fixture(autouse=True)
def _same_scale() -> Any:
    yield
    SCALE["forward"] = 1.0


BASIC = ("FIM", "Hessian", "NTK", "pull")
"""The others are made of these."""
CASES = [(name, change) for name in WITHOUT_STORE for change in (CHANGES if name in BASIC else list(CHANGES)[:6:5])]


@pytest.mark.parametrize(("name", "change"), CASES)
def test_a_product_is_that_of_the_model_and_the_data_as_they_are_now(name: str, change: str) -> None:
    net, batch = Net().double().train(), data()
    implicit, dense = WITHOUT_STORE[name]
    matrix = implicit(net, batch)
    for _ in range(4):
        before = product(matrix, net)
    CHANGES[change](net, batch[0])
    after = product(matrix, net)
    torch.testing.assert_close(after, product(dense(net, batch), net))
    assert not torch.allclose(before, after, rtol=1e-3)


@pytest.mark.parametrize("change", CHANGES)
def test_every_operation_is_that_of_the_model_as_it_is_now(change: str) -> None:
    net, batch = Net().double().train(), data()
    matrix = tl.FIM(net, batch, tl.PMatImplicit, forward=forward)
    v = pvector(net)

    def answers(matrix: Any) -> list[Tensor]:
        pairs = matrix.top_eigenpairs(2, generator=torch.Generator().manual_seed(0))
        return [
            matrix.solve(v, 0.1).flat,
            matrix.vTMv(v),
            matrix.trace(),
            matrix.diag().flat,
            matrix.to_dense(),
            pairs.values,
        ]

    answers(matrix)
    CHANGES[change](net, batch[0])
    for found, truth in zip(answers(matrix), answers(tl.FIM(net, batch, tl.PMatDense, forward=forward))):
        torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", WITHOUT_STORE)
def test_after_frozen_a_product_is_again_that_of_the_model_as_it_is(name: str) -> None:
    net, batch = Net().double().train(), data()
    implicit, dense = WITHOUT_STORE[name]
    matrix = implicit(net, batch)
    with matrix.frozen(), matrix.frozen():
        product(matrix, net)
    with pytest.raises(KeyError), matrix.frozen():
        product(matrix, net)
        raise KeyError
    net.temperature = 3.0
    torch.testing.assert_close(product(matrix, net), product(dense(net, batch), net))


BY_FORWARD_MODE = ("NTK", "cross NTK", "push")
"""Products with J v, which is a forward of its own for every v."""


@pytest.mark.parametrize("name", [name for name in WITHOUT_STORE if name not in BY_FORWARD_MODE])
def test_inside_frozen_no_forward_is_repeated(name: str) -> None:
    net, batch = Net().double().train(), data()
    matrix = WITHOUT_STORE[name][0](net, batch)
    with matrix.frozen():
        first = product(matrix, net)
        before = net.count.forwards
        for _ in range(3):
            torch.testing.assert_close(product(matrix, net), first, rtol=1e-12, atol=1e-12)
        assert net.count.forwards == before
    product(matrix, net)
    assert net.count.forwards > before


@pytest.mark.parametrize("name", BY_FORWARD_MODE)
def test_inside_frozen_every_direction_costs_one_forward_derivative(name: str) -> None:
    net, batch = Net().double().train(), data()
    matrix = WITHOUT_STORE[name][0](net, batch)
    with matrix.frozen():
        first = product(matrix, net)
        for _ in range(3):
            before = net.count.forwards
            torch.testing.assert_close(product(matrix, net), first, rtol=1e-12, atol=1e-12)
            assert net.count.forwards == before + 2  # the product is of two vectors


def test_inside_frozen_gradients_of_several_batches_are_kept_where_they_fit() -> None:
    net, (x, y) = Net().double().train(), data()
    batches = list(zip(x.split(4), y.split(4)))
    v = pvector(net)
    truth = tl.FIM(net, batches, tl.PMatDense, forward=forward).mv(v).flat
    for budget in (None, 100):
        with tl.memory_limit(budget):
            matrix = tl.FIM(net, batches, tl.PMatImplicit, forward=forward)
            with matrix.frozen():
                torch.testing.assert_close(matrix.mv(v).flat, truth)
                before = net.count.forwards
                torch.testing.assert_close(matrix.mv(v).flat, truth)
                assert (net.count.forwards == before) == (budget is None)


OPERATIONS: dict[str, Callable[[Any, nn.Module], Any]] = {
    "solve": lambda F, m: F.solve(pvector(m), 1e3),
    "eigenpairs": lambda F, m: F.top_eigenpairs(2),
    "trace": lambda F, m: F.estimate_trace(12, method="hutchinson"),
    "sketched trace": lambda F, m: F.estimate_trace(12),
    "diagonal": lambda F, m: F.estimate_diag(12),
    "determinant": lambda F, m: F.estimate_logdet(0.1, probes=3, steps=4),
    "density": lambda F, m: F.spectral_density(probes=3, steps=4),
    "sample": lambda F, m: F.sample(1e3, samples=1),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [(n, k) for n in OPERATIONS for k in ("FIM", "Hessian") if (n, k) != ("determinant", "Hessian")],  # indefinite
)
def test_one_operation_goes_through_the_model_once_however_many_products_it_takes(name: str, kind: str) -> None:
    net, batch = Net().double().train(), data()
    matrix = WITHOUT_STORE[kind][0](net, batch)
    before = net.count.forwards
    OPERATIONS[name](matrix, net)
    assert net.count.forwards - before <= 4  # a forward, its twins on the first and on the last examples, and the proof


def test_a_preconditioner_is_frozen_for_the_whole_solve() -> None:
    net, batch = Net().double().train(), data()
    matrix, other = (WITHOUT_STORE[kind][0](net, batch) for kind in ("FIM", "empirical"))
    before = net.count.forwards
    matrix.solve_cg(pvector(net, 1), 0.1, preconditioner=other)
    assert net.count.forwards - before <= 8


def test_steps_with_an_implicit_kernel_go_on_from_one_graph() -> None:
    net, (x, y) = Net().double().train(), data()
    kernel = tl.NTK(net, x, representation=tl.FMatImplicit)
    dense = tl.NTK(net, x)
    start = net(x).detach()

    def path(kernel: Any) -> Tensor:
        return kernel_descent(kernel, lambda f: (f - y).square().sum(), start, [0, 5], lr=0.01).train

    before = net.count.forwards
    found = path(kernel)
    assert net.count.forwards - before <= 5 + 4  # J v of every step, and one graph with its proof
    torch.testing.assert_close(found, path(dense))


def test_a_step_of_an_optimizer_inside_frozen_is_refused() -> None:
    net, batch = Net().double().train(), data()
    for implicit, _ in WITHOUT_STORE.values():
        matrix = implicit(net, batch)
        with matrix.frozen():
            product(matrix, net)
            with torch.no_grad():
                net.first.weight.mul_(1.1)
            with pytest.raises(ModelError, match="changed inside of frozen"):
                product(matrix, net)
        product(matrix, net)


def test_what_one_thread_freezes_another_does_not_see() -> None:
    net, batch = Net().double().train(), data()
    matrix, dense = (make(net, batch) for make in WITHOUT_STORE["FIM"])
    found: list[Tensor] = []
    with matrix.frozen():
        product(matrix, net)
        net.temperature = 3.0
        thread = Thread(target=lambda: found.append(product(matrix, net)))
        thread.start()
        thread.join()
    torch.testing.assert_close(found[0], product(WITHOUT_STORE["FIM"][1](net, batch), net))
    assert not torch.allclose(found[0], product(dense, net))


@pytest.mark.parametrize("kind", [tl.PMatDense, tl.PMatKFAC, tl.PMatDiag])
def test_stored_matrices_can_be_frozen_too(kind: Any) -> None:
    net, (x, _) = nn.Sequential(nn.Linear(3, 2)), data()
    matrix = tl.FIM(net, x.float(), kind)
    with matrix.frozen():
        matrix.mv(pvector(net))
    with tl.Jacobian(net, x.float()).frozen(), tl.Jacobian(net, x.float()).T.frozen(), tl.NTK(net, x.float()).frozen():
        pass


def test_inside_frozen_graphs_of_several_batches_are_kept_until_the_process_has_grown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, (x, y) = Net().double().train(), data()
    batches = list(zip(x.split(2), y.split(2)))
    options = {"forward": forward, "loss": "regression"}
    truth = tl.Hessian(net, batches, tl.PMatDense, **options)
    v, grown = pvector(net), [0]
    for growth, kept in ((0, len(batches)), (40, 3), (200, 1)):

        def resident(step: int = growth) -> int:
            grown[0] += step
            return grown[0]

        monkeypatch.setattr("tangentlab.engine.frozen.resident_bytes", resident)
        matrix = tl.Hessian(net, batches, tl.PMatImplicit, **options)
        with tl.memory_limit(200), matrix.frozen():
            torch.testing.assert_close(matrix.mv(v).flat, truth.mv(v).flat)
            before = net.count.forwards
            torch.testing.assert_close(matrix.mv(v).flat, truth.mv(v).flat)
            assert net.count.forwards - before == len(batches) - kept
