"""What the generated trial has found, in its smallest form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import tangentlab as tl
from tangentlab.engine.backward import backward
from tangentlab.errors import ModelError
from tangentlab.linearized import linearize
from tangentlab.optim import KFAC, NaturalSGD
from tests.engine.truth import dense_jacobian, relative_error


class Shrinking(nn.Module):
    """A forward that enforces a constraint on a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.held.weight.mul_(0.9)
        return self.head(self.held(x).tanh())


@pytest.mark.parametrize("how", ["frozen", "not selected"])
def test_what_a_forward_writes_to_a_parameter_that_is_not_asked_about_is_taken_back(how: str) -> None:
    model, x = Shrinking(), torch.randn(4, 3)
    model.held.requires_grad_(how != "frozen")
    before = model.held.weight.detach().clone()
    with pytest.raises(ModelError, match="writes to the parameter 'held.weight'"):
        tl.NTK(model, x, layers="head" if how == "not selected" else None)
    assert torch.equal(model.held.weight, before)


def test_a_linearized_network_refuses_a_forward_that_writes_to_its_parameters() -> None:
    model = linearize(Shrinking())
    before = model.base.held.weight.detach().clone()
    with pytest.raises(ModelError, match="writes to the parameter"):
        model(torch.randn(4, 3))
    assert torch.equal(model.base.held.weight, before)


def test_eigenpairs_are_refused_in_inference_mode() -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    with pytest.raises(ModelError, match="inference_mode"), torch.inference_mode():
        tl.fisher_eigenpairs(model, x, 1)


class Force(nn.Module):
    """Minus the gradient of two energies, and a layer on top."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 2))
        self.head = nn.Linear(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return self.head(-torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0])


@pytest.mark.parametrize("seed", range(8))
def test_derivatives_in_the_forward_are_found_in_half_precision(seed: int) -> None:
    """Rounding is as large there as what a closed form misses: one random combination of rows may agree by luck."""
    torch.manual_seed(seed)
    model, x = Force().to(torch.bfloat16), torch.randn(7, 1).to(torch.bfloat16)
    rows = tl.Jacobian(model, x).data.double()
    truth = dense_jacobian(model.double(), x.double())
    assert relative_error(rows, truth) < 0.1


class Listed(nn.Module):
    """A weight that the forward takes from a list of its own, and a unit that is dead on some batches."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.tensor([2.0])), nn.Linear(1, 1)
        self.own = [self.scale]

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x * self.own[0]).relu())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_product_is_proved_again_until_every_parameter_took_part(dtype: torch.dtype) -> None:
    model = Listed().to(dtype)
    batches = [(-torch.rand(3, 1).to(dtype),), (torch.rand(2, 1).to(dtype),)]
    jacobian = tl.Jacobian(model, batches, tl.PushForwardImplicit)
    v = torch.tensor([3.0, 1.0, -1.0], dtype=dtype)
    found = (jacobian @ tl.PVector(jacobian.layout, v)).data.double()
    truth = dense_jacobian(model.double(), torch.cat([x for (x,) in batches]).double()) @ v.double()
    assert relative_error(found, truth) < (1e-12 if dtype == torch.float64 else 0.02)


