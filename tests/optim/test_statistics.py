"""Which passes count, which parameters are treated, and that per-example statistics are those of plain autograd."""

import copy
import gc
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tangentlab import FIM, NTK, PMatDense
from tangentlab.engine.feeding import call_model
from tangentlab.errors import InputError, ModelError
from tangentlab.optim import EKFAC, KFAC, Diagonal, EKFACra, NaturalSGD, make_preconditioner
from tests.engine.truth import dense_jacobian
from tests.optim.truth import backward, data, flat_gradient, tiny_mlp
from tests.zoo import ZOO, Animal, by_name

APPROXIMATE = {
    "SequenceFirst-inside-square": "as many steps as examples",
    "SequenceFirst-outside-square": "as many steps as examples",
    "SequenceFirst-outside-oblong": "needs example_axis=1",
    "PositionEmbedding": "positions are shared by all examples",
    "PositionEmbedding-square": "positions are shared by all examples",
    "TokensAsExamples": "no example axis",
}
NOTHING = {"ParametersInAList", "BorrowedModule"}


def second_moments(one: Animal, **options) -> tuple[Diagonal, Tensor]:
    """A diagonal preconditioner after one step on an animal, and the true second moments, flat."""
    model, batch = one.catch()
    precond = Diagonal(model, **options)
    outputs = (one.forward or call_model)(model, batch)
    flat = outputs.reshape(outputs.shape[0], -1)
    weights = torch.randn(flat.shape, dtype=flat.dtype, generator=torch.Generator().manual_seed(1))
    (flat * weights).sum(1).mean().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        precond.step()
    jacobian = dense_jacobian(*one.catch(), one.forward)
    return precond, torch.einsum("knd,nk->nd", jacobian, weights).square().mean(0)


def largest_error(precond: Diagonal, truth: Tensor) -> float:
    errors = [torch.zeros(())]
    for group, block in precond.blocks.items():
        if group not in precond.passed and block.scale is not None:
            found = zip(group.names, block.tensors(block.scale))
            errors += [(scale.flatten() - truth[precond.layout.slices[name]]).abs().max() for name, scale in found]
    return float(torch.stack(errors).max() / truth.max())


@pytest.mark.parametrize("one", [one for one in ZOO if one.name not in NOTHING], ids=str)
def test_every_treated_parameter_of_the_zoo_has_the_second_moments_of_plain_autograd(one: Animal) -> None:
    precond, truth = second_moments(one)
    error = largest_error(precond, truth)
    if one.name in APPROXIMATE:
        assert error > 1e-6
    else:
        assert error < 1e-9


def test_a_sequence_first_model_is_exact_when_its_example_axis_is_told() -> None:
    assert largest_error(*second_moments(by_name("SequenceFirst-outside-oblong"), example_axis=1)) < 1e-9


def test_positions_that_count_as_examples_are_reported() -> None:
    precond, _ = second_moments(by_name("PositionEmbedding"))
    told = {row.names: row.method for row in precond.report().rows}
    assert "positions count as examples" in told[("position.weight",)]


