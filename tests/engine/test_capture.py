"""What the engine's rules are for: each trap shown to be one, and the engine not in it."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from tangentlab.engine import capture as capture_module
from tangentlab.engine import fallback
from tangentlab.engine.capture import batched_grad, capture, gradients, output_gradients
from tangentlab.engine.certificate import verify
from tangentlab.engine.check import CheckReport, check
from tangentlab.engine.coverage import coverage
from tangentlab.engine.fallback import fallback_rows, loop_rows, vmapped_rows
from tangentlab.engine.graph import leaves_of_call, read_graph
from tangentlab.engine.network import Network
from tangentlab.engine.rows import Engine
from tangentlab.errors import NumericsError
from tests.engine.truth import dense_jacobian, relative_error
from tests.zoo import by_name


def caught(name: str) -> tuple[Network, Tensor]:
    model, batch = by_name(name).catch()
    return Network.of(model), batch


def test_after_an_in_place_activation_the_output_tensor_has_another_gradient_and_the_edge_does_not() -> None:
    fc, x, grads = nn.Linear(3, 4), torch.randn(5, 3), {}
    for in_place in (False, True):
        kept: list[Tensor] = []
        handle = fc.register_forward_hook(lambda module, args, output, kept=kept: kept.append(output))
        loss = (F.relu(fc(x), inplace=in_place) + 1).square().sum()
        handle.remove()
        grads[in_place] = torch.autograd.grad(loss, kept)[0]
    assert not torch.allclose(grads[True], grads[False])
    network = Network.of(nn.Sequential(fc, nn.ReLU(inplace=True)))
    captured = capture(network, x, Engine(network).groups)
    (edge,) = output_gradients(captured.outputs, captured.calls, 2 * (captured.outputs.detach()[None] + 1))
    assert torch.allclose(edge[0], grads[False])


@pytest.mark.parametrize("name", ["Checkpointed", "ThreeCalls", "KeywordCalls"])
def test_hooks_are_gone_when_the_forward_returns(name: str) -> None:
    network, batch = caught(name)
    engine = Engine(network)
    captured = capture(network, batch, engine.groups)
    seen = len(captured.calls)
    assert seen > 0
    assert not any(module._forward_hooks for module in network.model.modules())
    captured.outputs.sum().backward()
    assert len(captured.calls) == seen


def test_an_input_that_is_written_after_the_call_is_noticed() -> None:
    class Overwritten(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)
            self.fc.weight.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            own = x.clone()
            out = self.fc(own)
            own.mul_(2)
            return out.tanh()

    model, x = Overwritten(), torch.randn(4, 3)
    (row,) = coverage(model, x).rows
    assert (row.names, row.route) == (("fc.bias",), "fallback")
    assert "modified in place" in row.reason
    assert check(model, x).passed


@pytest.mark.parametrize("name", ["ThreeCalls", "ReusedConvolution", "TiedEmbedding", "InPlaceEverywhere", "Attention"])
def test_the_vmapped_backward_and_the_loop_give_the_same_output_gradients(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, batch = caught(name)
    captured = capture(network, batch, Engine(network).groups)
    cotangents = torch.randn(3, *captured.outputs.shape, dtype=torch.float64)
    vmapped = output_gradients(captured.outputs, captured.calls, cotangents)
    monkeypatch.setattr(capture_module, "VMAP_CELLS", 0)
    looped = output_gradients(captured.outputs, captured.calls, cotangents)
    for one, two, call in zip(vmapped, looped, captured.calls):
        assert one.shape == two.shape == (3, *call.output_shape)
        assert torch.allclose(one, two, rtol=0, atol=1e-13)


def test_an_operation_that_vmap_does_not_know_is_looped_over() -> None:
    network, batch = caught("StraightThrough")
    with torch.enable_grad():
        outputs = network(batch)
    parameters = list(network.parameters().values())
    cotangents = torch.randn(3, *outputs.shape, dtype=torch.float64)
    with pytest.raises((RuntimeError, TypeError)):
        torch.autograd.grad(outputs, parameters, cotangents, is_grads_batched=True, retain_graph=True)
    rows = batched_grad(outputs, parameters, cotangents)
    for k in range(3):
        for row, truth in zip(rows, torch.autograd.grad(outputs, parameters, cotangents[k], retain_graph=True)):
            assert torch.equal(row[k], truth)


def test_gradient_hooks_on_parameters_do_not_change_the_jacobian_and_stay_where_they_are() -> None:
    model, x = nn.Sequential(nn.Linear(3, 2), nn.PReLU()), torch.randn(4, 3)
    truth, calls = dense_jacobian(model, x), []
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: calls.append(1) or 2 * grad)
    network = Network.of(model)
    sweep = Engine(network).sweep(x)
    rows = [factor.rows() for factor in sweep.factors(sweep.identity_cotangents()).values()]
    assert relative_error(torch.cat(rows, -1), truth) < 1e-5
    assert not calls
    model(x).sum().backward()
    assert len(calls) == 3


def test_a_parameter_that_some_cotangents_do_not_reach_gets_zeros() -> None:
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    assert gradients(a.sum(), [a, b], torch.ones(()))[1] is None
    assert batched_grad(2 * a, [a, b], torch.eye(2)[:1])[1] is None


def test_the_number_of_uses_of_a_leaf_counts_every_edge() -> None:
    w, x = torch.randn(3, 3, requires_grad=True), torch.randn(2, 3)
    facts = read_graph(F.linear(F.linear(x, w), w) + (w * w).sum())
    assert facts.consumers == {id(w): 4}


def test_the_leaves_of_a_call_end_at_its_input() -> None:
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    hidden = a(torch.randn(2, 3)).tanh()
    out = b(hidden)
    assert leaves_of_call(out.grad_fn, {hidden.grad_fn}) == {id(b.weight), id(b.bias)}
    assert leaves_of_call(out.grad_fn, ()) == {id(p) for layer in (a, b) for p in layer.parameters()}


def jacobian_by_vmap(model: nn.Module, x: Tensor) -> Tensor:
    """The textbook way: vmap over examples of jacrev of a functional call, (outputs, examples, d)."""
    parameters = dict(model.named_parameters())
    one = jacrev(lambda p, z: functional_call(model, p, (z[None],))[0])
    jacobian = vmap(one, in_dims=(None, 0))(parameters, x)
    return torch.cat([jacobian[name].flatten(2) for name in parameters], -1).transpose(0, 1).detach()


def test_the_textbook_vmap_is_silently_wrong_for_prelu_and_the_fallback_is_not() -> None:
    network, batch = caught("PReLUOfEqualSizes-4")
    truth = dense_jacobian(network.model, batch)
    assert relative_error(jacobian_by_vmap(network.model, batch), truth) > 1e-2
    engine = Engine(network)
    sweep = engine.sweep(batch)
    rows = torch.cat([factor.rows() for factor in sweep.factors(sweep.identity_cotangents()).values()], -1)
    assert relative_error(rows, truth) < 1e-12
    assert list(engine.verdicts.values()) == [False]


def test_trust_in_the_accelerator_is_not_carried_to_other_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An accelerator that is wrong on four examples only, as vmap is on as many examples as outputs."""
    network, _ = caught("PReLUOfEqualSizes-4")

    def sometimes_wrong(network: Network, batch: Tensor, names: tuple[str, ...], cotangents: Tensor) -> Tensor:
        with torch.enable_grad():
            parameters = {name: network.parameters()[name] for name in names}
            rows = loop_rows(network(batch), parameters, cotangents, range(len(batch)))
        return rows * (len(batch) != 4)

    monkeypatch.setattr(fallback, "vmapped_rows", sometimes_wrong)
    engine = Engine(network)
    for examples in (5, 4, 6, 4):
        x = torch.randn(examples, 2, dtype=torch.float64)
        sweep = engine.sweep(x)
        rows = torch.cat([factor.rows() for factor in sweep.factors(sweep.identity_cotangents()).values()], -1)
        assert relative_error(rows, dense_jacobian(network.model, x)) < 1e-12
    assert list(engine.verdicts.values()) == [True, False, True]


