"""A generator that is passed is the one source of randomness of every public function that takes one."""

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

import tangentlab as tl
from tangentlab import kernels, linalg
from tangentlab.alignment import bounds, complexity, directions, spectrum
from tangentlab.data import Dataset, clusters, toys, transforms
from tangentlab.engine.likelihood import Binary, Classification, LogSoftmax, Regression
from tangentlab.engine.weightings import MonteCarlo, RandomSigns, SignedRoots
from tangentlab.linearized import add_corner_patch, anisotropy_directions, direction_dataset, eigenfunctions, eigenpairs
from tangentlab.linearized.example_groups import Groups
from tangentlab.linearized.information import information_space
from tangentlab.linearized.quadratic import QuadraticModel
from tangentlab.linearized.streamed import streamed_eigenpairs
from tangentlab.models import init
from tangentlab.objects.fmat_implicit import FMatImplicit
from tangentlab.objects.fvector import FVector
from tangentlab.recorder import probes
from tests.information.generators import CALLS as OF_INFORMATION
from tests.limits.generators import CALLS as OF_LIMITS
from tests.spectral.generators import CALLS as OF_SPECTRAL

PACKAGE = Path(tl.__file__).parent

MATRIX = torch.randn(90, 90, generator=Generator().manual_seed(1), dtype=torch.float64)
MATRIX = MATRIX @ MATRIX.T + torch.eye(90)
FLOAT = {"dtype": torch.float64}


def product(rows: Tensor) -> Tensor:
    return rows @ MATRIX


@cache
def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(70, 6), nn.Tanh(), nn.Linear(6, 3)).double()


@cache
def points() -> Tensor:
    return torch.randn(40, 70, generator=Generator().manual_seed(2), dtype=torch.float64)


@cache
def fisher() -> tl.PMat:
    return tl.FIM(network(), points(), tl.PMatImplicit)


@cache
def kernel() -> FMatImplicit:
    return tl.NTK(network(), points(), representation=FMatImplicit)


def images() -> Dataset:
    return Dataset(torch.arange(60.0 * 75).reshape(60, 3, 5, 5), torch.arange(60) % 3, "images", classes=3)


def two_classes() -> Dataset:
    return Dataset(torch.arange(60.0 * 75).reshape(60, 3, 5, 5), torch.arange(60) % 2, "images", classes=2)


def outputs(width: int = 3) -> Tensor:
    return torch.zeros(40, width, dtype=torch.float64)


def cotangents(weighting: Any, width: int = 3) -> Tensor:
    batch = (points(), torch.zeros(40, dtype=torch.long))
    return weighting.cotangents(outputs(width), batch, 0, range(weighting.count(outputs(width))))


def eigenfunction_parts(method: str, **options: Any) -> Callable[[Generator], Any]:
    return lambda g: eigenfunctions(network(), points(), 4, method=method, generator=g, **options).functions


def rows_of_recorder(g: Generator) -> Any:
    return probes.Probe.of("train", (points(), points()), 20, g).batch


def uniform_model() -> QuadraticModel:
    """Nine of ten modes have one eigenvalue."""
    features = torch.eye(10, dtype=torch.float64)
    features[0, 0] = 2
    return QuadraticModel.of(features, torch.ones(10, dtype=torch.float64), 0.1)


def layer_weight(g: Generator) -> Tensor:
    layer = nn.utils.skip_init(nn.Linear, 5, 4)
    init.fan_in_normal_(layer, 2.0, g)
    return layer.weight.detach()


def landmark_error(g: Generator) -> Any:
    found = linalg.nystrom(product, 90, 5, **FLOAT, generator=Generator().manual_seed(3))
    return found.frobenius_error(product, 4, generator=g)