class LedByTheFirst(nn.Module):
    """All examples see the first one, whose tokens are padding in some batches and have no gradient there."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(4, 2, padding_idx=0), nn.Linear(2, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens).mean(1)
        return self.head(x + x[:1].sin())


def test_mixing_that_the_first_batch_hides_is_seen_in_the_next() -> None:
    model = LedByTheFirst().double()
    nn.init.normal_(model.table.weight)
    batches = [(torch.tensor([[0, 0], [1, 2], [3, 1]]),), (torch.tensor([[3, 1], [2, 2], [1, 0]]),)]
    truth = torch.cat([dense_jacobian(model, x) for (x,) in batches], 1)
    try:
        found = tl.Jacobian(model, batches).data
    except ModelError as error:
        assert "depend on other examples" in str(error)
    else:
        assert relative_error(found, truth) < 1e-12


class PartlyCoarse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.inner(x)
        return self.head(h.to(x.dtype).tanh())


@pytest.mark.parametrize("seed", range(5))
def test_the_rounding_of_autocast_is_no_dependence_on_other_examples(seed: int) -> None:
    torch.manual_seed(seed)
    assert tl.FIM(PartlyCoarse(), torch.randn(9, 4), tl.PMatDense).trace() > 0


def test_check_takes_selected_layers_behind_torch_jit() -> None:
    model = nn.Sequential(torch.jit.trace(nn.Linear(3, 3), torch.zeros(2, 3)), nn.Tanh(), nn.Linear(3, 1))
    assert tl.check(model, torch.randn(4, 3), layers="0").passed


def test_check_names_weak_mixing_as_such() -> None:
    class Weakly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x).tanh()
            return self.b(h + 1e-8 * h.roll(1, 0))

    with pytest.raises(ModelError, match="depend on other examples"):
        tl.check(Weakly(), torch.randn(5, 3))


def test_check_tells_that_a_copy_computes_with_the_original() -> None:
    model = nn.Linear(3, 2)
    model.forward = lambda x: nn.functional.linear(x, model.weight, model.bias)  # type: ignore[method-assign]
    with pytest.raises(ModelError, match="a copy of the model"):
        tl.check(model, torch.randn(4, 3))


def test_group_norms_of_one_position_in_optimizers_see_one_example_at_a_time() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 2), nn.GroupNorm(3, 3), nn.Flatten(), nn.Linear(3, 1))
    optimizer = NaturalSGD(model, lr=0.1)
    model(torch.randn(2, 3, 2, 2)).square().mean().backward()
    optimizer.step()


def test_a_pass_that_reaches_nothing_preconditioned_leaves_gradients_as_they_are() -> None:
    class Aside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(3, 3), nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            self.layer(x)
            return x * self.scale

    model = Aside()
    preconditioner = KFAC(model)
    model(torch.randn(4, 3)).sum().backward()
    before = model.scale.grad.clone()
    assert preconditioner.step() and torch.equal(model.scale.grad, before)


class Doubled(TorchFunctionMode):
    """Every linear map doubles."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return 2 * out if func is nn.functional.linear else out


def test_attention_under_a_function_mode_is_the_function_that_the_user_calls() -> None:
    """The mode sees an attention as one function: a capture that takes it apart would double its projections."""

    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))

    model, x = Attending().double(), torch.randn(3, 2, 4, dtype=torch.float64)
    with Doubled():
        assert relative_error(tl.Jacobian(model, x).data, dense_jacobian(model, x)) < 1e-12


def test_norms_of_gradients_whose_squares_leave_the_range_of_half_precision() -> None:
    model = nn.Linear(3, 1).to(torch.float16)
    x, y = torch.full((2, 3), 20.0, dtype=torch.float16), torch.full((2, 1), 30.0, dtype=torch.float16)
    truth = tl.per_example_grad_norms(model.float(), (x.float(), y.float()), likelihood="regression")
    found = tl.per_example_grad_norms(model.half(), (x, y), likelihood="regression")
    assert found.dtype == torch.float16 and torch.allclose(found.float(), truth, rtol=1e-2) and float(truth.max()) > 300


def test_a_linearized_network_refuses_reentrant_checkpoints() -> None:
    """They hide their parameters, and from whom depends on whether the inputs have gradients."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Linear(3, 3), nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=True).tanh())

    with pytest.raises(ModelError, match="use_reentrant=False"):
        linearize(Checkpointed())(torch.randn(4, 3))


class ListedBehindASmallWeight(nn.Module):
    """All gradients are small beside the cotangents, and that of the scale is not the largest of them."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.scale = nn.Embedding(4, 1), nn.Parameter(torch.tensor([1.5]))
        self.own = [self.scale]

    def forward(self, tokens: Tensor) -> Tensor:
        return 0.05 * self.table(tokens) * self.own[0]


