"""KA and CKA against their definitions, their invariances, unbiasedness, and the value of degenerate input."""

from itertools import combinations

import pytest
import torch
from torch import nn

from tangentlab import NTK, label_kernel
from tangentlab.alignment import (
    MinibatchCKA,
    cka,
    hierarchical_alignment,
    ka,
    kernel_distance,
    kernel_velocity,
    label_alignment,
    label_features,
    layer_alignment,
    representation_alignment,
    unbiased_cka,
    unbiased_hsic,
)
from tangentlab.errors import InputError, NumericsError
from tangentlab.objects.fmat import FMatDense

CENTRINGS = (None, "global", "per_output")


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def kernel_of(features):
    """(c, n, p) features to their kernel."""
    return FMatDense(torch.einsum("cnp,dmp->cndm", features, features))


def centring_matrix(outputs, examples, center):
    whole = torch.eye(outputs * examples, dtype=torch.float64)
    if center is None:
        return whole
    if center == "global":
        return whole - 1 / (outputs * examples)
    one = torch.eye(examples, dtype=torch.float64) - 1 / examples
    return torch.kron(torch.eye(outputs, dtype=torch.float64), one)


@pytest.mark.parametrize("center", CENTRINGS)
def test_alignment_does_not_depend_on_how_the_kernel_lies_in_memory_and_leaves_it_alone(center):
    kernel, labels = kernel_of(normal(3, 6, 30, seed=1) + 1), torch.tensor([0, 1, 2, 2, 1, 1])
    by_example = FMatDense(kernel.data.permute(1, 0, 3, 2).contiguous().permute(1, 0, 3, 2))
    target = label_kernel(labels, 3, torch.float64)
    for one in (kernel, by_example):
        before = one.data.clone()
        expected = pytest.approx(cka(one, target, center), abs=1e-14)
        assert label_alignment(one, labels, center) == expected
        assert torch.equal(one.data, before)


@pytest.mark.parametrize("center", CENTRINGS)
def test_cka_is_the_cosine_of_centred_matrices(center):
    first, second = kernel_of(normal(3, 6, 30, seed=1) + 1), kernel_of(normal(3, 6, 4, seed=2) - 0.5)
    c = centring_matrix(3, 6, center)
    one, two = c @ first.matrix() @ c, c @ second.matrix() @ c
    expected = (one @ two).trace() / one.norm() / two.norm()
    assert cka(first, second, center) == pytest.approx(float(expected), abs=1e-14)
    if center is None:
        assert ka(first, second) == cka(first, second, None)


@pytest.mark.parametrize("center", CENTRINGS)
def test_cka_is_symmetric_scale_invariant_one_with_itself_and_between_zero_and_one(center):
    first, second = kernel_of(normal(2, 7, 20, seed=1)), kernel_of(normal(2, 7, 3, seed=2))
    value = cka(first, second, center)
    assert 0 <= value < 1
    assert cka(second, first, center) == pytest.approx(value, rel=1e-14)
    assert cka(first * 1e-9, second * 1e12, center) == pytest.approx(value, rel=1e-12)
    assert cka(first, first, center) == pytest.approx(1, abs=1e-15)
    assert cka(first.data * 1e-180, second.data * 1e180, center) == pytest.approx(value, rel=1e-12)


def test_a_constant_added_to_the_kernel_changes_nothing_once_it_is_centred():
    first, second = normal(8, 20, seed=1), normal(8, 3, seed=2)
    first, second = first @ first.t(), second @ second.t()
    assert cka(first + 5, second) == pytest.approx(cka(first, second), rel=1e-12)
    assert abs(ka(first + 5, second) - ka(first, second)) > 1e-3


def test_for_one_output_both_centrings_are_the_same():
    first, second = kernel_of(normal(1, 9, 5, seed=1)), kernel_of(normal(1, 9, 5, seed=2))
    assert cka(first, second, "global") == pytest.approx(cka(first, second, "per_output"), rel=1e-14)


@pytest.mark.parametrize("center", CENTRINGS)
@pytest.mark.parametrize("outputs", [1, 2, 4])
def test_label_alignment_is_the_cka_with_the_label_kernel(outputs, center):
    kernel = kernel_of(normal(outputs, 9, 12, seed=outputs) + 0.3)
    labels = torch.arange(9) % 4 if outputs == 4 else torch.arange(9) % 2
    if outputs == 1:
        signs = (2 * labels - 1).double()
        expected = cka(kernel, signs[:, None] * signs[None], center)
    else:
        expected = cka(kernel, label_kernel(labels, outputs, torch.float64), center)
    assert label_alignment(kernel, labels, center) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("center", CENTRINGS)
