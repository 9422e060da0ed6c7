"""The 40 tasks of `benchmark-mi` (Czyz et al. 2023), made from their definitions; none is left out."""

from __future__ import annotations

from tangentlab.information.tasks.elliptical import Gaussian, Student
from tangentlab.information.tasks.maps import Asinh, MixtureMargins, Power, Spiral, SwissRoll, UniformMargins, Wiggly
from tangentlab.information.tasks.noise import AdditiveUniform
from tangentlab.information.tasks.task import Task, Transformed

_WAVES_X = ((0.4, 1.0, 0.0), (0.2, 1.7, 1.0), (0.03, 3.3, -2.5))
_WAVES_Z = ((-0.4, 0.4, 0.0), (0.17, 1.3, 3.5), (0.02, 4.3, -2.5))
_CORRELATION = 0.75


def uniform_margins(task: Task) -> Task:
    """Both variables through the normal distribution function."""
    return Transformed(task, UniformMargins(), UniformMargins())


def half_cube(task: Task) -> Task:
    """Both variables to the power 3/2, signs kept."""
    return Transformed(task, Power(1.5, "half-cube"), Power(1.5, "half-cube"))


def asinh(task: Task) -> Task:
    """asinh of both variables."""
    return Transformed(task, Asinh(), Asinh())


def wiggly(task: Task) -> Task:
    """Both variables plus waves, others for x than for z."""
    return Transformed(task, Wiggly(_WAVES_X), Wiggly(_WAVES_Z))


def bimodal(task: Task) -> Task:
    """Normal margins become mixtures of two Gaussians: .3 and .7 at 0 and 5 for x, halves at -1 and 3 for z."""
    return Transformed(task, MixtureMargins((0.3, 0.7), (0.0, 5.0)), MixtureMargins((0.5, 0.5), (-1.0, 3.0)))


def spiral(task: Task, speed: float = 1.0) -> Task:
    """Entries 0 and 1 of x, and 1 and 2 of z, are turned by `speed |v|^2 / d`."""
    turns = Spiral(0, 1, speed / task.x_features), Spiral(1, 2, speed / task.z_features)
    return Transformed(task, *turns)


def swiss_roll(task: Task) -> Task:
    """x, one number of [0, 1], is rolled into a plane."""
    return Transformed(task, SwissRoll())


def benchmark_tasks() -> dict[str, Task]:
    """All tasks, by the identifiers that `benchmark-mi` gives them; its 'y' is z here."""
    return {**_single(), **_elliptical(), **_transformed()}


def _single() -> dict[str, Task]:
    """Tasks of one number each, and the swiss roll."""
    normal, student = Gaussian.correlated(1, _CORRELATION), Student.identity(1, 1, 1)
    name = "1v1-normal-0.75"
    return {
        name: normal,
        f"normal_cdf-{name}": uniform_margins(normal),
        "1v1-additive-0.1": AdditiveUniform(0.1),
        "1v1-additive-0.75": AdditiveUniform(0.75),
        "1v1-bimodal-0.75": bimodal(normal),
        f"wiggly-{name}": wiggly(normal),
        f"half_cube-{name}": half_cube(normal),
        "student-identity-1-1-1": student,
        "asinh-student-identity-1-1-1": asinh(student),
        f"swissroll_x-normal_cdf-{name}": swiss_roll(uniform_margins(normal)),
    }


def _elliptical() -> dict[str, Task]:
    """Gaussians and Students of several dimensions."""
    dense: dict[str, Task] = {f"multinormal-dense-{d}-{d}-0.5": Gaussian.dense(d, d) for d in (2, 3, 5, 25, 50)}
    students = {
        f"student-identity-{d}-{d}-{degrees}": Student.identity(d, d, degrees)
        for d, degrees in ((2, 1), (2, 2), (3, 2), (3, 3), (5, 2), (5, 3))
    }
    return {**dense, **{_sparse(d): Gaussian.sparse(d, d) for d in (2, 3, 5, 25)}, **students}


def _transformed() -> dict[str, Task]:
    """Those of several dimensions after a change of margins or of space."""
    bases = {_sparse(d): Gaussian.sparse(d, d) for d in (3, 5, 25)}
    students = {f"student-identity-{d}-{d}-{degrees}": (d, degrees) for d, degrees in ((2, 1), (3, 2), (5, 2))}
    return {
        **{f"normal_cdf-{name}": uniform_margins(base) for name, base in bases.items()},
        **{f"half_cube-{name}": half_cube(base) for name, base in bases.items()},
        **{f"spiral-{name}": spiral(base) for name, base in bases.items()},
        **{f"spiral-normal_cdf-{name}": spiral(uniform_margins(base)) for name, base in bases.items()},
        **{f"asinh-{name}": asinh(Student.identity(d, d, degrees)) for name, (d, degrees) in students.items()},
    }


def _sparse(features: int) -> str:
    return f"multinormal-sparse-{features}-{features}-2-2.0"