@pytest.mark.parametrize("seed", range(4))
def test_a_linearized_network_in_half_precision_has_no_parameter_left_out(seed: int) -> None:
    torch.manual_seed(seed)
    model, tokens = ListedBehindASmallWeight().to(torch.bfloat16), torch.randint(4, (5, 4))
    linear, v = linearize(model), torch.randn(5).to(torch.bfloat16)
    with torch.no_grad():
        for part, value in zip(linear.displacements().values(), v.split([1, 4]), strict=True):
            part.copy_(value.reshape(part.shape))
        found = linear(tokens).double().flatten(1)
    model.double()
    truth = model(tokens).detach().flatten(1) + (dense_jacobian(model, tokens) @ v.double()).t()
    assert relative_error(found, truth) < 0.05


class HalvedBackwards(nn.Module):
    """A hook halves the gradient on its way back, which forward mode does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(32, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        if y.requires_grad:
            y.register_hook(lambda grad: 0.5 * grad)
        return self.head(y.tanh())


@pytest.mark.parametrize("seed", range(8))
def test_products_in_half_precision_are_those_of_the_gradients_that_autograd_has(seed: int) -> None:
    torch.manual_seed(seed)
    model, x = HalvedBackwards().to(torch.bfloat16), torch.randn(8, 32).to(torch.bfloat16)
    jacobian = tl.Jacobian(model, x, tl.PushForwardImplicit)
    v = torch.randn(jacobian.layout.numel).to(torch.bfloat16)
    found = (jacobian @ tl.PVector(jacobian.layout, v)).data.double()
    truth = dense_jacobian(model.double(), x.double()) @ v.double()
    assert relative_error(found, truth) < 0.05


class Pairwise(nn.Module):
    """An example counts by its distance from the others, which have no gradient where their unit is dead."""

    def __init__(self) -> None:
        super().__init__()
        self.unit, self.head = nn.Linear(1, 1), nn.Linear(1, 1)
        nn.init.ones_(self.unit.weight)
        nn.init.zeros_(self.unit.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.unit(x).relu()
        return self.head(h * (h - h.t()).square().sum(1, keepdim=True).tanh())


def test_mixing_that_a_dead_unit_hides_in_the_first_of_two_small_batches_is_seen_in_the_second() -> None:
    batches = [(torch.tensor([[0.7], [-1.0]]).double(),), (torch.tensor([[0.7], [0.4]]).double(),)]
    model = Pairwise().double()
    truth = torch.cat([dense_jacobian(model, x) for (x,) in batches], 1)
    assert relative_error(tl.Jacobian(model, batches[0]).data, truth[:, :2]) < 1e-12
    with pytest.raises(ModelError, match="depend on other examples"):
        tl.Jacobian(model, batches)


@pytest.mark.parametrize("seed", range(20))
def test_check_allows_for_the_rounding_of_a_part_in_single_precision(seed: int) -> None:
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(1, 1), nn.Linear(1, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.inner(self.inner(x).float().tanh().to(x.dtype)))

    torch.manual_seed(seed)
    assert tl.check(Single().double(), torch.randn(1, 1).double()).passed


def test_check_names_mixing_under_no_grad_too() -> None:
    class Weakly(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            h = self[0](x).tanh()
            return self[1](h + 1e-8 * h.roll(1, 0))

    with torch.no_grad(), pytest.raises(ModelError, match="depend on other examples"):
        tl.check(Weakly(nn.Linear(3, 3), nn.Linear(3, 1)), torch.randn(5, 3))


class PairsUnderANormOfOneFeature(nn.Module):
    """Two rows per example and a norm over one feature: outputs are constant, gradients some 1e-15 of either sign."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.head = nn.Linear(1, 1), nn.LayerNorm(1, bias=False), nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.head(nn.functional.softplus(self.layer(torch.stack([x, x.cos()]))).prod(0)))