@pytest.mark.parametrize(
    ("name", "parameter", "reason"),
    [
        ("DoubledAttention", "attention.out_proj.weight", "never called"),
        ("DoubledAttention", "attention.in_proj_weight", "overrides the method forward"),
        ("FunctionalUse", "fc.weight", "do not explain"),
        ("ForwardCalledDirectly", "fc.weight", "never called"),
        ("TiedEmbedding", "token.weight", "tied"),
        ("TiedAcrossGroups", "grouped.weight", "different shapes"),
        ("GRU", "rnn.weight_hh_l0", "no closed form"),
        ("ReusedConvolution", "bn.weight", "batch statistics"),
    ],
)
def test_what_cannot_be_treated_keeps_its_gradient_and_says_why(name: str, parameter: str, reason: str) -> None:
    model, batch = by_name(name).catch()
    precond = EKFAC(model)
    call_model(model, batch).square().mean().backward()
    before = {key: p.grad.clone() for key, p in model.named_parameters()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        precond.step()
    row = next(row for row in precond.report().rows if parameter in row.names)
    assert reason in row.reason
    assert f"passed through: {row.reason}" in str(precond.report())
    for key, p in model.named_parameters():
        untouched = any(key in row.names for row in precond.report().rows if not row.treated)
        assert torch.equal(p.grad, before[key]) == untouched, key


def test_a_late_discovery_is_warned_of_once() -> None:
    model, batch = by_name("FunctionalUse").catch()
    precond = EKFAC(model)
    call_model(model, batch).square().mean().backward()
    with pytest.warns(RuntimeWarning, match="fc: the calls of its module do not explain"):
        precond.step()
    call_model(model, batch).square().mean().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        precond.step()


def test_a_model_without_anything_to_treat_is_refused_at_construction() -> None:
    with pytest.raises(InputError, match="No parameter of this model can be preconditioned"):
        EKFAC(by_name("ParametersInAList").catch()[0])


def matrix_after(model: nn.Module, disturb=lambda model, x, y: None, **options) -> Tensor:
    precond = EKFAC(model, **options)
    x, y = data(7, 4)
    disturb(model, x, y)
    loss = F.cross_entropy(model(x), y)
    disturb(model, x, y)
    model.zero_grad()
    loss.backward()
    disturb(model, x, y)
    precond.step()
    return precond.as_pmat().to_dense()


def evaluate_without_backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
    model(x + 1)


def differentiate_by_hand(model: nn.Module, x: Tensor, y: Tensor) -> None:
    torch.autograd.grad(model(x + 1).sum(), list(model.parameters()))


def look_at_the_geometry(model: nn.Module, x: Tensor, y: Tensor) -> None:
    FIM(model, x + 1, representation=PMatDense, likelihood="classification")
    NTK(model, x + 1)


def functional(model: nn.Module, x: Tensor, y: Tensor) -> None:
    values = {name: p.detach() + 1 for name, p in model.named_parameters()}
    torch.func.grad(lambda v: torch.func.functional_call(model, v, (x,)).sum())(values)


@pytest.mark.parametrize(
    "disturb", [evaluate_without_backward, differentiate_by_hand, look_at_the_geometry, functional]
)
def test_only_passes_that_are_backpropagated_into_the_parameters_count(disturb) -> None:
    torch.testing.assert_close(matrix_after(tiny_mlp(), disturb), matrix_after(tiny_mlp()), rtol=0, atol=0)


@pytest.mark.parametrize("curvature", ["empirical", "exact", "monte-carlo"])
def test_metrics_give_the_same_on_a_model_that_is_being_observed(curvature: str) -> None:
    (x, _), model = data(7, 4), tiny_mlp()
    truth = FIM(model, x, representation=PMatDense, likelihood="classification").to_dense()
    precond = KFAC(model, curvature=curvature, likelihood="classification")
    found = FIM(model, x, representation=PMatDense, likelihood="classification").to_dense()
    torch.testing.assert_close(found, truth, rtol=0, atol=0)
    precond.remove()
    assert not model[0]._forward_hooks and not model._forward_pre_hooks


def test_two_backward_passes_through_one_forward_add_up() -> None:
    x, y = data(7, 4)
    found = []
    for split in (False, True):
        model = tiny_mlp()
        precond = EKFAC(model)
        loss = F.cross_entropy(model(x), y)
        if split:
            (0.25 * loss).backward(retain_graph=True)
            (0.75 * loss).backward()
        else:
            loss.backward()
        precond.step()
        found.append(precond.as_pmat().to_dense())
    torch.testing.assert_close(found[0], found[1])


def test_two_passes_of_one_loss_are_pairs_of_examples() -> None:
    (x, y), (other, _) = data(7, 4), data(7, 4, seed=5)
    model = tiny_mlp()
    precond = Diagonal(model)
    F.cross_entropy(model(x) - model(other), y).backward()
    precond.step()
    squares = []
    for one, two, label in zip(x, other, y):
        loss = F.cross_entropy(model(one[None]) - model(two[None]), label[None])
        squares.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]).square())
    torch.testing.assert_close(precond.as_pmat().diag().flat, torch.stack(squares).mean(0))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_count_once(reentrant: bool) -> None:
    x, y = data(7, 4)
    x.requires_grad_()
    found = []
    for checkpointed in (False, True):
        model = tiny_mlp()
        precond = EKFAC(model, example_axis=0)
        inner = checkpoint(model[:2], x, use_reentrant=reentrant) if checkpointed else model[:2](x)
        F.cross_entropy(model[2](inner), y).backward()
        precond.step()
        found.append(precond.as_pmat().to_dense())
    torch.testing.assert_close(found[0], found[1])