CALLS: dict[str, Callable[[Generator], Any]] = {
    "kernels.bounds.flow_monte_carlo": lambda g: bounds.flow_monte_carlo([MATRIX], [1.0], samples=9, generator=g),
    "engine.weightings.RandomSigns": lambda g: cotangents(RandomSigns(2, g)),
    "alignment.complexity.kernel_trace": lambda g: complexity.kernel_trace(network(), points(), 2, generator=g),
    "alignment.directions.compare_directions": lambda g: directions.compare_directions(
        network(), points(), points()[:5], 3, 0.1, generator=g
    ),
    "engine.weightings.SignedRoots": lambda g: cotangents(SignedRoots(Classification(), g)),
    "recorder.probes.Probe.of": rows_of_recorder,
    "recorder.probes.choose_outputs": lambda g: torch.tensor(
        probes.choose_outputs(torch.Size([50]), None, 10, g, Regression())
    ),
    "kernels.spectrum.estimate_spectrum": lambda g: spectrum.estimate_spectrum(kernel(), top=3, generator=g).values,
    "data.toys.square": lambda g: toys.square(20, g),
    "data.toys.disk": lambda g: toys.disk(20, g).inputs,
    "data.toys.yin_yang": lambda g: toys.yin_yang(20, g).inputs,
    "data.toys.sinusoid_sum": lambda g: toys.sinusoid_sum(20, (1, 2), g).targets,
    "data.toys.gaussian_mixture": lambda g: toys.gaussian_mixture(20, torch.zeros(2, 3), 1.0, g).inputs,
    "data.clusters.random_clusters": lambda g: clusters.random_clusters(4, 2, 3, 0.1, g).centres,
    "data.clusters.Clusters.sample": lambda g: (
        clusters.Clusters(torch.eye(2), torch.arange(2), 0.1).sample(9, g)[0].inputs
    ),
    "data.toys.spiral": lambda g: toys.spiral(20, g).inputs,
    "linearized.streamed.streamed_eigenpairs": lambda g: streamed_eigenpairs(network(), points(), 3, generator=g),
    "linearized.information.information_space": lambda g: (
        information_space(network(), points(), 3, method="krylov", generator=g).basis.vectors
    ),
    "data.toys.gaussian_grid": lambda g: toys.gaussian_grid(20, g).inputs,
    "data.transforms.shuffled": lambda g: transforms.shuffled(images(), g).inputs,
    "data.transforms.subset": lambda g: transforms.subset(images(), 9, g).inputs,
    "data.transforms.balanced_subset": lambda g: transforms.balanced_subset(images(), 3, g).inputs,
    "data.transforms.stratified_subset": lambda g: transforms.stratified_subset(images(), 9, g).inputs,
    "data.transforms.label_noise": lambda g: transforms.label_noise(images(), 0.3, g)[0].targets,
    "engine.likelihood.Classification.sample": lambda g: Classification().sample(outputs(), 5, g),
    "engine.likelihood.LogSoftmax.sample": lambda g: LogSoftmax().sample(outputs().log_softmax(1), 5, g),
    "engine.likelihood.Binary.sample": lambda g: Binary().sample(outputs(), 5, g),
    "engine.likelihood.Regression.sample": lambda g: Regression().sample(outputs(), 5, g),
    "engine.weightings.MonteCarlo": lambda g: cotangents(MonteCarlo(Classification(), 2, g)),
    "kernels.rademacher.rademacher_monte_carlo": lambda g: kernels.rademacher_monte_carlo(
        MATRIX, samples=9, generator=g
    ),
    "linalg.hutchinson.hutchinson_trace": lambda g: linalg.hutchinson_trace(product, 90, 8, generator=g, **FLOAT),
    "linalg.hutchinson.hutchinson_diag": lambda g: linalg.hutchinson_diag(product, 90, 8, generator=g, **FLOAT),
    "linalg.hutchpp.hutchpp": lambda g: linalg.hutchpp(product, 90, 9, generator=g, **FLOAT),
    "linalg.lanczos.lanczos": lambda g: linalg.lanczos(product, 90, 3, generator=g, **FLOAT),
    "linalg.nystrom.Nystrom.frobenius_error": landmark_error,
    "linalg.nystrom.nystrom": lambda g: linalg.nystrom(product, 90, 5, generator=g, **FLOAT),
    "linalg.randomized_svd.randomized_svd": lambda g: linalg.randomized_svd(
        product, product, 90, 5, generator=g, **FLOAT
    ),
    "linalg.range_finder.range_finder": lambda g: linalg.range_finder(product, 90, 5, generator=g, **FLOAT),
    "linalg.slq.lanczos_quadrature": lambda g: linalg.lanczos_quadrature(product, 90, 2, 5, generator=g, **FLOAT),
    "linalg.slq.slq_trace": lambda g: linalg.slq_trace(product, 90, torch.log, probes=3, generator=g, **FLOAT),
    "linalg.slq.slq_logdet": lambda g: linalg.slq_logdet(product, 90, probes=3, generator=g, **FLOAT),
    "linalg.spectral_density.spectral_density": lambda g: linalg.spectral_density(
        product, 90, probes=3, steps=9, generator=g, **FLOAT
    ),
    "linalg.xtrace.xtrace": lambda g: linalg.xtrace(product, 90, 5, generator=g, **FLOAT),
    "linalg.xtrace.xdiag": lambda g: linalg.xdiag(product, 90, 5, generator=g, **FLOAT),
    "linearized.anisotropy.anisotropy_directions": lambda g: (
        anisotropy_directions(network(), points()[:2], 2, generator=g).directions
    ),
    "linearized.anisotropy_data.direction_dataset": lambda g: direction_dataset(torch.ones(4), 20, g).inputs,
    "linearized.eigenfunctions.eigenfunctions": eigenfunction_parts("lanczos"),
    "linearized.eigenfunctions.eigenfunctions by landmarks": eigenfunction_parts("nystrom", landmarks=20),
    "linearized.eigenfunctions.eigenfunctions in memory": lambda g: eigenfunctions_in_memory(g),
    "kernels.eigenpairs.gram_eigenpairs": lambda g: small(lambda: eigenpairs.gram_eigenpairs(MATRIX, 2, generator=g)),
    "kernels.eigenpairs.product_eigenpairs": lambda g: eigenpairs.product_eigenpairs(kernel(), 3, g),
    "linearized.quadratic.QuadraticModel.turned": lambda g: uniform_model().turned(g).basis,
    "linearized.example_groups.Groups.balanced": lambda g: Groups({"even": torch.arange(0, 40, 2)}).balanced(9, g).rows,
    "linearized.spurious.add_corner_patch": lambda g: (
        add_corner_patch(two_classes(), two_classes(), 0.7, g, pixels=3)[0].inputs
    ),
    "metrics.FIM_MonteCarlo": lambda g: tl.FIM_MonteCarlo(network(), points(), tl.PMatDiag, generator=g).diag(),
    "models.init.fan_in_normal_": layer_weight,
    "objects.fvector.FVector.random_unit": lambda g: FVector.random_unit(3, 5, generator=g).data,
    "objects.matrix_free.MatrixFree.top_eigenpairs": lambda g: fisher().top_eigenpairs(3, generator=g).vectors.flat,
    "objects.matrix_free.MatrixFree.estimate_trace": lambda g: fisher().estimate_trace(9, generator=g),
    "objects.matrix_free.MatrixFree.estimate_trace by xtrace": lambda g: fisher().estimate_trace(
        9, method="xtrace", generator=g
    ),
    "objects.matrix_free.MatrixFree.estimate_trace by hutchinson": lambda g: fisher().estimate_trace(
        9, method="hutchinson", generator=g
    ),
    "objects.matrix_free.MatrixFree.estimate_diag": lambda g: fisher().estimate_diag(9, generator=g),
    "objects.matrix_free.MatrixFree.estimate_logdet": lambda g: fisher().estimate_logdet(
        0.1, probes=2, steps=5, generator=g
    ),
    "objects.matrix_free.MatrixFree.spectral_density": lambda g: fisher().spectral_density(
        probes=2, steps=9, generator=g
    ),
    "objects.pmat.base.PMat.sample": lambda g: tl.FIM(network(), points(), tl.PMatDiag).sample(0.1, generator=g).flat,
    "spectra.fisher_eigenpairs": lambda g: (
        tl.fisher_eigenpairs(network(), points(), 3, method="lanczos", generator=g).vectors.flat
    ),
    "objects.pvector.PVector.random_unit": lambda g: tl.PVector.random_unit(network(), generator=g).flat,
    **OF_INFORMATION,
    **OF_LIMITS,
    **OF_SPECTRAL,
}


