"""The networks of `nets.py` as plain jax functions `f(params, x)`, with the torch weights transposed once.

`params` is a flat dict keyed by torch's parameter names. Convolutions run in NHWC with HWIO kernels, linear weights are
`(inputs, outputs)`: the layouts for which the tangent kernel's structured derivatives have rules.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Params = dict[str, jax.Array]


def convert(name: str, weights: dict[str, np.ndarray]) -> Params:
    """Torch's weights in jax's layouts; embeddings stay as they are."""

    def one(key: str, value: np.ndarray) -> np.ndarray:
        if value.ndim == 4:
            return value.transpose(2, 3, 1, 0)
        if value.ndim == 2 and not key.startswith(("token", "position")):
            return value.T
        return value

    return {key: jnp.asarray(one(key, value)) for key, value in weights.items()}


def convert_inputs(x: np.ndarray) -> jax.Array:
    """Images from NCHW to NHWC; anything else unchanged."""
    return jnp.asarray(x.transpose(0, 2, 3, 1) if x.ndim == 4 else x)


def _linear(params: Params, key: str, x: jax.Array) -> jax.Array:
    return x @ params[f"{key}.weight"] + params[f"{key}.bias"]


def _conv(params: Params, key: str, x: jax.Array, stride: int = 1, padding: int = 0) -> jax.Array:
    y = lax.conv_general_dilated(
        x,
        params[f"{key}.weight"],
        (stride, stride),
        [(padding, padding)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return y + params[f"{key}.bias"]


def _layer_norm(params: Params, key: str, x: jax.Array) -> jax.Array:
    centered = x - x.mean(-1, keepdims=True)
    normal = centered / jnp.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
    return normal * params[f"{key}.weight"] + params[f"{key}.bias"]


def _max_pool(x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def mlp(options: dict) -> Callable[[Params, jax.Array], jax.Array]:
    """See `nets.mlp`."""
    depth = options.get("depth", 3)

    def apply(params: Params, x: jax.Array) -> jax.Array:
        for layer in range(depth):
            x = jax.nn.relu(_linear(params, str(2 * layer), x))
        return _linear(params, str(2 * depth), x)

    return apply


def lenet(options: dict) -> Callable[[Params, jax.Array], jax.Array]:
    """See `nets.lenet`; the flattened features are brought back to torch's channel-first order."""

    def apply(params: Params, x: jax.Array) -> jax.Array:
        x = _max_pool(jax.nn.relu(_conv(params, "0", x, padding=2)))
        x = _max_pool(jax.nn.relu(_conv(params, "3", x)))
        x = x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1)
        x = jax.nn.relu(_linear(params, "7", x))
        return _linear(params, "11", jax.nn.relu(_linear(params, "9", x)))

    return apply


def resnet18(options: dict) -> Callable[[Params, jax.Array], jax.Array]:
    """See `nets.ResNet18`."""

    def apply(params: Params, x: jax.Array) -> jax.Array:
        x = jax.nn.relu(_conv(params, "stem", x, padding=1))
        for block in range(8):
            key, stride = f"blocks.{block}", 2 if block in (2, 4, 6) else 1
            y = jax.nn.relu(_conv(params, f"{key}.conv1", x, stride, 1))
            y = _conv(params, f"{key}.conv2", y, 1, 1)
            shortcut = _conv(params, f"{key}.shortcut", x, stride) if f"{key}.shortcut.weight" in params else x
            x = jax.nn.relu(y + shortcut)
        return _linear(params, "head", x.mean((1, 2)))

    return apply


def transformer(options: dict) -> Callable[[Params, jax.Array], jax.Array]:
    """See `nets.Transformer`; `one_hot` embeds by a matrix product, since gathers have no structured derivative."""
    heads, layers, one_hot = options.get("heads", 4), options.get("layers", 4), options.get("one_hot", False)

    def attend(params: Params, key: str, x: jax.Array) -> jax.Array:
        n, tokens, width = x.shape
        parts = _linear(params, f"{key}.query_key_value", x).reshape(n, tokens, 3, heads, width // heads)
        query, key_, value = parts[:, :, 0], parts[:, :, 1], parts[:, :, 2]
        scores = jnp.einsum("nihd,njhd->nhij", query, key_) / np.sqrt(width // heads)
        weights = jax.nn.softmax(jnp.where(jnp.tri(tokens, dtype=bool), scores, -1e9), -1)
        mixed = jnp.einsum("nhij,njhd->nihd", weights, value).reshape(n, tokens, width)
        return _linear(params, f"{key}.projection", mixed)

    def apply(params: Params, ids: jax.Array) -> jax.Array:
        token, position = params["token.weight"], params["position.weight"]
        x = (jax.nn.one_hot(ids, len(token)) @ token if one_hot else token[ids]) + position[: ids.shape[1]]
        for layer in range(layers):
            key = f"blocks.{layer}"
            x = x + attend(params, key, _layer_norm(params, f"{key}.norm1", x))
            hidden = jax.nn.gelu(_linear(params, f"{key}.expand", _layer_norm(params, f"{key}.norm2", x)))
            x = x + _linear(params, f"{key}.contract", hidden)
        return _linear(params, "head", _layer_norm(params, "norm", x).mean(1))

    return apply


NETS = {"mlp": mlp, "lenet": lenet, "resnet18": resnet18, "transformer": transformer}
