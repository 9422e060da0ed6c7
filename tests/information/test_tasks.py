"""Tasks with known information: values against quadrature, published values and Monte Carlo, and pointwise values."""

import math
from itertools import pairwise

import pytest
import torch
from scipy import integrate, stats
from torch import Generator, Tensor

from tangentlab.errors import InputError
from tangentlab.information.tasks import (
    AdditiveGaussian,
    AdditiveUniform,
    Asinh,
    DiscreteTable,
    Gaussian,
    Invertible,
    Joined,
    LinearMap,
    MixtureMargins,
    Power,
    Repeated,
    Spiral,
    Student,
    SwissRoll,
    Task,
    TopRows,
    Transformed,
    UniformMargins,
    Wiggly,
    benchmark_tasks,
    consistency_tests,
    equitability_tasks,
    staircase,
)

# What benchmark-mi 0.1.3 states for its tasks, in nats.
NORMAL, SPARSE = 0.41333928659223396, 1.0216512475319819
PUBLISHED = {
    "1v1-additive-0.1": 1.7094379663467407,
    "1v1-additive-0.75": 0.3333333333333333,
    "student-identity-1-1-1": 0.22417142752923613,
    "multinormal-dense-2-2-0.5": 0.2938933324510593,
    "multinormal-dense-3-3-0.5": 0.41333928659223407,
    "multinormal-dense-5-5-0.5": 0.5928118328288701,
    "multinormal-dense-25-25-0.5": 1.2921837216593275,
    "multinormal-dense-50-50-0.5": 1.6242653743036897,
    "student-identity-2-2-1": 0.43194562200144127,
    "student-identity-2-2-2": 0.1931471805599454,
    "student-identity-3-3-2": 0.29092192268276484,
    "student-identity-3-3-3": 0.17871185309236282,
    "student-identity-5-5-2": 0.44815067691532917,
    "student-identity-5-5-3": 0.29854362265275824,
}
TASKS = benchmark_tasks()
IMAGES = (torch.rand(60, 4, 3, generator=Generator().manual_seed(5)) > 0.5).float()
OTHERS: dict[str, Task] = {
    "dense Student": Student.dense(2, 3, degrees=4),
    "sparse Student": Student.sparse(3, 2, degrees=2),
    "negative correlation": Gaussian.correlated(2, -0.6),
    "x^3 + noise": AdditiveGaussian(lambda x: x**3, 0.3, 2, "x^3"),
    "sin x + noise": AdditiveGaussian(torch.sin, 0.1, 1, "sin x"),
    "table": DiscreteTable.random(4, 3, Generator().manual_seed(1)),
    "numbered table": DiscreteTable.random(3, 5, Generator().manual_seed(2), one_hot=False),
    "rotated": Transformed(Gaussian.sparse(4, 3), LinearMap.rotation(4, Generator().manual_seed(3))),
    "joined": Joined([Gaussian.correlated(1, 0.5), AdditiveUniform(0.3), Student.identity(2, 1, 3)]),
    "repeated": Repeated(Gaussian.correlated(2, 0.7), lambda z: z[:, :1] ** 2, features=1),
    "rows": TopRows(IMAGES, 2),
}


def published(name: str) -> float:
    for known, value in PUBLISHED.items():
        if name.endswith(known):
            return value
    return SPARSE if "sparse" in name else NORMAL


def test_all_forty_tasks_are_there_with_the_published_values() -> None:
    assert len(TASKS) == 40
    for name, task in TASKS.items():
        assert task.value == pytest.approx(published(name), abs=2e-7), name


@pytest.mark.parametrize("name", [*TASKS, *OTHERS])
def test_the_mean_of_the_pointwise_values_is_the_information(name: str) -> None:
    task = TASKS.get(name) or OTHERS[name]
    x, z = task.sample(20_000, Generator().manual_seed(0), torch.float64)
    assert x.shape == (20_000, task.x_features) and z.shape == (20_000, task.z_features)
    values = task.log_ratio(x, z)
    error = float(values.std()) / math.sqrt(len(values))
    assert bool(values.isfinite().all())
    assert abs(float(values.mean()) - task.value) < 4.5 * error + 1e-9


@pytest.mark.parametrize("name", [*TASKS, *OTHERS])
def test_the_ratio_has_mean_one_over_pairs_that_do_not_belong_together(name: str) -> None:
    task = TASKS.get(name) or OTHERS[name]
    x, z = task.sample(40_000, Generator().manual_seed(1), torch.float64)
    ratios = task.log_ratio(x[:20_000], z[20_000:]).exp()
    error = float(ratios.std()) / math.sqrt(len(ratios))
    assert abs(float(ratios.mean()) - 1) < 6 * error + 1e-9