@pytest.mark.parametrize("wrong", [0, 3, 6])
def test_one_wrong_row_of_the_accelerator_is_enough_to_take_the_loop(
    wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, _ = caught("PReLUOfEqualSizes-4")
    x = torch.randn(7, 2, dtype=torch.float64)

    def almost_right(network: Network, batch: Tensor, names: tuple[str, ...], cotangents: Tensor) -> Tensor:
        rows = loop_rows(network(batch), {n: network.parameters()[n] for n in names}, cotangents, range(7))
        rows[1, wrong] *= 1.001
        return rows

    monkeypatch.setattr(fallback, "vmapped_rows", almost_right)
    sweep = Engine(network).sweep(x)
    rows = torch.cat([factor.rows() for factor in sweep.factors(sweep.identity_cotangents()).values()], -1)
    assert relative_error(rows, dense_jacobian(network.model, x)) < 1e-12


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("examples", [3, 4, 5])
def test_gradients_of_a_shape_that_vmap_made_up_are_not_used(channels: int, examples: int) -> None:
    """For a PReLU, vmap returns as many rows as there are examples, whatever was asked for."""
    layers = nn.Linear(2, channels), nn.PReLU(channels), nn.Linear(channels, 4)
    model, x = nn.Sequential(*layers).double(), torch.randn(examples, 2, dtype=torch.float64)
    sweep = Engine(Network.of(model)).sweep(x)
    for chosen in (range(1), range(2), range(4)):
        factors = sweep.factors(sweep.identity_cotangents(chosen))
        rows = torch.cat([factor.rows() for factor in factors.values()], -1)
        assert relative_error(rows, dense_jacobian(model, x)[list(chosen)]) < 1e-12


@pytest.mark.parametrize("name", ["GRU", "LSTM", "DataDependentControlFlow", "StraightThrough", "Checkpointed"])
def test_where_vmap_fails_the_loop_carries_on(name: str) -> None:
    network, batch = caught(name)
    truth = dense_jacobian(network.model, batch)
    eye = torch.eye(truth.shape[0], dtype=torch.float64)[:, None].expand(-1, truth.shape[1], -1)
    assert vmapped_rows(network, batch, network.layout.names, eye) is None
    verdicts: dict = {}
    with torch.enable_grad():
        outputs = network(batch)
        rows = fallback_rows(network, batch, outputs, network.layout.names, eye, verdicts)
    assert relative_error(rows, truth) < 1e-12
    assert list(verdicts.values()) == [False]


@pytest.mark.parametrize("name", ["ThreeCalls", "Impostors", "WeightNorm", "TiedEmbedding", "SharedModuleList"])
def test_the_accelerator_and_the_loop_agree_where_vmap_works(name: str) -> None:
    network, batch = caught(name)
    with torch.enable_grad():
        outputs = network(batch)
        cotangents = torch.randn(2, *outputs.shape, dtype=torch.float64)
        loop = loop_rows(outputs, network.parameters(), cotangents, range(len(outputs)))
    fast = vmapped_rows(network, batch, network.layout.names, cotangents)
    assert fast is not None
    assert not fast.requires_grad
    assert relative_error(fast, loop) < 1e-12


def test_a_list_as_loaders_give_it_is_accelerated_as_well() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Softplus()).double()
    x, y = torch.randn(5, 3).double(), torch.arange(5)
    eye = torch.eye(2, dtype=torch.float64)[:, None].expand(-1, 5, -1)
    fast = vmapped_rows(Network.of(model), [x, y], ("0.weight", "0.bias"), eye)
    assert fast is not None and relative_error(fast, dense_jacobian(model, x)) < 1e-12


