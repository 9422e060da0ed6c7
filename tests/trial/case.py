"""One case of the trial: from its number to its outcome."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.errors import ModelError, NumericsError, TangentlabError
from tests.engine.state import model_state, process_state
from tests.trial import scene as scenes
from tests.trial.blocks.base import NOISE, WRITES
from tests.trial.choices import Choices, NoSuchCase
from tests.trial.operations import jacobians, kernels, kronecker, matrices, optimizers, tools
from tests.trial.operations.base import OPERATIONS, Results, Work
from tests.trial.scene import Scene

assert all((jacobians, kernels, kronecker, matrices, optimizers, tools))  # they fill OPERATIONS

EXACT, REFUSED = "exact", "refused"
SILENT, FOREIGN, NEEDLESS, TOUCHED, CRASH, ENDLESS = (
    "silent error",
    "foreign exception",
    "needless refusal",
    "model changed",
    "crash",
    "endless",
)
FAILURES = (SILENT, FOREIGN, NEEDLESS, TOUCHED, CRASH, ENDLESS)

TOLERANCES = {torch.float64: 1e-8, torch.float32: 2e-3, torch.bfloat16: 0.3, torch.float16: 0.1}
FLOORS = {torch.float64: 1e-6, torch.float32: 1e-2, torch.bfloat16: 0.1, torch.float16: 0.1}
"""Relative tolerance, and the size below which an entry counts as that large."""


@dataclass
class Outcome:
    """What became of a case. `detail` names the error or the deviation; `record` replays it."""

    outcome: str
    operation: str
    kinds: list[str]
    traits: list[str]
    dtype: str
    form: str
    detail: str = ""
    record: dict[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether it counts against the library."""
        return self.outcome in FAILURES

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


Notice = Callable[[Outcome], None]
"""Told what a case is before the library is called, in case the process does not survive the call."""


def run(seed: int, number: int, notice: Notice | None = None) -> Outcome:
    """The case of a number: a pure function of (seed, number). Decisions that do not fit together are drawn again."""
    for attempt in range(1000):
        try:
            return replay({}, Random(f"{seed}/{number}/{attempt}"), notice)
        except NoSuchCase:
            continue
    raise RuntimeError(f"No case for {seed}/{number}.")


def replay(record: dict[str, Any], source: Random | None = None, notice: Notice | None = None) -> Outcome:
    """The case of a record; what the record leaves open is drawn from the source, or the simplest."""
    record = deepcopy(record)
    with warnings.catch_warnings(), _same_process():
        warnings.simplefilter("ignore")
        scene, operation, work = _prepared(Choices(record, source))
        facts = scene.blueprint
        kinds, traits = sorted(set(facts.kinds)), sorted(facts.traits)
        result = Outcome(CRASH, operation, kinds, traits, str(facts.dtype)[6:], scene.data.form, "", record)
        if notice is not None:
            notice(result)
        result.outcome, result.detail = _judged(scene, work)
    return result


def _prepared(choices: Choices) -> tuple[Scene, str, Work]:
    try:
        scene = scenes.make(choices)
        scene.find_truth()
        o = choices.within("operation")
        fitting = [one for one in OPERATIONS.values() if scene.blueprint.dtype in one.dtypes and one.fits(scene)]
        name = o.pick("name", [one.name for one in fitting], [one.weight for one in fitting])
        return scene, name, OPERATIONS[name].make(o, scene)
    except NoSuchCase:
        raise
    except Exception as error:  # the network itself cannot be run or differentiated
        raise NoSuchCase(f"{type(error).__name__}: {error}") from error


def _judged(scene: Scene, work: Work) -> tuple[str, str]:
    """(outcome, detail)."""
    must_refuse = undefined(scene, work)
    state = _values if WRITES in scene.blueprint.traits else model_state
    before = state(scene.model)
    try:
        with scene.around():
            found = work.found()
    except TangentlabError as error:
        detail = f"{type(error).__name__}: {error}"
        if "disagrees with plain autograd" in detail:
            return SILENT, detail
        allowed = must_refuse or scene.may_refuse or isinstance(error, work.refusals)
        allowed = allowed or isinstance(error, NumericsError) and scene.overflows
        allowed = allowed or isinstance(error, ModelError) and scene.ill_conditioned
        outcome = REFUSED if allowed else NEEDLESS
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return FOREIGN, f"{type(error).__name__}: {error} ({place.name}, line {place.lineno})"
    else:
        if must_refuse:
            return SILENT, f"a number although {must_refuse}"
        dtype = scene.coarsest
        expected, own, size = work.expected(scene.truth), work.expected(scene.same), work.size(scene.truth)
        detail = difference(found, expected, [own], dtype, work.slack, size)
        if detail:
            near = [own, *map(work.expected, scene.disturbed())]
            detail = difference(found, expected, near, dtype, work.slack, size)
        if detail and scene.truth_is_wrong:
            raise NoSuchCase("torch's own gradients are wrong")
        outcome = SILENT if detail else EXACT
    after = state(scene.model)
    changed = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
    changed = [key for key in changed if not (work.draws and key == "random state")]
    if outcome in (EXACT, REFUSED, NEEDLESS) and changed and not work.touches:
        return TOUCHED, ", ".join(changed[:5])
    return outcome, detail


def undefined(scene: Scene, work: Work) -> str:
    """Why no number can be right, or ''."""
    if work.undefined:
        return work.undefined
    if work.measures and NOISE in scene.blueprint.traits:
        return "the forward draws at random or uses batch statistics"
    if scene.place == "inference mode":
        return "derivatives are forbidden"
    if scene.data.ambiguous and not work.one_batch:
        return "a list of tensors of one shape is one batch or several"
    return "the order of the examples is not fixed" if work.ordered and scene.data.form == "shuffled" else ""


def _values(model: nn.Module) -> dict[str, Any]:
    """What a model that writes to its parameters is to have afterwards: their values, if not their versions."""
    return {name: tuple(parameter.detach().flatten().tolist()) for name, parameter in model.named_parameters()}


def difference(
    found: Results, truth: Results, near: list[Results], dtype: torch.dtype, slack: float = 1.0, size: float = 0.0
) -> str:
    """'' where all agree to what the type allows, else where and by how much not.

    near: results of plain autograd in the network's own type, for its weights and for weights within their rounding. The
    largest distance between any of these and the truth, ten times over, is allowed on top. size: of what cancels.
    """
    if set(found) != set(truth):
        return f"{sorted(found)} was found and {sorted(truth)} expected"
    for name, expected in truth.items():
        one = found[name].detach().double()
        if one.shape != expected.shape:
            return f"{name} has shape {tuple(one.shape)} instead of {tuple(expected.shape)}"
        if one.numel() == 0:
            continue
        if not torch.isfinite(one).all():
            return "" if expected.abs().max() * 100 > torch.finfo(found[name].dtype).max else f"{name} is not finite"
        scale = max(_size(expected), FLOORS[dtype], size)
        rounding = max(_size(other[name].double() - expected.double()) for other in near)
        error = _size(one - expected)
        if error > 10 * rounding + TOLERANCES[dtype] * slack * scale:
            return f"{name} is off by {error / scale:.1e} of its largest entry"
    return ""


def _size(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


class _same_process:
    """Whatever a case does to the process (generator, modes, patches) is undone after it."""

    def __enter__(self) -> None:
        self.random, self.state = torch.get_rng_state(), process_state()

    def __exit__(self, *error: Any) -> None:
        torch.set_rng_state(self.random)
        if process_state() != self.state:
            raise RuntimeError("The case has changed the process.")