def test_a_summed_kernel_is_aligned_with_the_kernel_of_common_classes(center):
    kernel, labels = kernel_of(normal(1, 9, 12)), torch.arange(9) % 3
    same = (labels[:, None] == labels[None]).double()
    assert label_alignment(kernel, labels, center) == pytest.approx(cka(kernel, same, center), abs=1e-14)
    two = labels.clamp_max(1)
    same = (two[:, None] == two[None]).double()
    assert label_alignment(kernel, two, center, n_classes=3) == pytest.approx(cka(kernel, same, center), abs=1e-14)


def test_the_label_kernel_is_perfectly_aligned_with_the_labels():
    labels = torch.tensor([0, 1, 2, 2, 1, 0, 0])
    for center in CENTRINGS:
        assert label_alignment(label_kernel(labels, 3, torch.float64), labels, center) == pytest.approx(1, abs=1e-15)
        real = normal(7, 3)
        kernel = FMatDense(torch.einsum("nc,md->cndm", real, real))
        assert label_alignment(kernel, real, center) == pytest.approx(1, abs=1e-14)


def test_norms_of_centred_one_hot_labels_are_the_closed_forms():
    labels = torch.tensor([0, 0, 0, 1, 2, 2])
    kernel = label_kernel(labels, 3, torch.float64)
    assert float(kernel.center("global").norm()) == pytest.approx(6 * (1 - 1 / 3), rel=1e-14)
    assert float(kernel.center("per_output").norm()) == pytest.approx(6 - (9 + 1 + 4) / 6, rel=1e-14)


def test_once_the_kernel_is_centred_per_output_only_the_norm_of_the_labels_depends_on_the_convention():
    kernel = kernel_of(normal(3, 6, 30, seed=1) + 1).center("per_output")
    labels = torch.tensor([0, 0, 0, 1, 2, 2])
    ratio = (6 * (1 - 1 / 3)) / (6 - (9 + 1 + 4) / 6)
    both = [label_alignment(kernel, labels, center) for center in ("per_output", "global")]
    assert both[0] / both[1] == pytest.approx(ratio, rel=1e-12)


DEGENERATE = {
    "zero kernel": (torch.zeros(2, 5, 2, 5), torch.arange(5) % 2),
    "constant kernel": (torch.full((2, 5, 2, 5), 3.3), torch.arange(5) % 2),
    "one class": (kernel_of(normal(2, 5, 9)).data, torch.zeros(5, dtype=torch.long)),
    "one example": (kernel_of(normal(2, 1, 9)).data, torch.zeros(1, dtype=torch.long)),
}


@pytest.mark.parametrize("center", CENTRINGS)
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_input_has_a_value_between_zero_and_one(name, center):
    kernel, labels = DEGENERATE[name]
    value = label_alignment(kernel, labels, center)
    assert 0 <= value <= 1
    if center == "per_output" or name == "zero kernel":
        assert value == 0
    assert 0 <= cka(kernel, kernel, center) <= 1


def test_a_kernel_that_is_constant_up_to_float32_rounding_is_aligned_with_nothing():
    noise = 1 + 1e-7 * torch.randn(20, 20, generator=torch.Generator().manual_seed(0))
    kernel = (noise + noise.t()) / 2
    assert label_alignment(kernel, torch.arange(20) % 2) == 0
    assert unbiased_cka(torch.ones(8, 8) * 0.1, torch.ones(8, 8)) == 0


def test_wrong_input_is_refused_by_name():
    kernel = kernel_of(normal(3, 6, 5))
    with pytest.raises(InputError, match="trace_over_outputs"):
        cka(kernel, torch.eye(6))
    with pytest.raises(InputError, match="center must be"):
        cka(kernel, kernel, "row")
    with pytest.raises(InputError, match="center must be"):
        label_alignment(kernel, torch.zeros(6, dtype=torch.long), "row")
    with pytest.raises(InputError, match="6 examples and there are 5"):
        label_alignment(kernel, torch.zeros(5, dtype=torch.long))
    with pytest.raises(InputError, match=r"0\.\.2"):
        label_alignment(kernel, torch.full((6,), 3))
    with pytest.raises(NumericsError, match="non-finite"):
        ka(kernel.data * float("nan"), kernel)
    with pytest.raises(InputError, match="do not fit"):
        label_features(normal(6, 2), 3)
    with pytest.raises(InputError, match="square"):
        cka(normal(2, 3, 2, 4), normal(2, 3, 2, 4))


