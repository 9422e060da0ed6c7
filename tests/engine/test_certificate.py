"""Every route is proved: models that mix rows, take derivatives or compute something else are exact or refused."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import tangentlab as tl
from tangentlab.engine import certificate
from tangentlab.engine.certificate import TOLERANCE, differs, random_weights
from tangentlab.engine.network import Network
from tangentlab.engine.rows import Engine
from tangentlab.errors import ModelError, TangentlabError
from tests.engine.state import model_state
from tests.engine.truth import dense_jacobian, relative_error

ADJACENCY = torch.rand(7, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Mixing(nn.Module):
    """Two linear layers with something between them that mixes rows of the batch."""

    def __init__(self, mix: Callable[[Tensor], Tensor], inputs: int = 3, outputs: int = 2) -> None:
        super().__init__()
        self.a, self.mix, self.b = nn.Linear(inputs, 4), mix, nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.mix(torch.tanh(self.a(x))))


def sensors(h: Tensor) -> Tensor:
    return (ADJACENCY.to(h) @ h.view(-1, 7, 4)).flatten(0, 1)


def by_segments(h: Tensor, size: int = 4) -> Tensor:
    """Temporal shift: half of the features come from the step before, in segments of a clip."""
    clips = h.view(-1, size, 4)
    return torch.cat([clips.roll(1, 1)[..., :2], clips[..., 2:]], -1).flatten(0, 1)


def group_means(h: Tensor, size: int = 4) -> Tensor:
    groups = h.view(-1, size, 4)
    return (groups + groups.mean(1, keepdim=True)).flatten(0, 1)


def from_the_third_on(h: Tensor) -> Tensor:
    return torch.cat([h[:3], h[3:] + h[3:].mean(0)])


def four_before(h: Tensor) -> Tensor:
    return h + F.pad(h, (0, 0, 4, 0))[: len(h)]


def two_equal_graphs(h: Tensor) -> Tensor:
    half = len(h) // 2
    return torch.cat([h[:half] + h[:half].sum(0), h[half:] + h[half:].sum(0)])


PATTERNS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    **{f"sensor graph, {b} snapshots": (sensors, 7 * b) for b in (1, 2, 3, 4, 5, 8)},
    **{f"temporal shift, {n}": (by_segments, n) for n in (4, 8, 16)},
    **{f"group means, {n}": (group_means, n) for n in (4, 8, 12)},
    "from the third on": (from_the_third_on, 8),
    "four before": (four_before, 9),
    "four before, eight": (four_before, 8),
    "two equal graphs": (two_equal_graphs, 12),
    "reversed": (lambda h: h.flip(0), 6),
    "sorted": (lambda h: h[h[:, 0].argsort()], 6),
    "the last sees the first": (lambda h: torch.cat([h[:-1], h[-1:] + h[:1]]), 5),
    "running sum": (lambda h: h.cumsum(0), 6),
    "maximum": (lambda h: h - h.amax(0), 5),
    "neighbours in pairs": (lambda h: h + h.view(-1, 2, 4).flip(1).flatten(0, 1), 8),
    "a little": (lambda h: h + 1e-3 * h.roll(3, 0), 7),
    "in gradients only, from the third on": (lambda h: h + from_the_third_on(h) - from_the_third_on(h).detach(), 7),
}
OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "NTK": lambda m, x: tl.NTK(m, x).data,
    "NTK trace": lambda m, x: tl.NTK(m, x, outputs="trace").data[0, :, 0],
    "Jacobian": lambda m, x: tl.Jacobian(m, x).data,
    "diagonal": lambda m, x: tl.FIM(m, x, tl.PMatDiag, "regression").diag().flat,
}


def truths(model: nn.Module, x: Any) -> dict[str, Tensor]:
    jacobian = dense_jacobian(model, x)
    kernel = torch.einsum("cnp,dmp->cndm", jacobian, jacobian)
    return {
        "NTK": kernel,
        "NTK trace": torch.einsum("cncm->nm", kernel),
        "Jacobian": jacobian,
        "diagonal": jacobian.square().sum((0, 1)) / jacobian.shape[1],
    }


def exact_or_refused(model: nn.Module, x: Any, tolerance: float = 1e-12) -> dict[str, bool]:
    """Whether every operation was refused, after checking those that were not."""
    refused, truth, before = {}, truths(model, x), model_state(model)
    for name, operation in OPERATIONS.items():
        try:
            assert relative_error(operation(model, x), truth[name]) < tolerance, name
            refused[name] = False
        except ModelError as error:
            assert "depend on other examples" in str(error)
            refused[name] = True
    assert model_state(model) == before
    return refused


@pytest.mark.parametrize("pattern", list(PATTERNS))
def test_examples_that_mix_in_any_pattern_are_exact_or_refused(pattern: str) -> None:
    mix, examples = PATTERNS[pattern]
    model, x = Mixing(mix).double(), torch.randn(examples, 3, dtype=torch.float64)
    refused = set(exact_or_refused(model, x).values())
    assert len(refused) == 1  # one verdict for all operations
    if refused == {False}:
        rows = {row.names[0]: row for row in tl.coverage(model, x).rows}
        assert rows["a.weight"].route == "fallback" or examples in (1, 7)


@pytest.mark.parametrize(
    "pattern", ["sensor graph, 4 snapshots", "temporal shift, 8", "group means, 8", "two equal graphs"]
)
def test_mixing_is_seen_in_single_precision_too(pattern: str) -> None:
    mix, examples = PATTERNS[pattern]
    exact_or_refused(Mixing(mix), torch.randn(examples, 3), 1e-4)


def test_a_mixing_that_the_data_decide_is_seen_in_the_batch_in_which_it_happens() -> None:
    def sometimes(h: Tensor) -> Tensor:
        return group_means(h, 2) if float(h.detach()[0, 0]) > 0 else h

    model = Mixing(sometimes).double()
    x = torch.randn(6, 3, dtype=torch.float64)
    with torch.no_grad():
        model.a.bias.zero_()
        apart = x if float(model.a(x)[0, 0]) < 0 else -x
    engine = Engine(Network.of(model))
    for batch, structured in ((apart, True), (-apart, False), (2 * apart, True)):
        sweep = engine.sweep(batch)
        assert all(route.structured for route in sweep.routes) == structured
        rows = torch.cat([factor.rows() for factor in sweep.factors(sweep.identity_cotangents()).values()], -1)
        assert relative_error(rows, dense_jacobian(model, batch)) < 1e-12


MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "indexed": lambda h: h[h[:, 0].argsort()],
    "sorted and put back": lambda h: h[h[:, 0].argsort()].tanh()[h[:, 0].argsort().argsort()],
    "selected": lambda h: h.index_select(0, h[:, 0].argsort()),
    "gathered": lambda h: h.gather(0, h[:, :1].argsort(0).expand_as(h)),
    "scattered": lambda h: torch.zeros_like(h).index_add(0, h[:, 0].argsort(), h),
    "looked up": lambda h: F.embedding(h[:, 0].argsort(), h),
    "rolled": lambda h: h.roll(int(h[0, 0] > h[1, 0]), 0),
    "chosen": lambda h: torch.where(h[0, 0] > h[1, 0], h.flip(0), h),
}


@pytest.mark.parametrize("move", list(MOVES))
def test_rows_that_the_data_move_are_seen_in_every_batch(move: str) -> None:
    """The first batch is in order, so that nothing moves, and the others are not."""

    class Moving(Mixing):
        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.tanh(self.a(self.mix(torch.tanh(self.first(x))))))

    torch.manual_seed(0)
    model = Moving(MOVES[move], inputs=4)
    model.first = nn.Linear(3, 4)
    model, x = model.double(), torch.randn(5, 3, dtype=torch.float64)
    order = model.first(x)[:, 0].argsort()
    batches = [(x[order],), (x[order.flip(0)],), (x[order.roll(2)],)]
    truth = torch.cat([dense_jacobian(model, batch[0]) for batch in batches], 1)
    try:
        assert relative_error(tl.Jacobian(model, batches).data, truth) < 1e-12
    except ModelError as error:
        assert "depend on other examples" in str(error)


def test_a_batch_without_gradients_proves_nothing_about_the_next() -> None:
    """The first batch leaves a layer behind dead units, and the layer computes something else than its class says."""

    class Dead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x).view(-1, 2, 4)
            return self.b(torch.relu((h + h.flip(1)).flatten(0, 1) + 100 * x[:, :1]))

    model = Dead().double()
    alive, dead = torch.rand(6, 3, dtype=torch.float64) + 1, -torch.rand(6, 3, dtype=torch.float64) - 1
    batches = [(dead,), (dead,), (alive,)]
    truth = torch.cat([dense_jacobian(model, batch[0]) for batch in batches], 1)
    assert not truth[:, :12, :16].any() and truth[:, 12:, :16].any()
    assert relative_error(tl.Jacobian(model, batches).data, truth) < 1e-12


class Forces(nn.Module):
    """Minus the gradient of an energy in the positions, as in machine-learned force fields."""

    def __init__(self, detached: bool = True) -> None:
        super().__init__()
        self.energy, self.detached = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)), detached

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_() if self.detached else x.clone().requires_grad_()
            return -torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0]


class Residual(nn.Module):
    """u'' + u of a network of one variable: a physics-informed residual, next to u itself."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, t: Tensor) -> Tensor:
        t = t.detach().requires_grad_()
        u = self.net(t)
        first = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
        second = torch.autograd.grad(first.sum(), t, create_graph=True)[0]
        return torch.cat([second + u, u], 1)


