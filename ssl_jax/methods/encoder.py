"""A network with its weights: images in, features out."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike
from ml_collections import FrozenConfigDict

from ssl_jax import methods
from ssl_jax.config import InputError, check_choice
from ssl_jax.data.values import check_range
from ssl_jax.methods import multicrop
from ssl_jax.methods.base import Features, Method
from ssl_jax.methods.frozen import of_network
from ssl_jax.models import vit, zoo
from ssl_jax.ops import numerics
from ssl_jax.ops.arguments import is_concrete

_ROWS = "rows"  # mesh axis over which batches are sharded


class Encoder:
    """The encoder of a method with weights: `encoder(images) -> Features`.

    config: the resolved config of the weights' run.
    params: the teacher's tree if the run has a teacher, else the student's.
    constants: the method's frozen arrays, or None; some extras need them. A frozen teacher is
      dropped.
    step: the step at which the weights were saved, or None; for display.
    features: `Method.features` of the network; None: that of the config's method.
    init: key -> weights of the untrained network; None: that of the config's method.
    mesh: a mesh of one axis over which every batch is sharded, see `across`; None: batches run
      where the weights are.
    adapters: low-rank adapters that `api.load` read from a run and merged into the weights; {}:
      none.
    notes: of published weights, what was changed or left out, and what to check.
    image: of published weights, the image vector, see `published`.
    """

    adapters: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    image: str = ""

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
          layers: blocks whose tokens are also returned, 0 = the first, -1 = its input.
          attention: also return the attention weights of the last block.
          extras: also return the method's extras by name (see the method's `features`).

        Raises:
          InputError: a path in place of images; values outside [0, 1], which are not checked
            inside a traced function.
        """
        if isinstance(images, str | PurePath):
            raise InputError(
                f"an encoder takes arrays of images, but got the path {images}; ssl_jax.embed and"
                " `ssl-jax embed` read folders"
            )
        images, options = jnp.asarray(images), (self._features, tuple(layers), attention, extras)
        if images.dtype == jnp.uint8:
            images = images.astype(jnp.float32) / 255
        elif jnp.issubdtype(images.dtype, jnp.floating) and images.size and is_concrete(images):
            check_range(np.asarray(images), "the batch")
        if images.ndim == 4 and not len(images):  # no rows, of the shapes that one image gives
            image = jax.ShapeDtypeStruct((1, *images.shape[1:]), images.dtype)
            row = jax.eval_shape(_compiled(*options, None), self.params, image, self.constants)
            return jax.tree.map(lambda x: jnp.zeros((0, *x.shape[1:]), x.dtype), row)
        apply = _compiled(*options, self.mesh)
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
        """Tokens of the vision transformer as a pure function of its weights, for further training.

        Args:
          params: weights of the vision transformer, like `backbone`.
          images: [B, H, W, 3] float in [0, 1]. layers: as in `__call__`. norm_layers: whether to
            apply the final norm to them.
          keys: [B] typed PRNG keys, one per image, for stochastic depth of rate `drop_path`; None:
            no stochastic depth.
        """
        network = vit.vit(dataclasses.replace(self.shape, drop_path=drop_path, mask_token=False))
        return network.apply(params, images, keys=keys, layers=layers, norm_layers=norm_layers)

    @property
    def backbone(self) -> dict[str, Any]:
        """The weights of the vision transformer."""
        return self.params.get("backbone", self.params)  # published weights are the backbone alone

    @property
    def shape(self) -> vit.ViTConfig:
        """The config of the vision transformer."""
        return zoo.vit_config(self.config.model)

    @functools.cached_property
    def image_token(self) -> str:
        """The definition of `Features.image`, see `multicrop.global_token`; "" = none of these.

        Methods define the image vector freely, so the network is run on two random images of 2 x 2
        patches and its vector is compared with each token.
        """
        side = 2 * self.shape.patch
        shape = (2, side, side, self.shape.in_channels)
        images = jax.random.uniform(numerics.key(0), shape, jnp.float32)
        image = self(images).image
        tokens = jax.jit(self.apply)(self.backbone, images)
        distance = {
            kind: jnp.abs(vector - image).max()
            for kind in multicrop.global_tokens(self.shape)
            if (vector := multicrop.global_token(tokens, kind)).shape == image.shape
        }
        nearest = min(distance, key=lambda kind: float(distance[kind]), default="")
        # In bfloat16, the two passes may round differently.
        return nearest if nearest and distance[nearest] < 0.02 * jnp.abs(image).max() else ""

    def with_params(self, params: dict[str, Any]) -> "Encoder":
        """The same network with other weights; shares compiled programs."""
        return self._like(params, self.constants, self.mesh)

    def across(self, devices: Sequence[jax.Device]) -> "Encoder":
        """The same network with its weights replicated over these devices and every batch sharded
        over them."""
        mesh = Mesh(np.asarray(devices), (_ROWS,))
        weights = jax.device_put(
            (self.params, self.constants), NamedSharding(mesh, PartitionSpec())
        )
        return self._like(weights[0], weights[1], mesh)

    def _like(self, params, constants, mesh):
        """The same network with other weights, on other devices."""
        other = Encoder(self.config, params, constants, self.step, self._features, self.init, mesh)
        other.image = self.image
        return other

    @functools.cached_property
    def digest(self) -> str:
        """A hash of everything that determines the features: weights, constants, method, shape."""
        config = self.config.to_dict()
        names = {name: config.get(name) for name in ("method", "model", config["method"])}
        names |= {"image": self.image} if self.image else {}
        digest = hashlib.sha256(json.dumps(names, sort_keys=True, default=str).encode())
        leaves, _ = jax.tree_util.tree_flatten_with_path((self.params, self.constants))
        for path, leaf in leaves:
            array = np.asarray(leaf)
            digest.update(f"{jax.tree_util.keystr(path)} {array.shape} {array.dtype}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def published(
    shape: vit.ViTConfig,
    params: dict[str, Any],
    name: str,
    image: str = "",
    notes: Sequence[str] = (),
) -> Encoder:
    """An Encoder with published weights of a vision transformer.

    shape: config of the network. params: parameters of `vit.vit(shape)`. name: for display. image:
    the image vector, see `multicrop.global_token`; "": the class token, or the mean of the patch
    tokens if there is none. notes: see `Encoder`.

    Raises InputError for an image vector that the network does not have.
    """
    computed = dataclasses.replace(shape, mask_token=False)  # only training uses it
    image = image or ("cls" if shape.cls else "mean")
    check_choice(f"{name}: image", image, multicrop.global_tokens(shape))
    features = _features_of(computed, image)
    model = dict(size="custom", **dataclasses.asdict(shape))
    config = FrozenConfigDict(dict(method=name, model=model))
    encoder = Encoder(config, params, features=features, init=vit.vit(computed).init)
    encoder.notes, encoder.image = tuple(notes), image
    return encoder


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
