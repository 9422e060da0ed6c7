"""Trouble on the way: non-finite gradients, failing decompositions, settings that cannot work."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tangentlab.errors import InputError, NumericsError
from tangentlab.optim import (
    EKFAC,
    KFAC,
    PRECONDITIONERS,
    SOAP,
    BlockDiagonal,
    ConjugateGradient,
    Diagonal,
    EKFACra,
    LevenbergMarquardt,
    NaturalSGD,
    make_preconditioner,
    refresh,
)
from tests.optim.truth import backward, data, flat_gradient, tiny_mlp

WIDE = nn.Linear(100, 50)


def tensors(state) -> list[torch.Tensor]:
    if isinstance(state, dict):
        return [found for value in state.values() for found in tensors(value)]
    return [state] if isinstance(state, torch.Tensor) else []


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("when", [0, 1])
@pytest.mark.parametrize("variant", PRECONDITIONERS)
def test_a_non_finite_batch_is_as_if_it_had_never_been(variant: str, when: int, bad: float) -> None:
    runs = []
    for poisoned in (False, True):
        model = tiny_mlp()
        optimizer = NaturalSGD(model, lr=0.05, preconditioner=variant, damping=0.1, **_short(variant))
        for step in range(4):
            x, y = data(12, 4, seed=step)
            if poisoned and step == when:
                spoiled = x.clone()
                spoiled[3, 1] = bad
                backward(model, spoiled, y)
                before = copy.deepcopy(optimizer.preconditioner.state_dict())
                with pytest.warns(RuntimeWarning, match="not finite"):
                    optimizer.step()
                after = optimizer.preconditioner.state_dict()
                assert all(torch.equal(a, b) for a, b in zip(tensors(before), tensors(after)))
                assert optimizer.preconditioner.skipped == 1
            backward(model, x, y)
            optimizer.step()
        runs.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*runs)


def _short(variant: str) -> dict:
    return {"period": 2} if variant in ("kfac", "ekfac", "ekfac-ra") else {}


def test_statistics_that_overflow_while_gradients_do_not_are_skipped_too() -> None:
    model = tiny_mlp(dtype=torch.float32)
    steep = lambda out: (out - out.detach()) * 1e30  # noqa: E731
    precond = KFAC(model, curvature="monte-carlo", likelihood="regression", outputs=steep)
    x, y = data(8, 4)
    F.cross_entropy(model(x.float()), y).backward()
    before = flat_gradient(model)
    with pytest.warns(RuntimeWarning, match="statistics are not finite"):
        assert not precond.step()
    assert (flat_gradient(model) == before).all()


def fail(*_, **__):
    raise NumericsError("no algorithm gave an accurate decomposition")


@pytest.mark.parametrize("variant", ["ekfac", "ekfac-ra"])
def test_a_failing_eigendecomposition_keeps_the_old_basis(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_mlp()
    precond = make_preconditioner(variant, model, period=1)
    backward(model, *data(12, 4))
    precond.step()
    bases = [side.basis.vectors.clone() for block in precond.blocks.values() for side in (block.left, block.right)]
    monkeypatch.setattr(refresh, "safe_eigh_many", fail)
    monkeypatch.setattr(refresh, "safe_eigh", fail)
    backward(model, *data(12, 4, seed=9))
    with pytest.warns(RuntimeWarning, match="its basis stays as it was"):
        assert precond.step()
    kept = [side.basis.vectors for block in precond.blocks.values() for side in (block.left, block.right)]
    assert all(torch.equal(a, b) for a, b in zip(bases, kept))
    assert torch.isfinite(torch.from_numpy(flat_gradient(model))).all()


def test_a_failing_first_eigendecomposition_leaves_a_diagonal_preconditioner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh, "safe_eigh_many", fail)
    monkeypatch.setattr(refresh, "safe_eigh", fail)
    model, twin = tiny_mlp(), tiny_mlp()
    precond, diagonal = EKFAC(model, damping_form="plain"), Diagonal(twin)
    backward(model, *data(12, 4))
    backward(twin, *data(12, 4))
    with pytest.warns(RuntimeWarning, match="identity"):
        precond.step()
    diagonal.step()
    torch.testing.assert_close(torch.from_numpy(flat_gradient(model)), torch.from_numpy(flat_gradient(twin)))


def test_singular_factors_without_damping_do_not_break_kfac() -> None:
    model = tiny_mlp(dtype=torch.float32)
    precond = KFAC(model, damping=0.0)
    x, y = data(2, 4)
    F.cross_entropy(model(x.float()), y).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        precond.step()
    assert torch.isfinite(torch.from_numpy(flat_gradient(model))).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EKFAC(WIDE, damping=-1.0), "damping must lie between 0"),
        (lambda: EKFAC(WIDE, damping="small"), "damping must be a number or a function of the step"),
        (lambda: EKFAC(WIDE, period=0), "period must be a positive whole number"),
        (lambda: EKFAC(WIDE, period=2.5), "period must be a positive whole number"),
        (lambda: EKFAC(WIDE, factor_decay=1.5), "factor_decay must lie between 0 and 1"),
        (lambda: EKFAC(WIDE, damping_form="ridge"), "damping_form must be one of 'factored', 'plain'"),
        (lambda: EKFAC(WIDE, rebase="rotate"), "rebase must be one of"),
        (lambda: EKFAC(WIDE, refresh="lanczos"), "refresh must be one of 'eigh', 'qr'"),
        (lambda: EKFAC(WIDE, order="last"), "order must be one of"),
        (lambda: EKFAC(WIDE, sharing="mean"), "sharing must be one of"),
        (lambda: EKFAC(WIDE, cutoff=-3), "cutoff must be a positive number of modes"),
        (lambda: EKFAC(WIDE, cutoff=1.5), "cutoff must be a positive number of modes"),
        (lambda: EKFAC(WIDE, curvature="hessian"), "curvature must be one of"),
        (lambda: EKFAC(WIDE, curvature="exact"), "needs likelihood="),
        (lambda: EKFAC(WIDE, curvature="exact", likelihood="poisson"), "Unknown likelihood"),
        (lambda: EKFAC(WIDE, kl_clip=1e-3), "needs the learning rate"),
        (lambda: EKFAC(WIDE, norm_clip=0.0), "norm_clip must lie between"),
        (lambda: EKFAC(WIDE, loss_reduction="none"), "loss_reduction must be 'mean', 'sum' or a positive number"),
        (lambda: EKFAC(WIDE, layers="decoder.*"), "No trainable parameter matches"),
        (lambda: EKFAC([WIDE]), "needs the torch.nn.Module itself"),
        (lambda: KFAC(WIDE, inverse="cholesky", damping_form="plain"), "use inverse='eigh'"),
        (lambda: KFAC(WIDE, inverse="svd"), "inverse must be one of 'eigh', 'cholesky'"),
        (lambda: KFAC(WIDE, scale_decay=0.9), "scale_decay has no meaning for 'kfac'"),
        (lambda: Diagonal(WIDE, period=3), "period has no meaning for 'diagonal'"),
        (lambda: Diagonal(WIDE, running=True, curvature="exact", likelihood="binary"), "has no use"),
        (lambda: BlockDiagonal(WIDE), "would be 5050 x 5050, above block_limit=4096"),
        (lambda: ConjugateGradient(WIDE, iterations=0), "iterations must be a positive whole number"),
        (lambda: ConjugateGradient(WIDE, rtol=2.0), "rtol must lie between 0 and 1"),
        (lambda: LevenbergMarquardt(0.1, factor=1.2), "0 < factor < 1"),
        (lambda: LevenbergMarquardt(1e9), "damping must lie between"),
        (lambda: NaturalSGD(WIDE, lr=-1.0), "lr must be a number that is not negative"),
        (lambda: NaturalSGD(WIDE, momentum=0.0, nesterov=True), "needs momentum > 0"),
        (lambda: NaturalSGD(WIDE, preconditioner="shampoo"), "Unknown preconditioner 'shampoo'"),
        (
            lambda: NaturalSGD(WIDE, preconditioner="kfac", dampening=0.1),
            r"no option 'dampening' \(did you mean 'damping'\?\)",
        ),
        (lambda: NaturalSGD(WIDE, preconditioner=KFAC(nn.Linear(2, 2)), damping=0.1), "has its options already"),
        (lambda: SOAP(WIDE.parameters(), period=0), "period >= 1"),
        (lambda: SOAP(WIDE.parameters(), betas=(0.9, 1.0)), r"betas must lie in \[0, 1\)"),
    ],
)
def test_a_setting_that_cannot_work_is_an_error_at_construction(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
    assert not WIDE._forward_hooks and not WIDE._forward_pre_hooks


def test_an_output_that_is_no_tensor_asks_for_the_right_one() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x):
            return self.fc(x), x

    model = Pair()
    precond = KFAC(model, curvature="exact", likelihood="classification")
    with pytest.raises(InputError, match="pass outputs="):
        model(torch.randn(5, 4))
    precond.remove()
    KFAC(model, curvature="exact", likelihood="classification", outputs=lambda out: out[0])
    model(torch.randn(5, 4))


def test_a_layer_that_joins_later_is_treated_from_its_first_statistics_on() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.use = nn.Linear(4, 3), nn.Linear(4, 3), False

        def forward(self, x):
            return self.a(x) + (self.b(x) if self.use else 0)

    torch.manual_seed(0)
    for method in (EKFAC, EKFACra):
        model = Late().double()
        precond = method(model, period=2, warm_up=False)
        treated = []
        for step in range(3):
            model.use = step > 0
            backward(model, *data(12, 4, seed=step))
            plain = model.b.weight.grad.clone() if step else None
            precond.step()
            treated.append(step > 0 and not torch.equal(model.b.weight.grad, plain))
        assert treated == ([False, True, True] if method is EKFAC else [False, False, True])


@pytest.mark.parametrize(
    "reduction", [0, -1, 0.0, -2.5, True, False, float("nan"), float("inf"), None, "none", "Mean", ""]
)
def test_a_reduction_that_is_none_is_refused(reduction) -> None:
    with pytest.raises(InputError, match="loss_reduction must be 'mean', 'sum' or a positive number"):
        KFAC(WIDE, loss_reduction=reduction)


@pytest.mark.parametrize("divisor", [1, 3, 12.0, 0.25, 1e-6])
def test_a_number_in_place_of_the_reduction_is_what_the_sum_was_divided_by(divisor: float) -> None:
    matrices = []
    for stated in (True, False):
        model, (x, y) = tiny_mlp(), data(12, 4)
        precond = EKFAC(model, loss_reduction=divisor if stated else "sum")
        loss = F.cross_entropy(model(x), y, reduction="sum")
        (loss / divisor if stated else loss).backward()
        precond.step()
        matrices.append(precond.as_pmat().to_dense())
    torch.testing.assert_close(*matrices)


@pytest.mark.parametrize("variant", PRECONDITIONERS)
@pytest.mark.parametrize("order", ["update first", "precondition first"])
def test_a_loss_without_a_gradient_in_any_layer_leaves_everything_as_it_is(variant: str, order: str) -> None:
    class Behind(nn.Module):
        """A linear layer whose output is cut off, and a bare parameter that learns."""

        def __init__(self) -> None:
            super().__init__()
            self.fc, self.shift = nn.Linear(4, 3), nn.Parameter(torch.zeros(3))

        def forward(self, x):
            return self.fc(x).detach() + 0 * self.fc(x) + self.shift

    model = Behind().double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = NaturalSGD(model, preconditioner=variant, **({} if variant == "cg" else {"order": order}))
    for step in range(3):
        backward(model, *data(12, 4, seed=step))
        optimizer.step()
    assert not model.fc.weight.grad.any() and model.shift.detach().abs().min() > 0


# ---------------------------------------------------------------- gradients that are missing, empty or sparse


class Experts(nn.Module):
    """Tokens go to the expert that their first entry names; the last one gets none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(3)).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_zeros(len(x), 3)
        for index, expert in enumerate(self.experts):
            rows = (((x[:, 0] > 0) == index) & (index < 2)).nonzero()[:, 0]
            out = out.index_add(0, rows, expert(x[rows]))
        return out