def test_the_information_of_a_gaussian_is_that_of_quadrature() -> None:
    task = Gaussian.dense(1, 1, 0.6)
    nodes = torch.linspace(-9, 9, 1201, dtype=torch.float64)
    cell = float(nodes[1] - nodes[0])
    joint = stats.multivariate_normal(cov=task.covariance.numpy()).pdf(torch.cartesian_prod(nodes, nodes).numpy())
    cells = torch.from_numpy(joint).reshape(1201, 1201) * cell**2
    ratios = (cells / (cells.sum(1, keepdim=True) * cells.sum(0))).log()
    assert float((cells * ratios)[cells > 0].sum()) == pytest.approx(task.value, abs=1e-6)


def test_the_information_of_a_student_is_that_of_quadrature_after_asinh() -> None:
    task = Student.dense(1, 1, 0.4, degrees=3)
    joint = stats.multivariate_t(shape=task.covariance.numpy(), df=3)
    margin = stats.t(df=3)

    def integrand(u: float, v: float) -> float:
        x, z = math.sinh(u), math.sinh(v)
        density = joint.pdf([x, z])
        return density * math.log(density / (margin.pdf(x) * margin.pdf(z))) * math.cosh(u) * math.cosh(v)

    nodes = torch.linspace(-7, 7, 141, dtype=torch.float64).tolist()
    rows = [[integrand(u, v) for v in nodes] for u in nodes]
    assert integrate.simpson(integrate.simpson(rows, x=nodes), x=nodes) == pytest.approx(task.value, abs=2e-4)


@pytest.mark.parametrize("width", [0.05, 0.3, 0.5, 0.9])
def test_the_information_of_uniform_noise_is_that_of_quadrature(width: float) -> None:
    def density(z: float) -> float:
        return (min(z + width, 1) - max(z - width, 0)) / (2 * width)

    def integrand(z: float) -> float:
        return -density(z) * math.log(density(z)) if density(z) > 0 else 0.0

    corners = sorted({-width, min(width, 1 - width), max(width, 1 - width), 1 + width})
    entropy = sum(integrate.quad(integrand, a, b)[0] for a, b in pairwise(corners))
    assert AdditiveUniform(width).value == pytest.approx(entropy - math.log(2 * width), abs=1e-8)


def test_the_additive_noise_table_has_its_known_values() -> None:
    known = {
        "x": (3.334, 2.129, 1.498, 0.837, 0.517, 0.344),
        "x^3": (2.499, 1.464, 0.939, 0.451, 0.256, 0.162),
        "sin x": (3.071, 1.930, 1.341, 0.729, 0.441, 0.290),
    }
    for name, tasks in equitability_tasks().items():
        assert [task.value for task in tasks] == pytest.approx(known[name], abs=6e-4)


def test_linear_gaussian_noise_agrees_with_the_error_function() -> None:
    sigma = 0.2

    def integrand(z: float) -> float:
        density = 0.5 * (stats.norm.cdf((z + 1) / sigma) - stats.norm.cdf((z - 1) / sigma))
        return -density * math.log(density) if density > 0 else 0.0

    entropy = integrate.quad(integrand, -3, 3, points=[-1, 1], limit=400)[0]
    expected = entropy - 0.5 * math.log(2 * math.pi * math.e * sigma**2)
    assert AdditiveGaussian(lambda x: x, sigma, 1).value == pytest.approx(expected, abs=1e-9)


def test_a_table_has_the_information_of_its_entropies() -> None:
    table = DiscreteTable.random(4, 6, Generator().manual_seed(0)).table
    entropies = [stats.entropy(part) for part in (table.sum(0), table.sum(1), table.flatten())]
    assert DiscreteTable(7 * table).value == pytest.approx(entropies[0] + entropies[1] - entropies[2], abs=1e-12)
    assert DiscreteTable(torch.eye(3)).value == pytest.approx(math.log(3))
    assert DiscreteTable(torch.ones(2, 5)).value == pytest.approx(0.0, abs=1e-15)


MAPS: list[tuple[Invertible, Tensor]] = [
    (map_, points)
    for points in [3 * torch.randn(200, 3, generator=Generator().manual_seed(0), dtype=torch.float64)]
    for map_ in (
        Power(1.5),
        Power(3.0),
        Asinh(),
        Wiggly(((0.4, 1.0, 0.0), (0.2, 1.7, 1.0))),
        Spiral(0, 2, 0.7),
        LinearMap.rotation(3, Generator().manual_seed(0)),
        LinearMap(torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, 3.0], [1.0, 0.0, 1.0]])),
    )
]


@pytest.mark.parametrize(("map_", "points"), MAPS, ids=[type(map_).__name__ for map_, _ in MAPS])
def test_maps_are_undone(map_: Invertible, points: Tensor) -> None:
    torch.testing.assert_close(map_.inverse(map_.forward(points)), points, rtol=1e-9, atol=1e-9)