def small(call: Callable[[], Any]) -> Any:
    """With the size from which eigenpairs are searched lowered, as if the matrix were large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eigenpairs, "ALL_PAIRS", 10)
        patch.setattr(eigenpairs, "BLOCK", 8)
        return call()


def eigenfunctions_in_memory(g: Generator) -> Tensor:
    return small(lambda: eigenfunctions(network(), points(), 2, method="gram", generator=g).functions)


def tensors(value: Any) -> list[Tensor]:
    """The numbers in a result, whatever its form."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, bool | str | type(None)):
        return []
    if isinstance(value, int | float):
        return [torch.tensor(value)]
    if isinstance(value, dict):
        return tensors(list(value.values()))
    if isinstance(value, list | tuple):
        return [one for part in value for one in tensors(part)]
    if hasattr(value, "flat"):
        return [value.flat]
    assert hasattr(value, "__dict__"), f"no numbers in {value!r}"
    return tensors(vars(value))


def same(one: Any, two: Any) -> bool:
    pairs = list(zip(tensors(one), tensors(two), strict=True))
    assert pairs
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", CALLS)
def test_the_generator_alone_decides(name):
    call = CALLS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        before = torch.get_rng_state()
        generator = Generator().manual_seed(5)
        first, second = call(generator), call(generator)
        assert torch.equal(torch.get_rng_state(), before), "the global generator was used"
        torch.manual_seed(2)
        assert same(first, call(Generator().manual_seed(5))), "a generator of the same seed gives another result"
        assert not same(first, second), "the generator that was passed was not used"


@pytest.mark.parametrize(
    "call",
    [
        lambda: eigenfunctions(network(), points(), 4, method="lanczos").functions,
        lambda: small(lambda: eigenfunctions(network(), points(), 2, method="gram").functions),
        lambda: small(lambda: eigenpairs.gram_eigenpairs(MATRIX, 2)),
        lambda: eigenpairs.product_eigenpairs(kernel(), 3),
        lambda: anisotropy_directions(network(), points()[:2], 2).directions,
    ],
)
def test_without_a_generator_what_is_exact_repeats_and_leaves_the_global_generator_alone(call):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        before, first = torch.get_rng_state(), call()
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(2)
        assert same(first, call())


def test_every_public_function_with_a_generator_is_among_them():
    found = set()
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for scope, function in functions(ast.parse(path.read_text()), ()):
            names = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
            name = ".".join((module, *scope, function.name)).removesuffix(".__init__")
            private = any(part.startswith("_") for part in name.split("."))
            if "generator" in names and not private:
                found.add(name)
    behind = ("experiments.", "engine.", "testing.")  # called by the others, or for tests
    assert {name for name in found if not name.startswith(behind)} <= {name.split(" ")[0] for name in CALLS} <= found


def functions(node: ast.AST, scope: tuple[str, ...]):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield scope, child
        elif isinstance(child, ast.ClassDef):
            yield from functions(child, (*scope, child.name))