class Tied(nn.Module):
    """Energies and forces at once: every weight is used in the value and in the derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Softplus(), nn.LayerNorm(4), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        energy = self.net(x)
        return torch.cat([energy, torch.autograd.grad(energy.sum(), x, create_graph=True)[0]], 1)


DERIVATIVES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "forces": (Forces, 3),
    "forces of a copy": (lambda: Forces(detached=False), 3),
    "residual": (Residual, 1),
    "energy and forces": (Tied, 3),
}


@pytest.mark.parametrize("examples", [1, 2, 5])
@pytest.mark.parametrize("case", list(DERIVATIVES))
def test_networks_that_take_derivatives_in_their_forward_are_exact(case: str, examples: int) -> None:
    make, size = DERIVATIVES[case]
    torch.manual_seed(1)
    model, x = make().double(), torch.randn(examples, size, dtype=torch.float64)
    assert not any(exact_or_refused(model, x).values())


@pytest.mark.parametrize("representation", [tl.PMatKFAC, tl.PMatEKFAC])
def test_kronecker_factors_of_a_derivative_are_refused_by_name(representation: type) -> None:
    with pytest.raises(TangentlabError, match=r"energy\.0\.weight"):
        tl.FIM(Forces().double(), torch.randn(5, 3, dtype=torch.float64), representation, "regression")


@pytest.mark.parametrize("case", list(DERIVATIVES))
def test_products_and_hessians_of_networks_that_take_derivatives_are_exact(case: str) -> None:
    make, size = DERIVATIVES[case]
    torch.manual_seed(2)
    model, x = make().double(), torch.randn(4, size, dtype=torch.float64)
    jacobian = dense_jacobian(model, x)
    v = tl.PVector.random_unit(model, generator=torch.Generator().manual_seed(0))
    truth = torch.einsum("cnp,cnq,q->p", jacobian, jacobian, v.flat) / 4
    fisher = tl.FIM(model, x, tl.PMatImplicit, "regression")
    assert relative_error((fisher @ v).flat, truth) < 1e-10


class Doubling(TorchFunctionMode):
    """Every F.linear inside has twice its weight."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            args = (args[0], 2 * args[1], *args[2:])
        return func(*args, **(kwargs or {}))