def test_maps_of_margins_are_undone_and_have_the_margins_they_promise() -> None:
    normal = torch.randn(4000, 1, generator=Generator().manual_seed(0), dtype=torch.float64)
    uniform = UniformMargins().forward(normal)
    assert stats.kstest(uniform[:, 0], "uniform").pvalue > 1e-3
    torch.testing.assert_close(UniformMargins().inverse(uniform), normal, rtol=1e-9, atol=1e-9)
    rolled = SwissRoll().forward(uniform)
    torch.testing.assert_close(SwissRoll().inverse(rolled), uniform, rtol=1e-12, atol=1e-12)
    bimodal = MixtureMargins((0.3, 0.7), (0.0, 5.0))
    points = bimodal.forward(normal)
    assert stats.kstest(points[:, 0], lambda v: 0.3 * stats.norm.cdf(v) + 0.7 * stats.norm.cdf(v - 5)).pvalue > 1e-3
    torch.testing.assert_close(bimodal.inverse(points), normal, rtol=1e-9, atol=1e-9)


def test_the_quantiles_of_a_mixture_keep_their_digits_in_both_tails() -> None:
    bimodal = MixtureMargins((0.5, 0.5), (-1.0, 3.0))
    far = torch.tensor([[-9.0], [9.0]], dtype=torch.float64)
    torch.testing.assert_close(bimodal.inverse(bimodal.forward(far)), far, rtol=1e-9, atol=0)


def test_a_spiral_turns_by_the_square_of_the_norm() -> None:
    turned = Spiral(0, 1, math.pi / 2).forward(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    torch.testing.assert_close(turned, torch.tensor([[0.0, 1.0], [0.0, 2.0]]), atol=1e-6, rtol=0)


def test_the_bijection_property_of_figure_5_2_holds_pointwise() -> None:
    base = AdditiveGaussian(torch.sin, 0.3, 2, "sin x")
    cubed = Transformed(base, x_map=Power(3.0))
    x, z = base.sample(100, Generator().manual_seed(0), torch.float64)
    assert cubed.value == base.value
    torch.testing.assert_close(cubed.log_ratio(x**3, z), base.log_ratio(x, z))


def test_staircases_climb_through_the_wanted_values() -> None:
    stairs = staircase(20, steps=10, cubic=True, generator=Generator().manual_seed(0))
    assert [task.value for task in stairs.tasks] == pytest.approx([2, 4, 6, 8, 10])
    assert [stairs.at(step) for step in (0, 9, 10, 999)] == [stairs.tasks[k] for k in (0, 0, 1, 4)]
    assert stairs.at(0).sample(5, Generator().manual_seed(0))[1].shape == (5, 20)


def test_consistency_tests_have_the_ratios_they_state() -> None:
    for test in consistency_tests(IMAGES, rows=3, fewer=1):
        assert test.task.value / test.reference.value == pytest.approx(test.ratio, abs=1e-12)
    assert TopRows(IMAGES, 4).value == pytest.approx(math.log(60), rel=0.05)


def test_samples_depend_on_the_generator_alone_and_have_the_wanted_type() -> None:
    for task in (*TASKS.values(), *OTHERS.values()):
        first, second = (task.sample(7, Generator().manual_seed(3)) for _ in range(2))
        assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
        assert first[0].dtype == first[1].dtype == torch.float32
        assert not torch.equal(first[0], task.sample(7, Generator().manual_seed(4))[0])


def test_what_cannot_be_a_task_is_refused_in_words() -> None:
    wrong = (
        lambda: Gaussian(torch.ones(2, 2), 1),
        lambda: Gaussian(torch.eye(3), 3),
        lambda: Gaussian.correlated(2, 1.0),
        lambda: Gaussian.of_value(2, -1.0),
        lambda: Gaussian.sparse(2, 2, pairs=3),
        lambda: Student.identity(1, 1, 0),
        lambda: AdditiveUniform(0.0),
        lambda: AdditiveGaussian(torch.sin, 0.0),
        lambda: DiscreteTable(torch.tensor([[1.0, -1.0]])),
        lambda: TopRows(IMAGES, 5),
        lambda: Wiggly(((1.0, 1.0, 0.0),)),
        lambda: MixtureMargins((0.5, 0.4), (0.0, 1.0)),
        lambda: LinearMap(torch.zeros(2, 2)),
        lambda: Power(0.0),
        lambda: Transformed(Gaussian.correlated(2, 0.1), SwissRoll()),
        lambda: Gaussian.correlated(2, 0.1).sample(0, Generator()),
        lambda: consistency_tests(IMAGES, rows=0),
    )
    for make in wrong:
        with pytest.raises(InputError):
            make()
