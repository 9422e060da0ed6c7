"""The forward-mode ladder: which rung carries which network, exactness against the dense Jacobian, flags restored."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tangentlab as tl
from tangentlab.engine.forward_mode import Linearization, plain_kernels
from tangentlab.engine.network import Network
from tangentlab.engine.rows import Rows
from tangentlab.engine.weightings import Unweighted
from tests.engine.state import model_state, process_state
from tests.engine.truth import dense_jacobian, relative_error
from tests.zoo import ZOO, Animal, by_name

DEFAULT, PLAIN, REVERSE = 0, 1, 2


class Sdpa(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(4, 12), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 2)).permute(2, 0, 3, 1, 4)
        return self.head(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2).sum(1))


class Around(nn.Module):
    """A module of torch between an input (examples, steps, 4) and a linear head."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x, x, x) if isinstance(self.inner, nn.MultiheadAttention) else self.inner(x)
        return self.head((out[0] if isinstance(out, tuple) else out).sum(1))


def make_network(kind: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    if kind == "sdpa":
        return Sdpa().to(dtype)
    inner: dict[str, nn.Module] = {
        "linear": nn.Linear(4, 4),
        "attention": nn.MultiheadAttention(4, 2, batch_first=True),
        "encoder": nn.TransformerEncoderLayer(4, 2, 5, batch_first=True),
        "LSTM": nn.LSTM(4, 4, batch_first=True),
        "GRU": nn.GRU(4, 4, batch_first=True),
    }
    return Around(inner[kind]).eval().to(dtype)


def linearization(model: nn.Module, batch: object) -> Linearization:
    return Linearization(Network.of(model), batch)


def directions(linear: Linearization, dtype: torch.dtype, count: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(linear.network.layout.numel, generator=generator, dtype=dtype) for _ in range(count)]


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize(
    ("kind", "dtype", "rung"),
    [
        ("linear", torch.float32, DEFAULT),
        ("GRU", torch.float32, DEFAULT),
        ("LSTM", torch.float32, PLAIN),
        ("LSTM", torch.float64, DEFAULT),
        ("sdpa", torch.float32, PLAIN),
        ("sdpa", torch.float64, PLAIN),
        ("attention", torch.float32, PLAIN),
        ("encoder", torch.float32, PLAIN),
        ("encoder", torch.float64, PLAIN),
    ],
)
def test_products_take_the_first_rung_that_can_carry_them_and_are_exact(
    kind: str, dtype: torch.dtype, rung: int
) -> None:
    model, x = make_network(kind, dtype), torch.randn(3, 5, 4, dtype=dtype)
    before, truth = model_state(model), dense_jacobian(model, x)
    linear = linearization(model, x)
    tolerance = 1e-10 if dtype == torch.float64 else 2e-4
    for v in directions(linear, dtype):
        assert relative_error(linear.jvp(v).t(), truth @ v) < tolerance
    u = torch.randn(3, 2, dtype=dtype)
    assert relative_error(linear.vjp(u), torch.einsum("knd,nk->d", truth, u)) < tolerance
    assert linear.rung == rung
    after = model_state(model)
    assert {**after, "random state": 0} == {**before, "random state": 0}


@pytest.mark.parametrize("one", [one for one in ZOO if one.name not in ("StraightThrough", "Unregistered")], ids=str)
def test_products_are_exact_on_every_animal_and_leave_it_alone(one: Animal) -> None:
    model, batch = one.catch()
    truth = dense_jacobian(*one.catch(), one.forward)
    before = model_state(model)
    linear = Linearization(Network.of(model, forward=one.forward), batch)
    for v in directions(linear, torch.float64):
        assert relative_error(linear.jvp(v).flatten(1).t(), truth @ v) < 1e-10
    u = torch.randn(linear.outputs.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert relative_error(linear.vjp(u), torch.einsum("knd,nk->d", truth, u.flatten(1))) < 1e-10
    assert model_state(model) == before


@pytest.mark.parametrize("name", ["NoGradRegion", "ParametersInAList"])
def test_where_forward_mode_sees_another_function_than_reverse_mode_the_ladder_goes_on(name: str) -> None:
    model, batch = by_name(name).catch()
    linear = linearization(model, batch)
    v = directions(linear, torch.float64)[0]
    truth = dense_jacobian(model, batch) @ v
    assert relative_error(linear._forward_mode(v).t(), truth) > 1e-3
    assert relative_error(linear.jvp(v).t(), truth) < 1e-12
    assert linear.rung == REVERSE


class AlsoFromAList(nn.Module):
    """A small part of the output comes from a parameter that is read from a list, out of reach of a functional call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 2), nn.Parameter(torch.ones(2))
        self.listed = [self.scale]

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).sin() + self.listed[0] / 128


def test_in_half_precision_a_part_below_its_rounding_is_not_lost_in_forward_mode() -> None:
    model = AlsoFromAList().to(torch.bfloat16)
    linear = linearization(model, torch.randn(3, 4, generator=torch.Generator().manual_seed(3)).bfloat16())
    along = {name: torch.full_like(p, float(name == "scale")) for name, p in model.named_parameters()}
    found = linear.jvp(linear.network.layout.flatten(along))
    assert torch.equal(found, torch.full_like(found, 1 / 128))
    assert linear.rung == REVERSE


def test_a_rung_is_verified_once_by_those_who_share_their_trust() -> None:
    model, batch = by_name("ThreeCalls").catch()
    calls = []
    model.register_forward_hook(lambda module, args, output: calls.append(1))
    network = Network.of(model)
    first = Linearization(network, batch)
    second, third = Linearization(network, batch, trusted=first.trusted), Linearization(network, batch)
    v = directions(first, torch.float64)[0]
    first.jvp(v)
    assert len(calls) == 3  # the outputs, the random direction, the product
    second.jvp(v)
    assert len(calls) == 4
    third.jvp(v)
    assert len(calls) == 7


@pytest.mark.parametrize(("kind", "rung"), [("linear", DEFAULT), ("sdpa", PLAIN)])
def test_the_rows_of_several_batches_begin_on_the_first_rung_and_go_on_where_the_last_batch_was(kind, rung) -> None:
    model, batches = make_network(kind, torch.float64), [(torch.randn(2, 5, 4).double(),) for _ in range(3)]
    rows = Rows(Network.of(model), batches, Unweighted())
    found = []
    for linear in rows.linearizations("products"):
        found.append(linear.rung)
        linear.jvp(torch.ones(linear.network.layout.numel, dtype=torch.float64))
    assert found == [DEFAULT, rung, rung] and rows.rung == rung


@pytest.mark.parametrize("name", ["Unregistered", "StraightThrough"])
def test_where_no_rung_carries_every_output_has_its_own_gradient(name: str) -> None:
    """An embedding bag, and a function of one's own without forward mode or second derivatives."""
    model, batch = by_name(name).catch()
    before = model_state(model)
    linear = linearization(model, batch)
    v = directions(linear, torch.float64)[0]
    assert relative_error(linear.jvp(v).t(), dense_jacobian(model, batch) @ v) < 1e-12
    assert linear.rung == REVERSE + 1
    assert model_state(model) == before


@pytest.mark.parametrize("enabled", [True, False])
def test_kernel_flags_come_back_also_after_exceptions(enabled: bool) -> None:
    torch.backends.mha.set_fastpath_enabled(enabled)
    torch.backends.mkldnn.enabled = enabled
    torch.backends.cuda.enable_flash_sdp(enabled)
    before = process_state()
    try:
        with pytest.raises(ZeroDivisionError), plain_kernels():
            assert not torch.backends.mkldnn.enabled
            assert not torch.backends.mha.get_fastpath_enabled()
            assert not torch.backends.cuda.flash_sdp_enabled()
            assert torch.backends.cuda.math_sdp_enabled()
            raise ZeroDivisionError
        assert process_state() == before
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
        torch.backends.mkldnn.enabled = True
        torch.backends.cuda.enable_flash_sdp(True)


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, KeyError])
def test_an_error_of_the_forward_itself_reaches_the_user_as_it_is(kind: type[Exception]) -> None:
    class Broken(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            raise kind("broken on purpose")

    model = Broken(3, 2)
    before = model_state(model)
    with pytest.raises(kind, match="broken on purpose"):
        linearization(model, torch.randn(2, 3)).jvp(torch.zeros(8))
    assert model_state(model) == {**before, "random state": model_state(model)["random state"]}


def test_products_with_a_vector_of_zeros_are_zero() -> None:
    model, batch = by_name("ThreeCalls").catch()
    linear = linearization(model, batch)
    assert not linear.jvp(torch.zeros(linear.network.layout.numel, dtype=torch.float64)).any()


def test_a_jacobian_that_is_only_rounding_is_not_taken_for_a_disagreement() -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.Tanh(), nn.LayerNorm(1, bias=False)).double()
    linear = linearization(model, torch.randn(1, 2, dtype=torch.float64))
    for v in directions(linear, torch.float64):
        assert linear.jvp(v).abs().max() < 1e-10
    assert linear.rung == DEFAULT


