"""Everything about a model and about the process that a computation must leave alone, as one comparable value."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module


def model_state(model: nn.Module) -> dict[str, Any]:
    """Attributes of every module, tensors with identity, version, value and .grad, the generator, modes and flags."""
    state: dict[str, Any] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for key, value in vars(module).items():
            state[f"{name}.{key}"] = _fingerprint(value)
        state[f"{name}.__dict__"] = tuple(vars(module))
    for name, parameter in model.named_parameters(remove_duplicate=False):
        state[f"parameter {name}"] = _fingerprint(parameter)
    state["random state"] = torch.get_rng_state().numpy().tobytes()
    return state | process_state()


def process_state() -> dict[str, Any]:
    """Grad mode, default dtype, kernel flags and the hooks that are registered for all modules."""
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "mkldnn": (torch.backends.mkldnn.enabled, torch.backends.mkldnn.deterministic),
        "precision": (torch.backends.mkldnn.fp32_precision, torch.get_float32_matmul_precision()),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "math": torch.backends.cuda.math_sdp_enabled(),
        "efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "global hooks": (len(torch_module._global_forward_hooks), len(torch_module._global_forward_pre_hooks)),
        "anomaly": torch.is_anomaly_enabled(),
    }


def _fingerprint(value: Any) -> Any:
    if isinstance(value, Tensor):
        facts = id(value), value._version, value.requires_grad, tuple(value.shape), _bytes(value)
        grad = value.grad if value.is_leaf else None
        hooks = tuple(value._backward_hooks or ())
        return *facts, hooks, None if grad is None else (id(grad), grad._version, _bytes(grad))
    if type(value) in (dict, OrderedDict):
        return tuple((key, _fingerprint(entry)) for key, entry in value.items())
    if type(value) in (list, tuple, set):
        return id(value) if type(value) is tuple else None, tuple(map(_fingerprint, value))
    if isinstance(value, int | float | str | bool | type(None)):
        return value
    return id(value)


def _bytes(tensor: Tensor) -> bytes:
    """The values of a tensor of any type, bfloat16 included."""
    dense = tensor.detach().to_dense()
    return torch.empty(dense.shape, dtype=dense.dtype).copy_(dense).reshape(-1).view(torch.uint8).numpy().tobytes()