def test_every_forward_starts_from_the_same_buffers() -> None:
    """The counter doubles the output at every step; capture, probe and both routes must see the same step."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.slope = nn.Linear(3, 2), nn.PReLU()
            self.register_buffer("step", torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            self.step *= 2
            return self.slope(self.fc(x)) * self.step

    model, x = Counting().double(), torch.randn(4, 3).double()
    network = Network.of(model)
    sweep = Engine(network).sweep(x)
    rows = torch.cat([factor.rows() for factor in sweep.factors(sweep.identity_cotangents()).values()], -1)
    assert float(model.step) == 1
    assert relative_error(rows, dense_jacobian(model, x)) < 1e-12


def test_coverage_prints_every_parameter_with_its_route_and_reason() -> None:
    model, batch = by_name("BareAndUnused").catch()
    table = coverage(model, batch)
    text = str(table)
    for name, _ in model.named_parameters():
        assert name in text
    assert "no closed form is registered for BareAndUnused" in text
    assert table.structured_fraction == pytest.approx(8 / sum(p.numel() for p in model.parameters()))
    assert text.splitlines()[-1] == f"{100 * table.structured_fraction:.1f} % of the parameters have a closed form."


def test_check_finds_a_wrong_closed_form_and_names_its_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    from tangentlab.layers import registry

    rule = registry._RULES[nn.LayerNorm]
    wrong = replace(rule, factors=lambda m, x, g, names: rule.factors(m, x, 1.001 * g, names))
    monkeypatch.setitem(registry._RULES, nn.LayerNorm, wrong)
    model, batch = by_name("ThreeCalls").catch()
    with verify(False), pytest.raises(NumericsError, match=r"norm.weight \(1.0e-03\), norm.bias \(1.0e-03\)"):
        check(model, batch)
    assert check(model, batch).passed  # a proof finds it out and takes the exact route
    reasons = {row.names[0]: row.reason for row in coverage(model, batch).rows}
    assert "plain autograd" in reasons["norm.weight"] and not reasons["fc.weight"]


def test_check_takes_selectors_of_the_model_itself_and_reports_per_group() -> None:
    model, batch = by_name("ThreeCalls").catch(torch.float32)
    report = check(model, batch, layers=model.fc)
    assert isinstance(report, CheckReport)
    assert set(report.errors) == {("fc.weight", "fc.bias")}
    assert report.passed


def test_a_model_whose_outputs_and_gradients_cancel_to_rounding_passes() -> None:
    class Cancelled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.norm = nn.Linear(3, 7), nn.LayerNorm(7, elementwise_affine=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.fc(x)).mean(-1)

    model, x = Cancelled(), torch.randn(6, 3)
    assert check(model, x).passed


def test_gradients_flow_through_a_tensor_that_the_model_computed_before_and_keeps() -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.raw, self.fc = nn.Parameter(torch.randn(3, dtype=torch.float64)), nn.Linear(3, 2).double()
            self.scale = self.raw.exp()

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x * self.scale)

    model, x = Cached(), torch.randn(4, 3, dtype=torch.float64)
    sweep = Engine(Network.of(model)).sweep(x)
    rows = torch.cat([factor.rows() for factor in sweep.factors(sweep.identity_cotangents()).values()], -1)
    truth = dense_jacobian(model, x)
    assert truth[..., :3].any()
    assert relative_error(rows, truth) < 1e-12
