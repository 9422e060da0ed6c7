"""Tasks with known mutual information: what an estimator is judged by.

Gaussian and Student variables, uniform and Gaussian additive noise, discrete tables and images, changed by maps that can be
undone; the 40 tasks of `benchmark-mi`, the table of figure 5.2, and the staircases and consistency tests of Song and Ermon.
"""

from typing import TYPE_CHECKING

from tangentlab.lazy import imported_on_first_use

if TYPE_CHECKING:
    from tangentlab.information.tasks.benchmark import benchmark_tasks as benchmark_tasks
    from tangentlab.information.tasks.consistency import ConsistencyTest as ConsistencyTest
    from tangentlab.information.tasks.consistency import Staircase as Staircase
    from tangentlab.information.tasks.consistency import TopRows as TopRows
    from tangentlab.information.tasks.consistency import consistency_tests as consistency_tests
    from tangentlab.information.tasks.consistency import staircase as staircase
    from tangentlab.information.tasks.elliptical import Gaussian as Gaussian
    from tangentlab.information.tasks.elliptical import Student as Student
    from tangentlab.information.tasks.maps import Asinh as Asinh
    from tangentlab.information.tasks.maps import LinearMap as LinearMap
    from tangentlab.information.tasks.maps import MixtureMargins as MixtureMargins
    from tangentlab.information.tasks.maps import Power as Power
    from tangentlab.information.tasks.maps import Spiral as Spiral
    from tangentlab.information.tasks.maps import SwissRoll as SwissRoll
    from tangentlab.information.tasks.maps import UniformMargins as UniformMargins
    from tangentlab.information.tasks.maps import Wiggly as Wiggly
    from tangentlab.information.tasks.noise import AdditiveGaussian as AdditiveGaussian
    from tangentlab.information.tasks.noise import AdditiveUniform as AdditiveUniform
    from tangentlab.information.tasks.noise import equitability_tasks as equitability_tasks
    from tangentlab.information.tasks.tables import DiscreteTable as DiscreteTable
    from tangentlab.information.tasks.task import Invertible as Invertible
    from tangentlab.information.tasks.task import Joined as Joined
    from tangentlab.information.tasks.task import Repeated as Repeated
    from tangentlab.information.tasks.task import Task as Task
    from tangentlab.information.tasks.task import Transformed as Transformed
else:
    __getattr__, __dir__, __all__ = imported_on_first_use(__name__)
