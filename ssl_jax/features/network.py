"""`Network`, the interface through which `features` and `evals` compute features.

`adopt` wraps a trained or untrained `methods.encoder.Encoder`, or any function from images
[B, H, W, 3] float32 in [0, 1] to an object with `.image` [B, d] and `.patches` [B, h, w, d], so
that the same code scores all of them. `pixels.RawPixels` is a Network too.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from ml_collections import FrozenConfigDict

from ssl_jax.config import InputError
from ssl_jax.features.tokens import ALONE, DENSE, SPARSE_TOKENS
from ssl_jax.methods.encoder import Encoder


class Network:
    """A function from images to features: one vector per image and one per patch, whichever tokens
    are requested.

    config: config of the run that trained the weights, or None.
    encoder: the wrapped Encoder, whose weights can be trained further, or None.
    """

    encoder: Encoder | None = None

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self.config: FrozenConfigDict | None = getattr(function, "config", None)

    def __repr__(self) -> str:
        return repr(self._function)

    @functools.cached_property
    def digest(self) -> str:
        """Identifies the features in caches; "" if nothing identifies them."""
        return getattr(self._function, "digest", "")

    def __call__(self, images: ArrayLike) -> Any:
        """An object with `.image` [B, d] and `.patches` [B, h, w, d]."""
        return self._function(images)

    def with_extras(self, images: ArrayLike) -> tuple[Any, Mapping[str, Any]]:
        """The features, and the method's extra outputs by name (see its `features`)."""
        if "extras" not in inspect.signature(self._function).parameters:
            return self(images), {}
        features = self._function(images, extras=True)
        return features, features.extras or {}

    def extras(self, shape: tuple[int, ...]) -> set[str]:
        """Names of the method's extra outputs for images of `shape`, (B, H, W, 3). Traces the
        function without computing."""
        images = jax.ShapeDtypeStruct(shape, jnp.float32)
        return set(jax.eval_shape(lambda x: self.with_extras(x)[1], images))

    def read(
        self, images: ArrayLike, kinds: Mapping[str, str], layers: int = 1
    ) -> dict[str, jax.Array]:
        """Vectors by name, float32, from one forward pass.

        Args:
          images: [B, H, W, 3].
          kinds: {name: kind}, with a kind of tokens.KINDS for one vector [B, d] per image,
            "patches" for [B, h, w, d], or "sparse_tokens" for [B, r, d].
          layers: number of last blocks whose vectors are concatenated.

        Raises:
          InputError: the network lacks the tokens, or has fewer blocks.
        """
        features = self(images)
        vectors = {
            name: features.patches if kind == DENSE else features.image
            for name, kind in kinds.items()
        }
        return {name: jnp.asarray(x, jnp.float32) for name, x in vectors.items()}

    def across(self, devices: Sequence[jax.Device]) -> "Network":
        """The network with its batches sharded over these devices; the same network if its
        function cannot be sharded."""
        spread = getattr(self._function, "across", None)
        return self if spread is None else adopt(spread(devices))


class _Encoding(Network):
    """An Encoder."""

    encoder: Encoder

    def __init__(self, encoder: Encoder):
        super().__init__(encoder)
        self.encoder = encoder

    def read(self, images, kinds, layers=1):
        if layers == 1:
            extras = bool(set(kinds.values()) & {"sparse", SPARSE_TOKENS})
            features = self.encoder(images, extras=extras)
            sparse = (features.extras or {}).get("tokens")
            return {
                name: features.image
                if kind == "image"
                else _chosen(kind, features.cls, features.patches, sparse)
                for name, kind in kinds.items()
            }
        if "image" in kinds.values():
            raise InputError(f"layers is {layers}, {ALONE}")
        depth = self.encoder.config.model.depth
        if layers > depth:
            raise InputError(f"layers is {layers} but {self} has {depth} blocks")
        blocks = range(depth - layers, depth)
        features = self.encoder(images, layers=tuple(blocks))
        h, w = features.patches.shape[1:3]

        def side_by_side(kind):
            parts = []
            for tokens in ((features.layers or {})[block] for block in blocks):
                patches = tokens.on_grid(h, w)
                if kind == DENSE and patches.shape[1:3] != (h, w):
                    raise InputError(
                        f"layers is {layers}, and some of these have smaller patches than the"
                        " last; use fewer, or a mean"
                    )
                parts.append(_chosen(kind, tokens.cls, patches, tokens.queries))
            return jnp.concatenate(parts, axis=-1)

        return {name: side_by_side(kind) for name, kind in kinds.items()}


def adopt(network: Any) -> Network:
    """Wraps an Encoder or a function, see the module's docstring; returns a Network unchanged."""
    if isinstance(network, Network):
        return network
    return _Encoding(network) if isinstance(network, Encoder) else Network(network)


def on_all_devices(network: Any) -> Network:
    """Adopts the network and shards its batches over all devices of this process."""
    adopted, devices = adopt(network), jax.local_devices()
    return adopted.across(devices) if len(devices) > 1 else adopted


def _chosen(kind, cls, patches, sparse):
    """Vectors of the given kind from the class token, patches and sparse tokens of one block."""
    if kind == DENSE:
        return patches
    if kind in ("cls", "cls_mean") and cls is None:
        raise InputError(f'tokens is "{kind}" but the network has no class token; use "mean"')
    if kind in ("sparse", SPARSE_TOKENS) and sparse is None:
        raise InputError('tokens is "sparse" but the network has no sparse tokens; use "image"')
    if kind == "cls":
        return cls
    if kind == SPARSE_TOKENS:
        return sparse
    if kind == "sparse":
        return sparse.mean(axis=1)
    mean = patches.mean(axis=(1, 2))
    return mean if kind == "mean" else jnp.concatenate([cls, mean], axis=-1)
