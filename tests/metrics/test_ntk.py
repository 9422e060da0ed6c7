"""Tangent kernels against Grams of autograd Jacobians: layouts, outputs, layers, centring."""

import pytest
import torch

import tangentlab as tl
from tangentlab.errors import InputError
from tangentlab.testing import truth
from tangentlab.testing.dense_truth import assert_close
from tangentlab.testing.small_models import ALL, CLASSES, EXAMPLES, Case, case_of, cases

every = pytest.mark.parametrize("case", cases(ALL), ids=str)
each = pytest.mark.parametrize("name", ALL)


def features(name: str) -> torch.Tensor:
    """Tangent features (outputs, examples, d)."""
    return truth.exact_jacobian(name).transpose(0, 1)


def gram(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    return torch.einsum("cnd,emd->cnem", one, two)


def other_half(case: Case) -> list[tuple[torch.Tensor]]:
    """Examples 5, 6, 0, 1, in two batches."""
    chosen = case.inputs[[5, 6, 0, 1]]
    return [(chosen[:1],), (chosen[1:],)]


@every
def test_full_kernel_is_the_gram_of_the_jacobian_in_the_order_of_the_examples(case):
    K = tl.NTK(case.model, case.batches)
    assert isinstance(K, tl.FMatDense) and K.data.shape == (CLASSES, EXAMPLES, CLASSES, EXAMPLES)
    assert K.data.dtype == case.dtype
    assert_close(K.data, gram(features(case.name), features(case.name)), case.dtype)


@every
def test_cross_kernel_has_the_first_examples_on_its_rows(case):
    K = tl.NTK(case.model, case.batches, other_half(case))
    expected = gram(features(case.name), features(case.name)[:, [5, 6, 0, 1]])
    assert K.data.shape == (CLASSES, EXAMPLES, CLASSES, 4)
    assert_close(K.data, expected, case.dtype)


@every
def test_trace_sums_over_outputs_and_divides_by_nothing(case):
    full = gram(features(case.name), features(case.name))
    K = tl.NTK(case.model, case.batches, outputs="trace")
    assert K.data.shape == (1, EXAMPLES, 1, EXAMPLES)
    assert_close(K.data[0, :, 0], torch.einsum("cncm->nm", full), case.dtype)
    cross = tl.NTK(case.model, case.batches, other_half(case), outputs="trace")
    assert_close(cross.data[0, :, 0], torch.einsum("cncm->nm", full)[:, [5, 6, 0, 1]], case.dtype)


@each
def test_a_tight_memory_budget_gives_the_same_kernels_in_more_passes(name):
    case = case_of(name, split="uneven batches")
    batches = [(part,) for part in case.inputs.split(2)]
    whole = gram(features(name), features(name))
    for memory in (4_000, 12_000):
        assert_close(tl.NTK(case.model, batches, memory=memory).data, whole)
        traced = tl.NTK(case.model, batches, outputs="trace", memory=memory)
        assert_close(traced.data[0, :, 0], torch.einsum("cncm->nm", whole))
        cross = tl.NTK(case.model, batches, other_half(case), memory=memory)
        assert_close(cross.data, whole[..., [5, 6, 0, 1]])


@each
def test_one_output_is_its_diagonal_block(name):
    case = case_of(name, split="uneven batches")
    full = gram(features(name), features(name))
    for output in (0, 2, -1):
        assert_close(tl.NTK(case.model, case.batches, outputs=output).data, full[output, :, output][None, :, None, :])


@each
def test_some_outputs_are_their_block_in_the_order_asked_for(name):
    case = case_of(name, split="uneven batches")
    some = features(name)[[2, 0]]
    assert_close(tl.NTK(case.model, case.batches, outputs=[2, 0]).data, gram(some, some))
    implicit = tl.NTK(case.model, case.batches, outputs=(2, 0), representation=tl.FMatImplicit)
    assert_close(implicit.tensor(), gram(some, some))


@pytest.mark.parametrize("outputs", ["sum", [], [True], 1.0, None, ["all"]], ids=str)
def test_anything_else_than_outputs_is_refused(outputs):
    case = case_of(ALL[0])
    with pytest.raises(InputError, match="outputs must be"):
        tl.NTK(case.model, case.batches, outputs=outputs)


def test_a_few_of_very_many_outputs_need_no_square_of_their_number():
    model = torch.nn.Linear(2, 100_000, bias=False).double()
    x = torch.randn(3, 2, dtype=torch.float64)
    K = tl.NTK(model, x, outputs=[7, 99_999])
    assert_close(K.data, torch.einsum("cd,nm->cndm", torch.eye(2, dtype=torch.float64), x @ x.t()))


@each
def test_kernel_of_a_scalar_function_is_that_of_its_gradients(name):
    case = case_of(name, split="uneven batches")
    difference = (features(name)[2] - features(name)[0])[None]
    K = tl.NTK(case.model, case.batches, function=lambda out, batch: out[:, 2] - out[:, 0])
    assert_close(K.data, gram(difference, difference))


@each
def test_kernels_of_the_layers_add_up_to_the_kernel(name):
    case = case_of(name, split="uneven batches")
    parts = tl.NTK(case.model, case.batches, per_layer=True)
    whole, slices = features(name), truth.slices_of(case.model)
    assert_close(sum(K.data for K in parts.values()), gram(whole, whole))
    for layer, K in parts.items():
        own = [torch.arange(s.start, s.stop) for key, s in slices.items() if key.rpartition(".")[0] == layer]
        columns = whole[..., torch.cat(own)]
        assert_close(K.data, gram(columns, columns))


def test_layers_can_be_selected_and_traced():
    case = case_of("mlp")
    columns = features("mlp")[..., 16:]
    assert_close(tl.NTK(case.model, case.batches, layers="2").data, gram(columns, columns))
    traced = tl.NTK(case.model, case.batches, per_layer=True, outputs="trace")
    assert list(traced) == ["0", "2"]
    assert_close(traced["2"].data[0, :, 0], torch.einsum("cnd,cmd->nm", columns, columns))


@each
def test_kernel_is_symmetric_and_positive_semidefinite(name):
    case = case_of(name, split="uneven batches")
    matrix = tl.NTK(case.model, case.batches).matrix()
    assert torch.equal(matrix, matrix.t()) or float((matrix - matrix.t()).abs().max()) < 1e-14 * float(matrix.max())
    values = torch.linalg.eigvalsh(matrix)
    assert values.min() > -1e-12 * values.max()


@each
@pytest.mark.parametrize("how", ["per_output", "global"])
def test_centring_subtracts_mean_features(name, how):
    case = case_of(name, split="uneven batches")
    axes = (1,) if how == "per_output" else (0, 1)
    centred = features(name) - features(name).mean(axes, keepdim=True)
    assert_close(tl.NTK(case.model, case.batches, center=how).data, gram(centred, centred))
    c, n = CLASSES, EXAMPLES
    size = n if how == "per_output" else c * n
    center = torch.eye(size, dtype=torch.float64) - torch.ones(size, size, dtype=torch.float64) / size
    if how == "per_output":
        center = torch.kron(torch.eye(c, dtype=torch.float64), center)
    whole = gram(features(name), features(name)).reshape(c * n, c * n)
    assert_close(tl.NTK(case.model, case.batches, center=how).matrix(), center @ whole @ center)


@pytest.mark.parametrize("how", ["per_output", "global"])
def test_centring_commutes_with_the_trace_over_outputs_per_output_only(how):
    case = case_of("mlp")
    whole = features("mlp")
    centred = whole - whole.mean(1, keepdim=True)
    traced = tl.NTK(case.model, case.batches, outputs="trace", center=how)
    assert_close(traced.data[0, :, 0], torch.einsum("cnd,cmd->nm", centred, centred))


def test_without_centring_nothing_is_subtracted():
    case = case_of("mlp")
    assert_close(tl.NTK(case.model, case.batches, center=None).data, gram(features("mlp"), features("mlp")))


def test_kernels_of_the_layers_are_centred_each():
    case = case_of("mlp")
    parts = tl.NTK(case.model, case.batches, per_layer=True, center="per_output")
    assert_close(sum(K.data for K in parts.values()), tl.NTK(case.model, case.batches, center="per_output").data)


def test_gram_matrix_is_another_name():
    assert tl.GramMatrix is tl.NTK


def test_order_of_examples_is_that_of_the_loader():
    case = case_of("mlp")
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    K = tl.NTK(case.model, [(part,) for part in case.inputs[order].split(2)])
    assert_close(K.data, gram(features("mlp")[:, order], features("mlp")[:, order]))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(case.inputs), batch_size=2, shuffle=True)
    with pytest.raises(InputError, match="shuffles"):
        tl.NTK(case.model, loader)
    with pytest.raises(InputError, match="shuffles"):
        tl.NTK(case.model, case.inputs, loader)