@pytest.mark.parametrize("seed", range(10))
def test_gradients_that_are_nothing_but_rounding_are_no_dependence_on_other_examples(seed: int) -> None:
    torch.manual_seed(seed)
    model, x = PairsUnderANormOfOneFeature().double(), torch.randn(8, 1, dtype=torch.float64)
    assert float(tl.Jacobian(model, x).data.abs().max()) < 1e-11


class TransposedNorm(nn.Module):
    """Derivatives inside the forward, behind an instance norm whose gradients torch has wrong for one example alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer, self.head = nn.InstanceNorm2d(3, affine=True), nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x).flatten(2).transpose(1, 2)
        start = x.detach().clone().requires_grad_()
        energy = (self.layer(start) - x).square().sum()
        moved = start - 0.1 * torch.autograd.grad(energy, start, create_graph=True)[0]
        return self.head(self.layer(moved)).mean(1)


def test_wrong_gradients_of_torch_for_one_example_alone_are_no_dependence_on_the_others() -> None:
    model, x = TransposedNorm().double(), torch.randn(3, 3, 4, 2, dtype=torch.float64)
    assert relative_error(tl.Jacobian(model, x).data, dense_jacobian(model, x)) < 1e-12


class CastAtTheEnd(nn.Module):
    """Outputs of another type than the parameters, as language models give their logits in single precision."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner, self.scale, self.head, self.dtype = (
            nn.Linear(3, 4),
            nn.Parameter(torch.ones(4)),
            nn.Linear(4, 2),
            dtype,
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x).tanh() * self.scale).to(self.dtype)


@pytest.mark.parametrize(
    ("own", "given"), [(torch.float64, torch.float32), (torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)]
)
def test_outputs_of_another_type_than_the_parameters_are_checked_and_linearized(
    own: torch.dtype, given: torch.dtype
) -> None:
    torch.manual_seed(0)
    model, x = CastAtTheEnd(given).to(own), torch.randn(5, 3).to(own)
    assert tl.check(model, x, tolerance=1e-6 if given == torch.float32 else 0.1).passed
    assert torch.equal(linearize(model)(x), model(x))


class SaturatedAttention(nn.Module):
    """Examples attend to each other; where they are far apart the softmax is 1 for the own one and 1e-9 for the others."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(2, 2), nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        return self.head((h @ h.t()).softmax(1) @ h)


def test_mixing_that_a_saturated_softmax_hides_in_the_first_batch_is_seen_in_the_next() -> None:
    model = SaturatedAttention().double()
    nn.init.eye_(model.layer.weight)
    nn.init.zeros_(model.layer.bias)
    far = torch.tensor([[7.0, 0.0], [-3.5, 6.0], [-3.5, -6.0]]).double()
    assert relative_error(tl.Jacobian(model, far).data, dense_jacobian(model, far)) < 1e-8  # nothing to be seen in it
    with pytest.raises(ModelError, match="depend on other examples"):
        tl.Jacobian(model, [(far,), (0.1 * far,)])


class NormOfPixelsWithChannelsLast(nn.Module):
    """Torch ends the process when it is asked for gradients of this norm's parameters alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.head = nn.Linear(2, 2), nn.GroupNorm(1, 2), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.layer(x.movedim(1, -1)).movedim(-1, 1)).tanh().flatten(1))


def test_the_parameters_of_a_group_norm_alone_do_not_end_the_process() -> None:
    model, x = NormOfPixelsWithChannelsLast().double(), torch.randn(3, 2, 2, 2, dtype=torch.float64)
    truth = dense_jacobian(model, x)[..., 6:10]
    for layers in ("norm", ["norm.weight", "norm.bias"]):
        assert relative_error(tl.Jacobian(model, x, layers=layers).data, truth) < 1e-12
        assert tl.check(model, x, layers=layers).passed
        product = tl.Jacobian(model, x, tl.PullBackImplicit, layers=layers)
        assert torch.isfinite((product @ tl.FVector(torch.ones(2, 3, dtype=torch.float64))).flat).all()
    assert torch.isfinite(tl.NTK(model, x, layers="norm", representation=tl.FMatImplicit).matrix()).all()


