"""A network with its weights: images in, features out."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike
from ml_collections import FrozenConfigDict

from ssl_jax import methods
from ssl_jax.data.values import check_range
from ssl_jax.methods import multicrop
from ssl_jax.methods.base import Features, Method
from ssl_jax.methods.frozen import of_network
from ssl_jax.models import vit, zoo
from ssl_jax.ops import numerics
from ssl_jax.ops.arguments import is_concrete

_ROWS = "rows"  # axis of a mesh whose devices share batches out


class Encoder:
    """The encoder of a method with weights: `encoder(images) -> Features`.

    config: the resolved config of the run the weights are of.
    params: the teacher's tree where the run has one, else the student's.
    constants: the method's frozen arrays, or None; some extras need them. A frozen teacher is
      dropped.
    step: of the run at which the weights were saved, or None; for people.
    features: `Method.features` of the network; None: those of the config's method.
    init: key -> weights of the untrained network; None: those of the config's method.
    mesh: of one axis, whose devices share every batch out; None: where the weights are. See
      `across`.
    adapters: low-rank adapters, which are added to the weights already, as `api.load` found them
      in a run; {}: none.
    """

    adapters: dict[str, Any] = {}

    def __init__(
        self,
        config: FrozenConfigDict,
        params: dict[str, Any],
        constants: Any = None,
        step: int | None = None,
        features: Callable | None = None,
        init: Callable | None = None,
        mesh: Mesh | None = None,
    ):
        self.config, self.params, self.step = config, params, step
        self.constants = of_network(constants)
        self.init, self.mesh = init, mesh
        self._features = bound(config).features if features is None else features

    def __repr__(self) -> str:
        return self.config.method + ("" if self.step is None else f", step {self.step}")

    def __call__(
        self,
        images: ArrayLike,
        *,
        layers: Sequence[int] = (),
        attention: bool = False,
        extras: bool = False,
    ) -> Features:
        """Features of images, compiled once for each shape.

        Args:
          images: [B, H, W, 3], uint8 or float in [0, 1]; sides are multiples of the patch.
          layers: blocks whose tokens are returned too, 0 = the first, -1 = what enters it.
          attention: return the attention weights of the last block too.
          extras: return what else the method has to show, by name (see the method's `features`).

        Raises:
          InputError: numbers outside [0, 1]; inside a traced function nobody can see them.
        """
        images, how = jnp.asarray(images), (self._features, tuple(layers), attention, extras)
        if images.dtype == jnp.uint8:
            images = images.astype(jnp.float32) / 255
        elif jnp.issubdtype(images.dtype, jnp.floating) and images.size and is_concrete(images):
            check_range(np.asarray(images), "the batch")
        if images.ndim == 4 and not len(images):  # no rows, of the shapes that one image gives
            one = jax.ShapeDtypeStruct((1, *images.shape[1:]), images.dtype)
            row = jax.eval_shape(_compiled(*how, None), self.params, one, self.constants)
            return jax.tree.map(lambda x: jnp.zeros((0, *x.shape[1:]), x.dtype), row)
        apply = _compiled(*how, self.mesh)
        if self.mesh is None:
            return apply(self.params, images, self.constants)
        count = len(images)
        padded = jnp.pad(images, [(0, -count % self.mesh.size), *[(0, 0)] * 3], mode="edge")
        features = apply(
            self.params,
            jax.device_put(padded, NamedSharding(self.mesh, PartitionSpec(_ROWS))),
            self.constants,
        )
        return features if len(padded) == count else jax.tree.map(lambda x: x[:count], features)

    def apply(
        self,
        params: dict[str, Any],
        images: jax.Array,
        *,
        layers: Sequence[int] = (),
        norm_layers: bool = True,
        keys: jax.Array | None = None,
        drop_path: float = 0.0,
    ) -> vit.Tokens:
        """Tokens of the vision transformer as a pure function of weights, for training it further.

        Args:
          params: of the vision transformer, as in `backbone`.
          images: [B, H, W, 3] float in [0, 1]; layers: as in a call. norm_layers: these after the
            final norm.
          keys: [B] typed PRNG keys, one per image; with them stochastic depth of rate `drop_path`.
        """
        network = vit.vit(dataclasses.replace(self.shape, drop_path=drop_path, mask_token=False))
        return network.apply(params, images, keys=keys, layers=layers, norm_layers=norm_layers)

    @property
    def backbone(self) -> dict[str, Any]:
        """The weights of the vision transformer alone."""
        return self.params.get("backbone", self.params)  # published weights have nothing else

    @property
    def shape(self) -> vit.ViTConfig:
        """Of the vision transformer."""
        return zoo.vit_config(self.config.model)

    @functools.cached_property
    def image_token(self) -> str:
        """What `Features.image` is: the class token ("cls"), the average of the patch tokens
        ("mean") or of the query tokens ("queries"); "" = nothing of these.

        Asked of the network, on two random images of 2 x 2 patches: a method may call anything the
        image.
        """
        side = 2 * self.shape.patch
        shape = (2, side, side, self.shape.in_channels)
        images = jax.random.uniform(numerics.key(0), shape, jnp.float32)
        image = self(images).image
        tokens = jax.jit(self.apply)(self.backbone, images)
        vectors = {"cls": tokens.cls, "mean": tokens.patches, "queries": tokens.queries}
        distance = {
            kind: jnp.abs(multicrop.global_token(tokens, kind) - image).max()
            for kind, token in vectors.items()
            if token is not None and token.shape[-1] == image.shape[-1]
        }
        nearest = min(distance, key=lambda kind: float(distance[kind]), default="")
        # bfloat16 may round the two passes in two ways.
        return nearest if nearest and distance[nearest] < 0.02 * jnp.abs(image).max() else ""

    def with_params(self, params: dict[str, Any]) -> "Encoder":
        """The same network with other weights; shares what is compiled."""
        return Encoder(
            self.config, params, self.constants, self.step, self._features, self.init, self.mesh
        )

    def across(self, devices: Sequence[jax.Device]) -> "Encoder":
        """The same network with its weights on each of these devices, which share every batch
        out."""
        mesh = Mesh(np.asarray(devices), (_ROWS,))
        weights = jax.device_put(
            (self.params, self.constants), NamedSharding(mesh, PartitionSpec())
        )
        return Encoder(
            self.config, weights[0], weights[1], self.step, self._features, self.init, mesh
        )

    @functools.cached_property
    def digest(self) -> str:
        """A hash of what the features depend on: weights, constants, method and shape."""
        config = self.config.to_dict()
        names = {name: config.get(name) for name in ("method", "model", config["method"])}
        digest = hashlib.sha256(json.dumps(names, sort_keys=True, default=str).encode())
        leaves, _ = jax.tree_util.tree_flatten_with_path((self.params, self.constants))
        for path, leaf in leaves:
            array = np.asarray(leaf)
            digest.update(f"{jax.tree_util.keystr(path)} {array.shape} {array.dtype}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def published(shape: vit.ViTConfig, params: dict[str, Any], name: str, image: str = "") -> Encoder:
    """An Encoder of published weights: a vision transformer that belongs to no method of ours.

    shape: of the network; params: of `vit.vit(shape)`. name: whose weights, for people. image: what
    is the image, see `multicrop.global_token`; "": the class token, or the average of the patch
    tokens where there is none.
    """
    computed = dataclasses.replace(shape, mask_token=False)  # which is for training alone
    features = _features_of(computed, image or ("cls" if shape.cls else "mean"))
    model = dict(size="custom", **dataclasses.asdict(shape))
    config = FrozenConfigDict(dict(method=name, model=model))
    return Encoder(config, params, features=features, init=vit.vit(computed).init)


@functools.lru_cache(maxsize=8)
def _features_of(shape: vit.ViTConfig, token: str) -> Callable:
    """One function for all networks of a shape, so that they share compiled programs."""
    of_method = multicrop.features_of(vit.vit(shape), shape, token)

    def features(params, images, **options):
        return of_method({"backbone": params}, images, **options)

    return features


@functools.lru_cache(maxsize=8)
def bound(config: FrozenConfigDict) -> Method:
    """One Method for all encoders of a frozen config, so that they share compiled programs."""
    return methods.make(config)


@functools.lru_cache(maxsize=32)
def _compiled(features, layers, attention, extras, mesh):
    def apply(params, images, constants):
        return features(
            params, images, layers=layers, attention=attention, extras=extras, constants=constants
        )

    if mesh is not None:
        rows, whole = PartitionSpec(_ROWS), PartitionSpec()
        apply = jax.shard_map(
            apply, mesh=mesh, in_specs=(whole, rows, whole), out_specs=rows, check_vma=False
        )
    return jax.jit(apply)