def test_between_refreshes_ekfac_ra_keeps_no_activations() -> None:
    model = tiny_mlp()
    precond = EKFACra(model, period=10, warm_up=False)
    kept = []
    for _ in range(2):
        backward(model, *data(7, 4))
        kept.append([call.inputs for call in precond.observer._arrived])
        precond.step()
    assert all(inputs is not None for inputs in kept[0])
    assert all(inputs is None for inputs in kept[1])


def test_a_step_without_a_pass_is_an_error_that_says_what_to_do() -> None:
    model = tiny_mlp()
    backward(model, *data(7, 4))
    precond = EKFAC(model)
    before = flat_gradient(model)
    with pytest.raises(ModelError, match="make the preconditioner before the forward pass"):
        precond.step()
    assert (flat_gradient(model) == before).all()


def test_the_model_may_be_given_keyword_arguments_and_several_inputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(2, 3)

        def forward(self, scale: float, *, first: Tensor, second: Tensor) -> Tensor:
            return scale * self.a(input=first) + self.b(second)

    torch.manual_seed(0)
    model = Two().double()
    precond = EKFAC(model, loss_reduction="mean")
    x, y = data(7, 4)
    F.cross_entropy(model(2.0, first=x, second=x[:, :2]), y).backward()
    assert precond.step()
    assert precond.report().share == 1.0


@pytest.mark.parametrize(
    ("warm_up", "period", "renewed"),
    [
        (True, 6, [0, 1, 2, 4, 6, 12]),
        (False, 6, [0, 6, 12]),
        (True, 1, list(range(14))),
        (True, 2, [0, 1, *range(2, 14, 2)]),
    ],
)
def test_early_in_training_the_basis_is_renewed_at_powers_of_two(
    warm_up: bool, period: int, renewed: list[int]
) -> None:
    model, found = tiny_mlp(), []
    precond = EKFACra(model, period=period, warm_up=warm_up)
    for step in range(14):
        before = precond.refreshes
        backward(model, *data(7, 4, seed=step))
        precond.step()
        found += [step] * (precond.refreshes - before)
    assert found == renewed