@pytest.mark.parametrize("variant", PRECONDITIONERS)
def test_an_expert_without_tokens_keeps_its_weights(variant: str) -> None:
    model, (x, y) = Experts(), data(9, 4)
    before = [p.detach().clone() for p in model.experts[2].parameters()]
    optimizer = NaturalSGD(model, lr=0.1, preconditioner=variant)
    for _ in range(3):
        backward(model, x, y)
        optimizer.step()
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    assert all(torch.equal(p, old) for p, old in zip(model.experts[2].parameters(), before, strict=True))


@pytest.mark.parametrize("positions", [1, 2, 5])
def test_positions_that_count_as_examples_leave_the_damping_of_a_full_block(positions: int) -> None:
    model = nn.Sequential(nn.Flatten(0, 1), nn.Linear(4, 3).double(), nn.Unflatten(0, (6, positions)))
    x, damping = data(6, positions, 4)[0], 0.3
    precond = BlockDiagonal(model, damping=damping)
    model(x).square().sum((1, 2)).mean().backward()
    inputs, out = x.flatten(0, 1), model(x).detach().flatten(0, 1)
    rows = torch.cat([torch.einsum("no,ni->noi", 2 * out, inputs).flatten(1), 2 * out], 1)
    moment = rows.T @ rows / 6 + damping * torch.eye(rows.shape[1], dtype=torch.float64)
    precond.step()
    assert flat_gradient(model) == pytest.approx(torch.linalg.solve(moment, rows.sum(0) / 6).numpy())