class UnderMode(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        with Doubling():
            return super().forward(x)


def layers() -> list[nn.Module]:
    return [nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)]


@pytest.fixture(params=["F.linear", "Linear.forward", "mode"])
def patched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[nn.Module]:
    """A network whose linear layers compute something else than their class says."""
    linear = F.linear
    if request.param == "F.linear":
        monkeypatch.setattr(F, "linear", lambda x, w, b=None: linear(x, w.sin(), b))
    elif request.param == "Linear.forward":
        monkeypatch.setattr(nn.Linear, "forward", lambda self, x: linear(x, self.weight**3, self.bias))
    yield (UnderMode if request.param == "mode" else nn.Sequential)(*layers()).double()


def test_globally_patched_functions_and_modes_are_seen(patched: nn.Module) -> None:
    x = torch.randn(5, 3, dtype=torch.float64)
    assert not any(exact_or_refused(patched, x).values())
    assert tl.coverage(patched, x).structured_fraction < 1


class Halving(nn.Module):
    """The gradient is halved on its way back into the first of its two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(self.before(x).tanh())
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient / 2)
        return self.second(hidden.tanh())


class DoublingOutputs(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return 2 * found if func is F.linear else found


def test_what_a_hook_and_a_mode_make_up_for_together_is_no_proof() -> None:
    """Whether torch reads a gradient before or after the hook depends on the other layers that are asked for."""
    torch.manual_seed(0)
    model, x = Halving().double(), torch.randn(5, 3, dtype=torch.float64)
    with DoublingOutputs():
        outputs = model(x)
        rows = [torch.autograd.grad(o, list(model.parameters()), retain_graph=True) for o in outputs.t().flatten()]
        truth = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows]).unflatten(0, (2, 5))
        assert relative_error(tl.Jacobian(model, x).data, truth) < 1e-10


def test_a_proof_of_a_forward_of_the_users_is_made_once_per_batch_shape_and_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    original = certificate.proof
    from tangentlab.engine import router

    monkeypatch.setattr(router, "proof", lambda *args: made.append(len(args[1])) or original(*args))

    class Own(nn.Sequential):
        pass

    model = Own(*layers())
    tl.FIM(model, [(torch.randn(n, 3),) for n in (5, 5, 5, 2)], tl.PMatDiag)
    assert made == [5, 2]
    tl.NTK(model, torch.randn(5, 3))
    assert made == [5, 2, 5]


@pytest.mark.parametrize("how", ["argument", "context"])
def test_proofs_can_be_switched_off_for_one_call_or_for_a_block(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tangentlab.engine import router

    def never(*args: Any) -> None:
        raise AssertionError("a proof was made")

    monkeypatch.setattr(router, "proof", never)
    model, x, y = nn.Sequential(*layers()), torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])
    calls: list[Callable[..., Any]] = [
        lambda **o: tl.FIM(model, x, tl.PMatKFAC, **o),
        lambda **o: tl.FIM_MonteCarlo(model, x, tl.PMatDiag, **o),
        lambda **o: tl.FIM_Empirical(model, (x, y), tl.PMatDiag, **o),
        lambda **o: tl.GGN(model, (x, y), tl.PMatDiag, **o),
        lambda **o: tl.NTK(model, x, **o),
        lambda **o: tl.Jacobian(model, x, **o),
        lambda **o: tl.per_example_grads(model, (x, y), **o),
        lambda **o: tl.per_example_grad_norms(model, (x, y), **o),
        lambda **o: tl.coverage(model, x, **o),
    ]
    for call in calls:
        if how == "argument":
            call(verify=False)
        else:
            with tl.verify(False):
                call()
        with pytest.raises(AssertionError, match="a proof was made"):
            call()


def test_proofs_leave_the_random_stream_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    model, x = Mixing(torch.relu), torch.randn(5, 3)
    torch.manual_seed(3)
    tl.NTK(model, x)
    assert torch.equal(torch.rand(4), expected)


def test_weights_of_a_proof_are_apart_from_zero_and_from_each_other() -> None:
    weights = random_weights((3, 1000), torch.zeros((), dtype=torch.float64))
    assert 0.5 <= float(weights.abs().min()) and float(weights.abs().max()) <= 1.5
    assert len(weights.unique()) == weights.numel()
    assert 0.4 < float((weights > 0).double().mean()) < 0.6


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_the_tolerance_is_relative_to_the_largest_entry(dtype: torch.dtype) -> None:
    truth = torch.tensor([0.0, 1e3], dtype=dtype)
    step = torch.tensor([TOLERANCE[dtype] * 1e3, 0.0], dtype=dtype)
    assert not differs(truth + 0.2 * step, truth)
    assert differs(truth + 1.2 * step, truth)
    assert not differs(truth + 1.2 * step, truth, noise=0.5 * step)
    assert differs(truth * torch.nan, truth)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_many_small_differences_count_by_their_length(dtype: torch.dtype) -> None:
    truth = torch.ones(1000, dtype=dtype)
    assert not differs(truth + 0.2 * TOLERANCE[dtype], truth)
    assert differs(truth + 0.35 * TOLERANCE[dtype], truth)


class Attending(nn.Module):
    """Attention by hand: the bias of the keys adds one number to all scores of a query and has no gradient but rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        return (scores.softmax(-1) @ self.value(x)).mean(1)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
