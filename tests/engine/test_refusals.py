"""Bad input: an error of a tangentlab type that says what to do, from every entry point, and the model as it was."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tangentlab as tl
from tangentlab.errors import InputError, ModelError, NumericsError, TangentlabError
from tests.engine.state import model_state

Entry = Callable[..., Any]
ENTRIES: dict[str, Entry] = {
    "FIM dense": tl.FIM,
    "FIM diagonal": lambda m, x, **o: tl.FIM(m, x, tl.PMatDiag, **o),
    "FIM implicit": lambda m, x, **o: tl.FIM(m, x, tl.PMatImplicit, **o).trace(),
    "FIM_MonteCarlo": lambda m, x, **o: tl.FIM_MonteCarlo(m, x, generator=torch.Generator().manual_seed(0), **o),
    "NTK": tl.NTK,
    "NTK implicit": lambda m, x, **o: tl.NTK(m, x, representation=tl.FMatImplicit, **o).diag(),
    "NTK trace": lambda m, x, **o: tl.NTK(m, x, outputs="trace", **o),
    "Jacobian": tl.Jacobian,
    "coverage": tl.coverage,
    "check": tl.check,
}
every_entry = pytest.mark.parametrize("entry", list(ENTRIES))
METRICS = [name for name in ENTRIES if name not in ("coverage", "check")]


class Net(nn.Module):
    """A linear layer, something in between, and a linear head."""

    def __init__(self, middle: Callable[[Tensor], Tensor], **modules: nn.Module) -> None:
        super().__init__()
        self.fc, self.middle, self.head = nn.Linear(3, 16), middle, nn.Linear(16, 2)
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc(x)
        if hasattr(self, "extra"):
            hidden = self.extra(hidden)
        return self.head(self.middle(hidden))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(3, 4, num_layers=2, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x[:, None])[0][:, 0]


def detached(x: Tensor) -> Tensor:
    return x.detach()


MODES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "train-mode batch norm": (
        lambda: Net(torch.tanh, extra=nn.BatchNorm1d(16)),
        r"'extra' uses batch statistics.*eval",
    ),
    "batch norm without statistics": (
        lambda: Net(torch.tanh, extra=nn.BatchNorm1d(16, track_running_stats=False)).eval(),
        "without running statistics",
    ),
    "active dropout": (lambda: Net(torch.tanh, extra=nn.Dropout(0.5)), r"'extra' is random in train mode.*eval"),
    "active feature dropout": (lambda: Net(torch.tanh, extra=nn.AlphaDropout(0.5)), "random in train mode"),
    "random slopes": (lambda: Net(torch.tanh, extra=nn.RReLU()), "random in train mode"),
    "dropout in an LSTM": (Recurrent, "'rnn' is random in train mode"),
    "dropout in attention": (
        lambda: Net(torch.tanh, idle=nn.MultiheadAttention(4, 2, dropout=0.1)),
        "'idle' is random in train mode",
    ),
    "max_norm": (lambda: Net(torch.tanh, idle=nn.Embedding(3, 2, max_norm=1.0)), r"set module.max_norm = None"),
    "scale_grad_by_freq": (
        lambda: Net(torch.tanh, idle=nn.Embedding(3, 2, scale_grad_by_freq=True)),
        r"set module.scale_grad_by_freq = False",
    ),
}
MIXED: dict[str, Callable[[Tensor], Tensor]] = {
    "centred by the batch": lambda x: x - x.mean(0),
    "softmax over the batch": lambda x: x.softmax(0),
    "attention over examples": lambda x: x @ x.t() @ x,
    "functional dropout": lambda x: F.dropout(x, training=True),
    "noise": lambda x: x + torch.randn_like(x),
    "functional batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "neighbours": lambda x: x + x.roll(1, 0),
    "in gradients only": lambda x: x + x.mean(0) - x.mean(0).detach(),
}


def refused(
    entry: str, model: nn.Module, x: Any, kind: type[TangentlabError], message: str, **options: Any
) -> TangentlabError:
    """The error that an entry point raises, after checking type, text and that nothing has changed."""
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    before = model_state(model)
    with pytest.raises(kind, match=message) as caught:
        ENTRIES[entry](model, x, **options)
    assert model_state(model) == before
    return caught.value


@every_entry
@pytest.mark.parametrize("case", list(MODES))
def test_modes_that_make_outputs_random_or_mixed_are_refused(entry: str, case: str) -> None:
    make, message = MODES[case]
    refused(entry, make(), torch.randn(5, 3), ModelError, message)


@pytest.mark.parametrize("case", list(MODES))
def test_the_same_modes_are_refused_when_the_model_is_switched_after_building(case: str) -> None:
    """An implicit matrix speaks of the model as it is now, so it must refuse what it has become."""
    model = MODES[case][0]()
    if case in ("batch norm without statistics", "max_norm", "scale_grad_by_freq"):
        pytest.skip("eval mode does not make this model acceptable")
    F_implicit = tl.FIM(model.eval(), torch.randn(5, 3), tl.PMatImplicit)
    v = tl.PVector.random_unit(model)
    F_implicit @ v
    model.train()
    with pytest.raises(ModelError, match="eval"):
        F_implicit @ v


@every_entry
@pytest.mark.parametrize("examples", [2, 3, 7])
@pytest.mark.parametrize("case", list(MIXED))
def test_examples_that_see_each_other_or_noise_are_refused(entry: str, case: str, examples: int) -> None:
    model = Net(MIXED[case]).double()
    refused(entry, model, torch.randn(examples, 3).double(), ModelError, "evaluate examples independently")


@every_entry
@pytest.mark.parametrize("case", ["functional dropout", "noise"])
def test_noise_is_refused_for_a_single_example_too(entry: str, case: str) -> None:
    refused(entry, Net(MIXED[case]), torch.randn(1, 3), ModelError, "from call to call")


@pytest.mark.parametrize("entry", METRICS)
def test_mixing_that_only_later_batches_show_is_refused(entry: str) -> None:
    model = Net(lambda x: x - x.mean(0) if len(x) == 3 else x)
    refused(entry, model, [(torch.randn(4, 3),), (torch.randn(3, 3),)], ModelError, "evaluate examples independently")


@every_entry
def test_outputs_that_are_not_finite_are_refused(entry: str) -> None:
    refused(
        entry, Net(lambda x: x.clamp_max(0).log()), torch.randn(5, 3), NumericsError, "outputs of the model contain NaN"
    )


@pytest.mark.parametrize("entry", [*METRICS, "check"])
@pytest.mark.parametrize("case", ["structured", "fallback", "embedding"])
def test_gradients_that_are_not_finite_are_refused(entry: str, case: str) -> None:
    """sqrt has a finite value and an infinite slope at zero."""
    x = torch.randn(5, 3)
    model: nn.Module = Net(lambda h: (h - h.detach()).sqrt())
    if case == "fallback":
        model.slope = model.middle = nn.Sequential(nn.PReLU(), Root())
    elif case == "embedding":
        model, x = nn.Sequential(nn.Embedding(3, 4), Root(), nn.Linear(4, 2)), torch.tensor([0, 1, 2, 1, 0])
    refused(entry, model, x, NumericsError, "NaN or infinity")


class Root(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - x.detach()).sqrt()


@every_entry
def test_reentrant_checkpointing_is_refused_with_the_way_out(entry: str) -> None:
    model = Net(lambda x: checkpoint(torch.tanh, x, use_reentrant=True))
    refused(entry, model, torch.randn(5, 3), ModelError, "use_reentrant=False")


@every_entry
def test_inference_mode_is_refused_and_no_grad_works(entry: str) -> None:
    model, x = Net(torch.tanh), torch.randn(5, 3)
    before = model_state(model)
    with torch.inference_mode(), pytest.raises(ModelError, match="leave it, or use torch.no_grad"):
        ENTRIES[entry](model, x)
    assert model_state(model) == before
    with torch.no_grad():
        ENTRIES[entry](model, x)
        assert not torch.is_grad_enabled()
    assert model_state(model) == before


@pytest.mark.parametrize("entry", [*METRICS, "coverage"])
def test_data_and_models_made_in_inference_mode_are_refused_with_the_way_out(entry: str) -> None:
    with torch.inference_mode():
        x, made_inside = torch.randn(5, 3), Net(torch.tanh)
    with pytest.raises(InputError, match=r"clone\(\) it"):
        ENTRIES[entry](Net(torch.tanh), x)
    with pytest.raises(InputError, match="make the model outside"):
        ENTRIES[entry](made_inside, torch.randn(5, 3))


@every_entry
def test_a_forward_without_gradients_is_refused(entry: str) -> None:
    class Cut(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).detach()

    refused(entry, Cut(torch.tanh), torch.randn(5, 3), ModelError, "no_grad.* or detach")


@every_entry
def test_a_model_without_trainable_parameters_is_refused(entry: str) -> None:
    refused(entry, Net(torch.tanh).requires_grad_(False), torch.randn(5, 3), InputError, "no trainable parameter")


@every_entry
def test_what_is_no_module_is_refused(entry: str) -> None:
    with pytest.raises(InputError, match="torch.nn.Module is expected"):
        ENTRIES[entry](lambda x: x, torch.randn(5, 3))


@every_entry
@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda out, batch: out.sum(), "no example axis"),
        (lambda out, batch: out.argmax(1), "dtype torch.int64"),
        (lambda out, batch: out.to(torch.complex64), "dtype torch.complex64"),
        (lambda out, batch: [out], "returns a list.*function=lambda"),
        (lambda out, batch: out[:, :0], "output is empty"),
    ],
    ids=["scalar", "integers", "complex", "list", "nothing"],
)
def test_outputs_that_have_no_jacobian_are_refused(entry: str, output: Any, message: str) -> None:
    refused(entry, Net(torch.tanh), torch.randn(5, 3), InputError, message, function=output)


@every_entry
def test_a_batch_without_examples_is_refused(entry: str) -> None:
    refused(entry, Net(torch.tanh), torch.randn(0, 3), InputError, "at least one example")


@pytest.mark.parametrize("entry", METRICS)
@pytest.mark.parametrize("data", [[], None], ids=["empty", "none"])
def test_no_data_is_refused(entry: str, data: Any) -> None:
    refused(entry, Net(torch.tanh), data, InputError, "empty|No data")


@pytest.mark.parametrize("entry", METRICS)
def test_a_wrong_number_of_outputs_is_refused_and_the_right_one_accepted(entry: str) -> None:
    model, x = Net(torch.tanh), torch.randn(5, 3)
    refused(entry, model, x, InputError, "n_output=3, but the model gives 2", n_output=3)
    ENTRIES[entry](model, x, n_output=2)


@every_entry
def test_frozen_complex_and_foreign_parameters_in_a_selection_are_refused(entry: str) -> None:
    model, x = Net(torch.tanh), torch.randn(5, 3)
    layout = tl.LayerCollection.from_model(model)
    refused(entry, model, x, InputError, "selection of parameters is empty", layers=layout - layout)
    model.fc.weight.requires_grad_(False)
    refused(entry, model, x, InputError, "'fc.weight' is frozen", layers=layout)
    other = tl.LayerCollection.from_model(nn.Linear(3, 2))
    refused(entry, model, x, InputError, "belongs to another model", layers=other)
    model.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    refused(entry, model, x, InputError, "'phase' is complex")


class Midway(nn.Module):
    """Raises after some layers have been called, some buffers written and some random numbers drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head, self.healthy = nn.Linear(3, 4), nn.Linear(4, 2), 10**9
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.fc(x)
        self.seen += 1
        self.healthy -= 1
        if self.healthy < 0:
            torch.rand(1)
            raise LookupError("raised midway")
        return self.head(self.last)


