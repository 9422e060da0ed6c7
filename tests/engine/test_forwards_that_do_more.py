"""Forwards that draw random numbers, write to parameters or convert modules: refused in words, or exact."""

import random
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tangentlab as tl
from tangentlab.errors import ModelError, NumericsError
from tests.engine.state import model_state
from tests.engine.truth import dense_jacobian, relative_error

NOISE: dict[str, Callable[[Tensor], Tensor]] = {
    "stochastic depth of torch": lambda h: h * (torch.rand(()) > 0.05),
    "stochastic depth of Python": lambda h: h if random.random() > 0.05 else 0 * h,
    "stochastic depth of numpy": lambda h: h * float(np.random.rand() > 0.05),
    "functional dropout": lambda h: F.dropout(h, 0.01, training=True),
    "a draw that is not used": lambda h: h + 0 * torch.randn(()),
    "a permutation": lambda h: h[:, torch.randperm(h.shape[1])],
}


class Net(nn.Module):
    def __init__(self, middle: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fc, self.middle, self.head = nn.Linear(3, 4), middle, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.fc(x).tanh()))


ENTRIES: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "kernel": tl.NTK,
    "table": tl.coverage,
    "product": lambda m, x: tl.FIM(m, x, tl.PMatImplicit) @ tl.PVector.ones(m),
}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("case", list(NOISE))
def test_any_draw_in_the_forward_is_refused_whatever_it_gives(case: str, seed: int) -> None:
    model, x = Net(NOISE[case]), torch.randn(5, 3)
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    states = random.getstate(), np.random.get_state()[1].copy()
    before = model_state(model)
    for entry in ENTRIES.values():
        with pytest.raises(ModelError, match="draws from the random generator"):
            entry(model, x)
    assert model_state(model) == before
    assert random.getstate() == states[0] and (np.random.get_state()[1] == states[1]).all()


def test_an_own_generator_is_seen_by_outputs_that_change() -> None:
    generator = torch.Generator().manual_seed(0)
    model = Net(lambda h: h + torch.randn(h.shape, generator=generator))
    with pytest.raises(ModelError, match="from call to call"):
        tl.NTK(model, torch.randn(5, 3))


class Constrained(nn.Linear):
    """Keeps its weights within a ball by writing to them in every forward."""

    how = "data"

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "data":
            self.weight.data = torch.renorm(self.weight.data, 2, 0, 0.5)
        elif self.how == "data in place":
            self.weight.data.mul_(0.9)
        else:
            with torch.no_grad():
                self.weight.clamp_(-0.1, 0.1)
        return F.linear(x, self.weight, self.bias)


@pytest.mark.parametrize("how", ["data", "data in place", "no_grad"])
def test_a_forward_that_writes_to_its_parameters_is_refused_by_name_and_taken_back(how: str) -> None:
    model = nn.Sequential(Constrained(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].how = how
    before = [(p.data_ptr(), p.detach().clone()) for p in model.parameters()]
    for entry in ENTRIES.values():
        with pytest.raises(ModelError, match=r"writes to the parameter '0.weight'.*after the optimizer's step"):
            entry(model, torch.randn(5, 3))
        for parameter, (address, value) in zip(model.parameters(), before):
            assert parameter.data_ptr() == address and torch.equal(parameter, value)


def test_what_a_forward_has_written_before_it_raises_is_taken_back() -> None:
    model = nn.Sequential(Constrained(3, 4), nn.Linear(5, 2))
    before = model[0].weight.detach().clone()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        tl.NTK(model, torch.randn(5, 3))
    assert torch.equal(model[0].weight, before)


def test_weights_that_are_no_numbers_are_not_taken_for_written() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].weight.data[0, 0] = torch.nan
    with pytest.raises(NumericsError, match="NaN"):
        tl.NTK(model, torch.randn(5, 3))


class Converting(nn.Module):
    """Converts a module in its forward, as routers of sparse transformers do, next to weights without closed form."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.head, self.slope, self.mix, self.how = nn.Linear(3, 4), nn.PReLU(), nn.Parameter(torch.eye(4)), how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "to":
            self.head = self.head.to(torch.float32)
        elif self.how == "float":
            self.head.float()
        elif self.how == "half and back":
            self.half().float()
        elif self.how == "data":
            self.mix.data = self.mix.data
        return self.slope(self.head(x) @ self.mix)


@pytest.mark.parametrize("how", ["to", "float", "data"])
@pytest.mark.parametrize("examples", [1, 3, 6])
def test_forwards_that_convert_their_modules_are_exact(how: str, examples: int) -> None:
    """On the tensors of vmap the conversion would end the process."""
    model, x = Converting(how), torch.randn(examples, 3)
    truth = dense_jacobian(model, x)
    assert relative_error(tl.Jacobian(model, x).data, truth) < 1e-5
    v = tl.PVector.ones(model)
    products = torch.einsum("cnp,cnq,q->p", truth, truth, v.flat) / examples
    assert relative_error((tl.FIM(model, x, tl.PMatImplicit, "regression") @ v).flat, products) < 1e-5
    hessian = tl.Hessian(model, (x, torch.randn(examples, 4)), tl.PMatImplicit, "regression")
    assert torch.isfinite((hessian @ v).flat).all()


def test_conversions_inside_checkpointed_parts_do_not_end_the_process() -> None:
    code = (
        "import torch\nfrom torch.utils.checkpoint import checkpoint\nimport tangentlab as tl\n"
        "from tests.engine.test_forwards_that_do_more import Checkpointed\n"
        "model, x = Checkpointed(), torch.randn(5, 3)\n"
        "tl.NTK(model, x); tl.FIM(model, x, tl.PMatImplicit) @ tl.PVector.ones(model)\nprint('alive')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "alive", done.stderr[-500:]


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = Converting("to"), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.inner, x, use_reentrant=False))


def test_conversions_in_other_threads_are_left_alone() -> None:
    """While a transform runs, `Module.to` is refused in its own thread only."""
    from threading import Thread

    from tangentlab.engine.functional import _no_conversion

    done: list[torch.dtype] = []
    with _no_conversion():
        thread = Thread(target=lambda: done.append(nn.Linear(2, 2).double().weight.dtype))
        thread.start()
        thread.join()
        with pytest.raises(RuntimeError, match="converts a Linear"):
            nn.Linear(2, 2).double()
    assert done == [torch.float64]
    assert nn.Linear(2, 2).double().weight.dtype == torch.float64
