"""Every animal of the zoo: rows exact against plain autograd, routes as announced, check passes, the model untouched."""

import pytest
import torch

from tangentlab.engine.check import check
from tangentlab.engine.coverage import coverage
from tangentlab.engine.network import Network
from tangentlab.engine.rows import Engine
from tests.engine.state import model_state
from tests.engine.truth import dense_jacobian, relative_error
from tests.zoo import ZOO, Animal, by_name

each_animal = pytest.mark.parametrize("one", ZOO, ids=str)


def engine_rows(one: Animal, dtype: torch.dtype, accelerate: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows of all groups in flat order, truth)."""
    model, batch = one.catch(dtype)
    truth = dense_jacobian(*one.catch(dtype), one.forward)
    engine = Engine(Network.of(model, forward=one.forward))
    sweep = engine.sweep(batch)
    if not accelerate:
        engine.verdicts = _Never()
    parts = {}
    for group, factor in sweep.factors(sweep.identity_cotangents()).items():
        sizes = [torch.Size(engine.network.layout.shapes[name]).numel() for name in group.names]
        parts |= dict(zip(group.names, factor.rows().split(sizes, -1)))
    return torch.cat([parts[name] for name in engine.network.layout.names], -1), truth


class _Never(dict):
    """Verdicts that never trust the accelerator."""

    def get(self, key, default=None):
        return False


@each_animal
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)], ids=["f64", "f32"])
def test_rows_of_every_group_are_those_of_plain_autograd(one: Animal, dtype: torch.dtype, tolerance: float) -> None:
    rows, truth = engine_rows(one, dtype)
    assert rows.dtype == dtype
    assert not rows.requires_grad
    assert relative_error(rows, truth) < tolerance


@pytest.mark.parametrize("one", [one for one in ZOO if one.fallback], ids=str)
def test_the_fallback_is_exact_without_its_accelerator(one: Animal) -> None:
    rows, truth = engine_rows(one, torch.float64, accelerate=False)
    assert relative_error(rows, truth) < 1e-12


@each_animal
def test_every_parameter_takes_the_announced_route_for_the_announced_reason(one: Animal) -> None:
    model, batch = one.catch()
    rows = coverage(model, batch, forward=one.forward).rows
    found = {name: (row.route, row.reason) for row in rows for name in row.names}
    assert list(found) == [name for name, p in model.named_parameters() if p.requires_grad]
    for name, (route, reason) in found.items():
        if name in one.fallback:
            assert route == "fallback", name
            assert one.fallback[name] in reason
        else:
            assert route == ("unused" if name.startswith(one.unused or ("-",)) else "structured"), (name, reason)
            assert reason == ""


@each_animal
def test_check_passes(one: Animal) -> None:
    model, batch = one.catch(torch.float32)
    assert check(model, batch, forward=one.forward).error < 1e-10


@each_animal
def test_nothing_of_the_model_or_of_the_process_has_changed(one: Animal) -> None:
    model, batch = one.catch()
    before = model_state(model)
    sweep = Engine(Network.of(model, forward=one.forward)).sweep(batch)
    sweep.factors(sweep.identity_cotangents())
    coverage(model, batch, forward=one.forward)
    check(model, batch, forward=one.forward)
    assert model_state(model) == before


@each_animal
def test_callers_inside_no_grad_get_the_same_rows(one: Animal) -> None:
    with torch.no_grad():
        rows, truth = engine_rows(one, torch.float64)
    assert relative_error(rows, truth) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["ThreeCalls", "ReusedConvolution", "TiedLinear"])
def test_compiled_models_are_exact(name: str, backend: str) -> None:
    model, batch = by_name(name).catch()
    truth = dense_jacobian(model, batch)
    compiled = torch.compile(model, backend=backend)
    sweep = Engine(Network.of(compiled)).sweep(batch)
    factors = sweep.factors(sweep.identity_cotangents())
    assert relative_error(torch.cat([factor.rows() for factor in factors.values()], -1), truth) < 1e-10