@every_entry
@pytest.mark.parametrize("healthy", [0, 1, 2])
def test_an_exception_in_the_forward_reaches_the_user_and_leaves_no_trace(entry: str, healthy: int) -> None:
    """In the first forward, in the probe (which may survive it), or in a later one.

    The count is kept outside the model, which is put back after every forward.
    """
    model, calls = Midway(), []

    def forward(module: nn.Module, batch: Any) -> Tensor:
        calls.append(1)
        module.healthy = healthy - len(calls) + 1
        return module(batch[0])

    before = model_state(model)
    data: Any = (torch.randn(4, 3),)
    data = [data, data] if entry in METRICS else data
    try:
        ENTRIES[entry](model, data, forward=forward)
        raised = False
    except LookupError as error:
        assert str(error) == "raised midway"
        raised = True
    assert raised or healthy >= 1
    assert {**model_state(model), "random state": 0} == {**before, "random state": 0}


def test_an_unknown_likelihood_is_refused_before_anything_runs() -> None:
    def never(module: nn.Module, batch: Any) -> Tensor:
        raise AssertionError("the forward ran")

    for build in (tl.FIM, tl.FIM_MonteCarlo, tl.FIM_Empirical):
        with pytest.raises(InputError, match=r"Unknown likelihood 'gamma'"):
            build(Net(torch.tanh), torch.randn(5, 3), likelihood="gamma", forward=never)


def test_a_vector_of_another_model_is_refused() -> None:
    model, x = Net(torch.tanh), torch.randn(5, 3)
    other = tl.PVector.random_unit(nn.Linear(3, 2))
    for kind in (tl.PMatDense, tl.PMatDiag, tl.PMatImplicit):
        with pytest.raises(InputError, match="belongs to other parameters"):
            tl.FIM(model, x, kind) @ other
    for kind in (tl.PushForwardDense, tl.PushForwardImplicit):
        with pytest.raises(InputError, match="belongs to other parameters"):
            tl.Jacobian(model, x, kind) @ other


@every_entry
@pytest.mark.parametrize("what", ["model", "inputs", "targets"])
def test_tensors_without_values_are_refused(entry: str, what: str) -> None:
    model, x, y = nn.Linear(3, 2), torch.randn(4, 3), torch.zeros(4).long()
    if what == "model":
        model = model.to("meta")
    batch = {"model": (x, y), "inputs": (x.to("meta"), y), "targets": (x, y.to("meta"))}[what]
    with pytest.raises(InputError, match="'meta'"):
        ENTRIES[entry](model, batch)