def test_generators_of_batches_are_consumed_once():
    case = case_of("mlp")
    K = tl.NTK(case.model, (batch for batch in case.batches), n_output=3)
    assert_close(K.data, gram(features("mlp"), features("mlp")))


def test_one_example_and_one_output():
    case = case_of("mlp")
    K = tl.NTK(case.model, case.inputs[:1], outputs=1)
    assert_close(K.data, gram(features("mlp")[1:2, :1], features("mlp")[1:2, :1]))


def test_outputs_with_several_axes_are_flattened_row_major(seed):
    model, x = torch.nn.Linear(2, 3).double(), torch.randn(4, 5, 2, dtype=torch.float64)
    flat = torch.nn.Sequential(model, torch.nn.Flatten())
    jacobian = truth.jacobian(flat, x).transpose(0, 1)
    assert_close(tl.NTK(model, x).data, gram(jacobian, jacobian))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outputs": "mean"}, "outputs must be"),
        ({"outputs": True}, "outputs must be"),
        ({"outputs": 3}, "has 3 per example"),
        ({"outputs": -4}, "has 3 per example"),
        ({"center": "examples"}, "center must be"),
        ({"representation": tl.PMatDense}, "representation must be"),
        ({"n_output": 5, "outputs": 1}, "n_output=5"),
        ({"n_output": 5, "outputs": "trace"}, "n_output=5"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    case = case_of("mlp")
    with pytest.raises(InputError, match=message):
        tl.NTK(case.model, case.batches, **options)


def test_an_empty_loader_is_refused():
    case = case_of("mlp")
    with pytest.raises(InputError, match="empty"):
        tl.NTK(case.model, [])
    with pytest.raises(InputError, match="empty"):
        tl.NTK(case.model, case.inputs, [])


@pytest.mark.parametrize("factory", [tl.NTK, tl.Jacobian])
def test_batches_with_another_number_of_outputs_are_refused(factory, seed):
    """Sequences of another length have other outputs: a Fisher matrix adds them up, a kernel has no place for them."""
    model = torch.nn.Linear(2, 3).double()
    batches = [(torch.randn(4, 5, 2, dtype=torch.float64),), (torch.randn(4, 6, 2, dtype=torch.float64),)]
    total = sum(4 * tl.FIM(model, batch).to_dense() for batch in batches) / 8
    assert_close(tl.FIM(model, batches).to_dense(), total)
    with pytest.raises(InputError, match="number of outputs"):
        factory(model, batches)