def test_padding_rows_of_an_embedding_get_no_derivative_in_either_direction() -> None:
    """Reverse mode drops the gradient of the padding row, forward mode would not: the product must follow the former."""
    model = nn.Sequential(nn.Embedding(4, 3, padding_idx=0), nn.Flatten(), nn.Linear(6, 2)).double()
    without, with_padding = torch.tensor([[1, 2], [3, 1]]), torch.tensor([[0, 2], [0, 0]])
    network = Network.of(model)
    v = torch.zeros(network.layout.numel, dtype=torch.float64)
    v[:3] = 1
    Linearization(network, without).jvp(v)
    assert not Linearization(network, with_padding).jvp(v).any()


def test_a_product_starts_from_the_attributes_from_which_its_proof_started() -> None:
    """A forward that divides by a range and then updates it, as observers of quantization do."""

    class Observed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)
            self.register_buffer("range", torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            y = self.fc(x)
            out = y / self.range
            self.range = 0.5 * self.range + y.detach().abs().max()
            return out

    model, x = Observed().double(), torch.randn(4, 3, dtype=torch.float64)
    truth = tl.Jacobian(model, x)
    v = tl.PVector.random_unit(model)
    implicit = tl.Jacobian(model, x, tl.PushForwardImplicit)
    for _ in range(2):
        assert torch.allclose((implicit @ v).data, (truth @ v).data, atol=1e-12)