def test_products_by_one_gradient_per_output_take_outputs_of_another_type() -> None:
    """A hook that changes gradients, and a function without second derivatives: no other way is left."""

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return 0.5 * grad

    class Cast(CastAtTheEnd):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(Once.apply(x * self.scale[:3]))

    model, x = Cast(torch.float32).double(), torch.randn(5, 3, dtype=torch.float64)
    jacobian = tl.Jacobian(model, x, tl.PushForwardImplicit)
    v = torch.randn(jacobian.layout.numel, dtype=torch.float64)
    found = (jacobian @ tl.PVector(jacobian.layout, v)).data.double()
    assert relative_error(found, dense_jacobian(model, x).double() @ v) < 1e-5


@pytest.mark.parametrize("where", ["input", "output"])
def test_a_patched_layer_that_is_itself_on_the_first_examples_is_proved_on_all(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.inner(x).exp())

    plain = nn.Linear.forward
    patched = {"input": lambda self, x: plain(self, x.relu()), "output": lambda self, x: plain(self, x).relu()}[where]
    model, x = Two().double(), torch.rand(20, 3, dtype=torch.float64)
    x[2:] *= torch.randn(18, 3, dtype=torch.float64).sign()
    with torch.no_grad():
        model.inner.weight.abs_()
        model.inner.bias.zero_()
        model.head.weight.abs_()
        model.head.bias.abs_()
    monkeypatch.setattr(nn.Linear, "forward", patched)
    assert relative_error(tl.Jacobian(model, x).data, dense_jacobian(model, x)) < 1e-12


@pytest.mark.parametrize("kind", [tl.PullBackImplicit, tl.PullBackDense])
def test_products_through_an_instance_norm_at_the_end_are_exact(kind: type) -> None:
    """Torch's own gradients of it are wrong for a cotangent with the examples last in memory."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.InstanceNorm2d(1, affine=True)).double(), torch.randn(4, 1, 2, 3, dtype=torch.float64)
    truth, u = dense_jacobian(model, x), torch.randn(6, 4, dtype=torch.float64)
    found = (tl.Jacobian(model, x, kind) @ tl.FVector(u)).flat
    assert relative_error(found, torch.einsum("cnd,cn->d", truth, u)) < 1e-12
    outputs, parameters = model(x), list(model.parameters())
    strided = u.t().view(outputs.shape)
    rows = backward(outputs, parameters, strided)
    assert relative_error(torch.cat([row.flatten() for row in rows]), torch.einsum("cnd,cn->d", truth, u)) < 1e-12


class SaturatedThenHooked(nn.Module):
    """Where the tanh is saturated nothing comes back; elsewhere a hook halves what does, which forward mode does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if y.requires_grad:
            y.register_hook(lambda grad: 0.5 * grad)
        return self.head(y.tanh())


@pytest.mark.parametrize("scale", [1e4, 17.0], ids=["no gradient", "nothing but rounding"])
def test_a_batch_without_a_gradient_proves_nothing_about_the_next(scale: float) -> None:
    torch.manual_seed(0)
    model, x = SaturatedThenHooked().double(), torch.randn(4, 3, dtype=torch.float64)
    with torch.no_grad():
        model.layer.bias.zero_()
        model.layer.weight.copy_(torch.eye(3))
    far = scale * x.sign() * (1 + 0.1 * x.abs())
    v = torch.randn(12, dtype=torch.float64)
    expected = dense_jacobian(model, x)[..., :12] @ v
    lazy = linearize(model, layers="layer")
    with torch.no_grad():
        for part, own in zip(lazy.displacements().values(), v.split([9, 3])):
            part.copy_(own.view(part.shape))
    lazy(far)
    assert relative_error((lazy(x) - model(x)).t().detach(), expected) < 1e-10
    push = tl.Jacobian(model, [(far,), (x,)], tl.PushForwardImplicit, layers="layer")
    assert relative_error((push @ tl.PVector(push.layout, v)).data[:, 4:], expected) < 1e-10