def test_the_tolerance_does_not_depend_on_the_scale_of_single_precision(scale: float) -> None:
    truth = scale * torch.randn(100, generator=torch.Generator().manual_seed(0))
    assert not differs(truth.clone(), truth) and not differs(truth * (1 + 1e-5), truth)
    assert differs(truth * 1.01, truth) and differs(truth + 5e-4 * truth.abs().max(), truth)
    assert differs(truth.index_fill(0, torch.tensor([3]), torch.nan), truth)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_gradients_that_are_nothing_but_rounding_keep_their_closed_form(dtype: torch.dtype, scale: float) -> None:
    torch.manual_seed(0)
    model, x = Attending().to(dtype), scale * torch.randn(64, 5, 6)
    rows = {row.names: row.reason for row in tl.coverage(model, x.to(dtype), layers="key").rows}
    assert rows == {("key.weight", "key.bias"): ""}


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_noise_of_a_gradient_is_never_below_the_precision_of_the_largest_one(
    dtype: torch.dtype, sign: float
) -> None:
    """Whatever the sign of the gradients, and however small the one that is asked about."""
    weights = {name: nn.Parameter(torch.ones((), dtype=dtype)) for name in ("large", "small")}
    x = sign * torch.arange(1, 5, dtype=dtype)
    outputs = weights["large"] * 1024 * x + weights["small"] * x
    cotangent = torch.ones_like(outputs)
    truth = certificate.plain_gradient(outputs, weights, cotangent)
    least = torch.finfo(dtype).eps * 10240
    for noise in certificate.own_noise(outputs, weights, cotangent, truth, certificate.largest_of_all(truth)).values():
        assert least <= float(noise) < 10 * least


@pytest.mark.parametrize("depth", [12, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_deep_networks_keep_their_closed_forms_in_low_precision(dtype: torch.dtype, depth: int) -> None:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU()) for _ in range(depth)]
    model = nn.Sequential(*blocks, nn.Linear(16, 4)).to(dtype)
    assert tl.coverage(model, torch.randn(32, 16).to(dtype)).structured_fraction == 1