def test_layer_alignment_is_the_alignment_of_every_layers_kernel(seed):
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    inputs, labels = normal(10, 5), torch.arange(10) % 3
    kernels = NTK(model, inputs, per_layer=True)
    found = layer_alignment(kernels, labels, "per_output")
    assert set(found) == {"0", "2"}
    for name, value in found.items():
        alone = NTK(model, inputs, layers=model[int(name)])
        assert value == pytest.approx(label_alignment(alone, labels, "per_output"), rel=1e-10)


def test_hierarchy_is_the_ratio_on_groups_of_one_size():
    easy, difficult = kernel_of(normal(2, 6, 9, seed=1)), kernel_of(normal(2, 6, 9, seed=2))
    labels = torch.arange(6) % 2
    found = hierarchical_alignment((easy, labels), (difficult, labels), "per_output")
    assert found.easy == label_alignment(easy, labels, "per_output")
    assert found.ratio == found.easy / label_alignment(difficult, labels, "per_output")
    flat = FMatDense(torch.ones(2, 6, 2, 6))
    assert hierarchical_alignment((easy, labels), (flat, labels)).ratio == float("inf")
    assert hierarchical_alignment((flat, labels), (flat, labels)).ratio == 1
    with pytest.raises(InputError, match="one size"):
        hierarchical_alignment((easy, labels), (difficult, labels[:5]))


def test_distance_between_moments_is_zero_for_a_rescaled_kernel_and_velocity_divides_by_the_steps():
    first, second = kernel_of(normal(2, 6, 9, seed=1)), kernel_of(normal(2, 6, 9, seed=2))
    assert kernel_distance(first, first * 7) == pytest.approx(0, abs=1e-15)
    assert kernel_distance(first, second) == pytest.approx(1 - ka(first, second), rel=1e-14)
    speed = kernel_velocity([first, second, second], [0, 4, 9])
    assert speed == pytest.approx([kernel_distance(first, second) / 4, 0], abs=1e-15)
    with pytest.raises(InputError, match="increase"):
        kernel_velocity([first, second], [3, 3])


@pytest.mark.parametrize("center", CENTRINGS)
def test_two_kernels_of_zero_are_at_distance_zero_and_one_is_at_distance_one(center):
    some, zero = kernel_of(normal(2, 6, 9)), FMatDense(torch.zeros(2, 6, 2, 6))
    assert kernel_distance(zero, zero, center) == 0
    assert kernel_distance(some, zero, center) == kernel_distance(zero, some, center) == 1
    assert kernel_velocity([zero, zero], [0, 3], center) == [0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("outputs", [1, 2])
def test_targets_that_are_not_finite_are_refused(value, outputs):
    targets = normal(6, outputs)
    targets[2, 0] = value
    with pytest.raises(NumericsError, match="targets"):
        label_features(targets, outputs)
    with pytest.raises(NumericsError, match="targets"):
        label_alignment(kernel_of(normal(outputs, 6, 9)), targets)


def test_the_kernel_of_the_last_layer_is_that_of_its_inputs(seed):
    """Of a last layer without bias, every output has the same features: the representation itself."""
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3, bias=False)).double()
    inputs = normal(10, 5)
    kernel = NTK(model, inputs, layers=model[2])
    representation = model[:2](inputs)
    for center in CENTRINGS:
        assert representation_alignment(kernel, representation, center) == pytest.approx(1, abs=1e-14)
    with pytest.raises(InputError, match="10 examples and the representation 4"):
        representation_alignment(kernel, representation[:4])


def slow_hsic(first, second):
    """The U-statistic by its definition: the mean of 1/4 <K', L'> of double differences over ordered distinct 4-tuples."""
    n = first.shape[1]
    total, count = 0.0, 0
    for chosen in combinations(range(n), 4):
        k, l = first[:, chosen][..., chosen], second[:, chosen][..., chosen]
        # all pairings of four examples in two ordered pairs (i, j), (p, q)
        for i, j, p, q in ((0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 1, 2)):
            dk, dl = ((m[:, i] - m[:, j])[..., p] - (m[:, i] - m[:, j])[..., q] for m in (k, l))
            back = [(m[:, p] - m[:, q])[..., i] - (m[:, p] - m[:, q])[..., j] for m in (k, l)]
            total += float((dk * dl).sum() + (back[0] * back[1]).sum()) / 2
            count += 1
    return total / count / 4