def hooks_of(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_inside_a_pause_there_are_no_hooks_and_afterwards_those_of_before() -> None:
    model = tiny_mlp()
    precond = EKFAC(model)
    before = hooks_of(model)
    backward(model, *data(7, 4))
    assert before > 0 and precond.observer.leaves
    with precond.paused():
        assert hooks_of(model) == 0 and not precond.observer.attached
        with precond.paused():
            assert hooks_of(model) == 0
        assert hooks_of(model) == 0
    assert hooks_of(model) == before and precond.observer.attached
    with pytest.raises(KeyError), precond.paused():
        raise KeyError
    assert hooks_of(model) == before
    precond.observer.attach()
    assert hooks_of(model) == before
    precond.remove()
    with precond.paused():
        pass
    assert hooks_of(model) == 0 and not precond.observer.attached


def test_passes_inside_a_pause_are_not_statistics_and_are_not_verified_against() -> None:
    found = []
    for disturbed in (False, True):
        model, (x, y) = tiny_mlp(), data(7, 4)
        precond = EKFAC(model)
        if disturbed:
            with precond.paused():
                backward(model, 3 * x, y)
        backward(model, x, y)
        if disturbed:
            with precond.paused():
                F.cross_entropy(model(2 * x), y)
        precond.step()
        assert precond.report().share == 1.0
        found.append(precond.as_pmat().to_dense())
    assert torch.equal(*found)


def test_a_pass_before_the_pause_is_still_there_after_it() -> None:
    model = tiny_mlp()
    precond = EKFAC(model)
    backward(model, *data(7, 4))
    with precond.paused():
        pass
    assert precond.step()


@pytest.mark.parametrize("kind", ["kfac", "ekfac"])
def test_drawn_labels_depend_on_the_seed_the_step_and_the_pass_alone(kind: str) -> None:
    def matrices(seed: int, parts: int = 1, noise: int = 0) -> list[Tensor]:
        torch.manual_seed(noise)
        model, (x, y), found = tiny_mlp(), data(12, 4), []
        options = {"curvature": "monte-carlo", "likelihood": "classification", "seed": seed, "period": 1}
        precond = make_preconditioner(kind, model, **options)
        for _ in range(2):
            model.zero_grad()
            for _part in range(parts):
                (F.cross_entropy(model(x), y) / parts).backward()
            precond.step()
            found.append(precond.as_pmat().to_dense())
        return found

    first, again, other, twice = matrices(0), matrices(0, noise=5), matrices(1), matrices(0, parts=2)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert not torch.allclose(first[0], first[1])  # same weights and data: another step draws other labels
    assert not torch.allclose(first[0], other[0])
    assert not torch.allclose(first[0], twice[0])  # the same batch twice: the second pass draws other labels


@pytest.mark.parametrize("joint", [True, False])
def test_a_pass_inside_a_pause_may_add_to_the_gradient(joint: bool) -> None:
    """Its share of the gradient is preconditioned with the statistics of the others, and no layer is given up for it."""
    model, (x, y) = tiny_mlp(), data(7, 4)
    precond = EKFAC(model)
    for _ in range(3):
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        with precond.paused():
            more = F.cross_entropy(model(5 * x), y)
            if not joint:
                more.backward()
        (loss + more if joint else loss).backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            precond.step()
    assert precond.report().share == 1.0
    assert bool(precond.verification.done) is not joint
    torch.testing.assert_close(precond.as_pmat().to_dense(), matrix_after(tiny_mlp()))


def test_a_copy_of_the_model_is_not_observed() -> None:
    """A teacher or an average of weights is often a copy, and copies carry the hooks."""
    found = []
    for with_teacher in (False, True):
        model, (x, y) = tiny_mlp(), data(7, 4)
        precond = EKFAC(model)
        teacher = copy.deepcopy(model)
        loss = F.cross_entropy(model(x), y)
        if with_teacher:
            loss = loss + teacher(3 * x).square().mean()
        loss.backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            precond.step()
        found.append(precond.as_pmat().to_dense())
    assert torch.equal(*found)


def test_a_preconditioner_that_nobody_holds_takes_its_hooks_off() -> None:
    model = tiny_mlp()
    for _ in range(3):  # a cell of a notebook that is run again
        optimizer = NaturalSGD(model, lr=0.1)
        backward(model, *data(7, 4))
        optimizer.step()
    gc.collect()
    assert hooks_of(optimizer.preconditioner.model) == 2 + 2
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    EKFAC(model).attach(plain)
    gc.collect()
    backward(model, *data(7, 4))
    plain.step()
    del optimizer, plain
    gc.collect()
    assert hooks_of(model) == 0
