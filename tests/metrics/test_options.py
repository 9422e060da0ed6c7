"""The keyword arguments that everything shares: written once, shown in every signature, refused when misspelled."""

import inspect
from dataclasses import fields

import pytest
import torch
from torch import nn

import tangentlab as tl
from tangentlab.alignment.complexity import LearningFlow, kernel_trace
from tangentlab.engine.network import Network, Options
from tangentlab.errors import InputError
from tangentlab.linearized.alignments import alignments, rayleigh_quotients

FUNCTIONS = (
    tl.FIM, tl.FIM_MonteCarlo, tl.FIM_Empirical, tl.NTK, tl.Jacobian, tl.per_example_grads, tl.per_example_grad_norms,
    tl.GGN, tl.Hessian, tl.GradientCovariance, tl.KFRA, tl.fisher_eigenpairs, tl.check, tl.coverage, tl.plan,
    kernel_trace, LearningFlow, tl.TangentRecorder, alignments, rayleigh_quotients,
)  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_signatures_show_every_shared_argument_with_its_default(function):
    parameters = inspect.signature(function).parameters
    known = inspect.signature(Network.of).parameters
    for name in Options.__annotations__:
        assert parameters[name].kind == inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default == known[name].default
        assert parameters[name].annotation == known[name].annotation
    assert "options" not in parameters and function.__doc__


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_misspelled_argument_is_refused_by_the_name_of_the_function(function):
    name = "__init__" if inspect.isclass(function) else function.__name__
    with pytest.raises(TypeError, match=rf"{name}\(\) got an unexpected keyword argument 'layer'"):
        function(nn.Linear(2, 2), torch.ones(3, 2), layer="weight")


def test_the_bundle_is_what_a_network_takes_and_has():
    assert {*inspect.signature(Network.of).parameters} == {"model", *Options.__annotations__}
    assert {*Options.__annotations__} - {"layers"} <= {field.name for field in fields(Network)}


@pytest.mark.parametrize("function", [tl.Hessian, tl.GradientCovariance, tl.per_example_grads, tl.coverage])
def test_every_function_counts_the_outputs_when_asked_to(function):
    batch = torch.ones(3, 2), torch.zeros(3, dtype=torch.long)
    function(nn.Linear(2, 2), batch, n_output=2)
    with pytest.raises(InputError, match="n_output=3, but the model gives 2"):
        function(nn.Linear(2, 2), batch, n_output=3)