@pytest.mark.parametrize("variant", PRECONDITIONERS)
def test_a_weight_whose_bias_has_no_gradient_is_treated_alone(variant: str) -> None:
    model, (x, y) = tiny_mlp(), data(12, 4)
    precond = make_preconditioner(
        variant, model, damping=1e6, **({"damping_form": "plain"} if "kfac" in variant else {})
    )
    backward(model, x, y)
    before = model[0].weight.grad.clone()
    model[0].bias.grad = None
    precond.step()
    assert model[0].bias.grad is None
    torch.testing.assert_close(model[0].weight.grad * 1e6, before, rtol=1e-4, atol=1e-6)


def test_layers_that_are_passed_on_are_not_missed_by_those_that_rest() -> None:
    class Resting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.rest, self.fc = nn.Linear(4, 4).double(), nn.Linear(4, 3).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.rest(x).detach()
            return self.fc(x) + F.linear(x, self.fc.weight)

    model, (x, y) = Resting(), data(12, 4)
    precond = EKFAC(model)
    for _ in range(3):
        backward(model, x, y)
        precond.step()
    assert {group.name for group in precond.groups} == {"rest"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"weight_decay": 0.1}, {"momentum": 0.5, "nesterov": True}])
def test_sparse_gradients_are_updates_like_any_other(dtype: torch.dtype, options: dict) -> None:
    weights = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(7, 4, sparse=sparse), nn.Linear(4, 3)).to(dtype)
        optimizer = NaturalSGD(model, lr=0.1, preconditioner="diagonal", layers="1", **options)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.tensor([step, 1, 1])).square().sum(1).mean().backward()
            optimizer.step()
        weights.append(model[0].weight.detach())
    torch.testing.assert_close(*weights, rtol=1e-2, atol=1e-2)


def test_a_full_block_of_the_size_of_the_limit_is_allowed() -> None:
    model = nn.Linear(2, 3)
    assert BlockDiagonal(model, block_limit=9).blocks
    with pytest.raises(InputError, match="9 x 9, above block_limit=8"):
        BlockDiagonal(model, block_limit=8)
