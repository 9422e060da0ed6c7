"""One call for every estimator: known values, splits, conditions, and data that ought to be refused or warned about."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader, TensorDataset

from tangentlab.errors import InputError, NumericsError, SolveError
from tangentlab.information import (
    Bilinear,
    Concatenated,
    DonskerVaradhan,
    FitRecipe,
    Margin,
    Separable,
    canonical_correlations,
    ksg_terms,
    mutual_information,
)
from tangentlab.information.samples import SampleSplit, read_sample
from tangentlab.information.tasks import DiscreteTable, Gaussian

QUICK = FitRecipe(steps=200, batch=128, rate=5e-3, looks=10)
small = partial(Separable, hidden=(32,), embedding=8)


def pairs(value: float, features: int = 1, n: int = 2000, seed: int = 0) -> tuple[Tensor, Tensor]:
    return Gaussian.of_value(features, value).sample(n, Generator().manual_seed(seed), torch.float64)


@pytest.mark.parametrize("name", ["mine", "dv", "nwj", "infonce", "smile", "js", "fdime"])
def test_every_objective_comes_near_the_truth_in_one_dimension(name: str) -> None:
    x, z = pairs(0.5)
    found = mutual_information(x, z, name, critic=lambda: small(1, 1), recipe=QUICK, permutations=99)
    assert abs(found.value - 0.5) < 0.12
    assert found.interval[0] <= 0.5 <= found.interval[1]
    assert found.p_value == 0.01
    assert found.pointwise.shape == found.influence.shape == (800,)
    assert math.isclose(found.pointwise.mean().item(), found.value, abs_tol=1e-6)
    assert len(found.curve.validation) == len(found.curve.steps)


@pytest.mark.parametrize("name", ["ksg", "ksg2", "gaussian", "cca"])
def test_estimators_without_a_critic_come_near_the_truth(name: str) -> None:
    x, z = pairs(0.5, 2)
    found = mutual_information(x, z, name, permutations=19)
    assert abs(found.value - 0.5) < 0.1
    assert found.interval[0] <= 0.5 <= found.interval[1]
    assert found.p_value == 0.05


def test_the_information_of_counts_is_that_of_the_table() -> None:
    task = DiscreteTable.random(3, 4, Generator().manual_seed(0), one_hot=False)
    x, z = task.sample(20_000, Generator().manual_seed(1))
    found = mutual_information(x, z, "discrete")
    assert abs(found.value - task.value) < 0.01
    counts = torch.zeros(3, 4).index_put_((x[:, 0].long(), z[:, 0].long()), torch.ones(20_000), accumulate=True)
    plain = DiscreteTable(counts).value
    assert math.isclose(found.value, plain - (3 * 4 - 3 - 4 + 1) / 40_000, abs_tol=1e-9)


def test_canonical_correlations_give_the_gaussian_value() -> None:
    x, z = pairs(1.0, 3)
    r = canonical_correlations(x, z)
    found = mutual_information(x, z, "gaussian", halves=False)
    assert math.isclose(found.value, -0.5 * (1 - r**2).log().sum().item() - 9 / 4000, abs_tol=1e-10)


@pytest.mark.parametrize("variant", [1, 2])
@pytest.mark.parametrize("features", [1, 2])
def test_ksg_is_its_definition_by_loops(variant: int, features: int) -> None:
    from scipy.special import psi

    x, z = pairs(0.7, features, n=60)
    n, k = 60, 3
    near_x, near_z = (torch.cdist(part, part, p=math.inf).numpy() for part in (x, z))
    joint = np.maximum(near_x, near_z)
    terms = []
    for i in range(n):
        order = np.argsort(joint[i])[1 : k + 1]
        if variant == 1:
            counts = [np.sum(np.delete(side[i], i) < joint[i, order[-1]]) for side in (near_x, near_z)]
            terms.append(psi(k) + psi(n) - sum(psi(count + 1) for count in counts))
        else:
            counts = [np.sum(np.delete(side[i], i) <= side[i, order].max()) for side in (near_x, near_z)]
            terms.append(psi(k) - 1 / k + psi(n) - sum(psi(count) for count in counts))
    np.testing.assert_allclose(ksg_terms(x, z, k, variant), terms, atol=1e-12)


def test_ksg_agrees_with_scikit_learn() -> None:
    from sklearn.feature_selection import mutual_info_regression

    x, z = pairs(0.7, 1, n=500)
    x, z = x / x.std(correction=0), z / z.std(correction=0)
    peer = mutual_info_regression(x.numpy(), z[:, 0].numpy(), n_neighbors=3, random_state=0)[0]
    assert abs(float(ksg_terms(x, z).mean()) - peer) < 1e-3


def test_a_loader_and_a_sampler_are_read_as_tensors_are() -> None:
    x, z = pairs(0.5, n=400)
    loader = DataLoader(TensorDataset(x, z), batch_size=64)
    assert mutual_information(loader, estimator="ksg").value == mutual_information(x, z, "ksg").value
    assert mutual_information(x.numpy(), z[:, 0].numpy(), "ksg").value == mutual_information(x, z, "ksg").value
    task = Gaussian.of_value(1, 0.5)
    found = mutual_information(task.sample, critic=lambda: small(1, 1), recipe=QUICK, samples=2000)
    assert abs(found.value - 0.5) < 0.12
    assert math.isnan(found.diagnostics.train_minus_test)


def test_a_condition_that_explains_everything_leaves_nothing() -> None:
    """x = c + noise, z = c + noise: dependent, and independent given c; the conditional value is exact for Gaussians."""
    c, one, two = torch.randn(3, 4000, generator=Generator().manual_seed(0), dtype=torch.float64)
    x, z = c + one, c + two
    assert mutual_information(x, z, "gaussian").value > 0.1
    found = mutual_information(x, z, "gaussian", condition=c)
    assert abs(found.value) < 0.002 and found.interval[0] == 0.0
    assert mutual_information(x, z, "ksg", condition=c).value < 0.05
    assert math.isnan(found.p_value)


def test_critics_of_any_kind_and_objectives_of_ones_own_are_taken() -> None:
    x, z = pairs(0.3, 2, n=600)
    for make in (lambda: Concatenated(2, 2, (32,)), lambda: Bilinear(2, 2)):
        found = mutual_information(x, z, DonskerVaradhan(), critic=make, recipe=QUICK, halves=False, permutations=9)
        assert -0.2 < found.value < 0.6 and found.interval[1] == math.inf
        assert found.estimator == "DonskerVaradhan"


def test_the_same_seed_gives_the_same_number_and_leaves_the_random_state_alone() -> None:
    x, z = pairs(0.3, n=400)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    call = partial(mutual_information, x, z, critic=lambda: small(1, 1), recipe=FitRecipe(steps=20, looks=2))
    first = call(seed=3).value
    torch.testing.assert_close(torch.rand(3), expected)
    assert first == call(seed=3).value != call(seed=4).value


def test_test_examples_take_no_part_in_the_fit() -> None:
    """Whatever z is on the test part, the critic is the same."""
    x, z = pairs(0.5, n=400)
    order = torch.randperm(400, generator=Generator().manual_seed(0))
    spoiled = z.clone()
    spoiled[order[240:]] = 77.0
    critics = [
        mutual_information(
            x, values, critic=lambda: small(1, 1), recipe=FitRecipe(steps=20, looks=2), halves=False
        ).critic
        for values in (z, spoiled)
    ]
    for one, two in zip(critics[0].parameters(), critics[1].parameters(), strict=True):
        assert torch.equal(one, two)


def test_parts_of_a_split_do_not_overlap_and_halves_are_halves() -> None:
    x = torch.arange(100.0)
    split = SampleSplit.of(read_sample(x, x), (0.5, 0.1, 0.4), "none", 0)
    parts = [split.train.x, split.validation.x, split.test.x]
    assert [len(part) for part in parts] == [50, 10, 40]
    assert sorted(torch.cat(parts)[:, 0].tolist()) == x.tolist()
    assert torch.equal(torch.cat([split.half(0).train.x, split.half(1).train.x]), split.train.x)


@pytest.mark.parametrize("kind", ["normal", "standard"])
def test_margins_are_increasing_beyond_the_sample_too(kind: str) -> None:
    sample = torch.randn(500, 2, generator=Generator().manual_seed(0), dtype=torch.float64) ** 3
    line = torch.linspace(-1000, 1000, 4001, dtype=torch.float64)[:, None].expand(-1, 2)
    assert (Margin.of(sample, kind)(line).diff(dim=0) > 0).all()


def test_normal_margins_are_normal_and_ties_share_a_score() -> None:
    sample = torch.rand(5000, 1, generator=Generator().manual_seed(0), dtype=torch.float64).exp()
    mapped = Margin.of(sample)(sample)
    assert abs(mapped.mean()) < 0.01 and abs(mapped.std() - 1) < 0.02
    coins = (torch.arange(100) % 2).double()[:, None]
    levels = Margin.of(coins)(coins).unique()
    assert len(levels) == 2 and math.isclose(levels[0].item(), -levels[1].item(), abs_tol=1e-9)


# Hostile input: a warning, an error or the right value.


def estimated(x: Tensor, z: Tensor, name: str):  # type: ignore[no-untyped-def]
    make = partial(small, x.flatten(1).shape[1] if x.ndim > 1 else 1, z.flatten(1).shape[1] if z.ndim > 1 else 1)
    return mutual_information(x, z, name, critic=make, recipe=QUICK, permutations=9)


@pytest.mark.parametrize("name", ["mine", "nwj", "infonce", "smile", "fdime", "ksg", "gaussian"])
def test_a_constant_has_no_information_and_is_named(name: str) -> None:
    found = estimated(torch.ones(400), pairs(0, n=400)[1], name)
    assert abs(found.value) < 0.02
    assert found.interval[0] == 0.0
    assert any("x is constant" in warning for warning in found.warnings)


@pytest.mark.parametrize("name", ["mine", "ksg", "discrete"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_values_that_are_not_finite_are_refused(name: str, bad: float) -> None:
    x, z = pairs(0.5, n=400)
    x[7] = bad
    with pytest.raises(NumericsError, match="1 of 400"):
        estimated(x, z, name)


@pytest.mark.parametrize("name", ["mine", "ksg"])
def test_copies_are_named(name: str) -> None:
    x, z = pairs(0.5, n=400)
    found = estimated(x.repeat(2, 1), z.repeat(2, 1), name)
    assert any("are distinct" in warning for warning in found.warnings)


@pytest.mark.parametrize("name", ["mine", "smile", "ksg"])
def test_heavy_tails_change_nothing(name: str) -> None:
    x, z = pairs(0.5)
    found = estimated(x**9, z**9, name)
    assert abs(found.value - 0.5) < 0.15


@pytest.mark.parametrize("name", ["mine", "infonce", "smile", "nwj", "fdime", "ksg"])
def test_information_above_log_n_is_warned_about(name: str) -> None:
    x = torch.randn(400, 5, generator=Generator().manual_seed(0))
    found = estimated(x, x, name)
    assert found.warnings


@pytest.mark.parametrize("name", ["mine", "infonce", "fdime"])
def test_five_examples_are_too_few_for_a_critic(name: str) -> None:
    with pytest.raises(InputError, match="at least 40"):
        estimated(torch.randn(5), torch.randn(5), name)


def test_five_examples_are_few_for_neighbours() -> None:
    assert any("5 examples" in warning for warning in estimated(torch.randn(5), torch.randn(5), "ksg").warnings)
    with pytest.raises(InputError, match="k < n"):
        mutual_information(torch.randn(3), torch.randn(3), "ksg")


def test_wrong_calls_say_what_is_right() -> None:
    x, z = pairs(0.5, n=100)
    with pytest.raises(InputError, match="Did you mean 'mine'"):
        mutual_information(x, z, "mime")
    with pytest.raises(InputError, match="as many x as z"):
        mutual_information(x, z[:50])
    with pytest.raises(InputError, match="shares"):
        mutual_information(x, z, split=(0.5, 0.5, 0.5))
    with pytest.raises(InputError, match="level"):
        mutual_information(x, z, level=95)
    with pytest.raises(SolveError, match="singular"):
        mutual_information(torch.cat([x, x], 1), z, "gaussian")