@pytest.mark.parametrize("outputs", [1, 3])
def test_unbiased_hsic_is_the_u_statistic_over_distinct_examples(outputs):
    first, second = kernel_of(normal(outputs, 7, 5, seed=1) + 1), kernel_of(normal(outputs, 7, 3, seed=2))
    assert unbiased_hsic(first, second) == pytest.approx(slow_hsic(first.data, second.data), rel=1e-10)


@pytest.mark.parametrize("outputs", [1, 2])
def test_minibatch_cka_over_all_minibatches_is_the_cka_of_all_data_which_a_mean_of_ckas_is_not(outputs):
    first = kernel_of(normal(outputs, 8, 5, seed=1) + 1).data
    second = kernel_of(normal(outputs, 8, 3, seed=2)).data + 0.5 * first
    batches, values = MinibatchCKA(), []
    for chosen in combinations(range(8), 5):
        one, two = first[:, chosen][..., chosen], second[:, chosen][..., chosen]
        batches.update(one, two)
        values.append(cka(one, two, "per_output"))
    whole = unbiased_cka(first, second)
    assert batches.value() == pytest.approx(whole, rel=1e-12)
    assert abs(sum(values) / len(values) - whole) > 0.02
    assert batches.examples == 56 * 5


def test_unbiased_cka_of_independent_wide_features_is_zero_in_the_mean_where_cka_is_far_from_it():
    """64 draws; the mean of an unbiased numerator lies within 4.5 standard errors of 0."""
    values, biased = [], []
    for seed in range(64):
        first, second = (normal(1, 12, 200, seed=2 * seed + i) for i in (0, 1))
        values.append(unbiased_hsic(kernel_of(first), kernel_of(second)))
        biased.append(cka(kernel_of(first), kernel_of(second)))
    values = torch.tensor(values)
    assert abs(values.mean()) < 4.5 * values.std() / 8
    assert min(biased) > 0.7


def test_unbiased_hsic_of_dependent_outputs_has_the_mean_of_its_population_value():
    """y = W x with x normal: C_o = cov(phi_o, psi_o); 2000 draws of 6 examples, 4.5 standard errors."""
    mix = normal(2, 3, 3, seed=5)  # phi_o = mix_o x, psi_o = x for every output
    population = float(mix.sum(0).square().sum())
    found = []
    for seed in range(2000):
        x = normal(6, 3, seed=seed)
        found.append(unbiased_hsic(kernel_of(torch.einsum("oab,nb->ona", mix, x) + 1), kernel_of(x.expand(2, 6, 3))))
    found = torch.tensor(found)
    assert abs(found.mean() - population) < 4.5 * found.std() / 2000**0.5


def test_unbiased_estimates_need_four_examples_and_minibatches_need_one_update():
    with pytest.raises(InputError, match="n >= 4"):
        unbiased_hsic(torch.eye(3), torch.eye(3))
    with pytest.raises(InputError, match="No minibatch"):
        MinibatchCKA().value()


def test_labels_of_three_values_are_not_two_classes():
    with pytest.raises(InputError, match="both -1 and 0"):
        label_alignment(torch.eye(6), torch.tensor([-1, 0, 1, -1, 0, 1]))


@pytest.mark.parametrize("scale", [1e160, 1e-160])
def test_the_unbiased_alignment_does_not_depend_on_the_unit(scale):
    one, two = (f @ f.t() for f in (normal(9, 4), normal(9, 4, seed=1)))
    assert unbiased_cka(scale * one, two) == pytest.approx(unbiased_cka(one, two), rel=1e-12)
    batches = MinibatchCKA()
    for kernel in (one, 3 * one):
        batches.update(scale * kernel, kernel)
    assert batches.value() == pytest.approx(1)


@pytest.mark.parametrize("wrong", [torch.eye(4).long(), torch.eye(4).numpy(), torch.ones(1, 4, 1, 4).int()])
def test_what_is_no_real_kernel_is_refused_with_the_way_out(wrong):
    with pytest.raises(InputError, match=r"double|as_tensor"):
        cka(wrong, torch.eye(4))
