"""MAE: masked autoencoders (He et al. 2021). No teacher, no pairs of views.

Most patches of an image are dropped and a vision transformer encodes the others. A small decoder
receives their tokens, with a mask token in each gap, and predicts the dropped pixels. Features come
from the encoder; only training and pictures use the decoder.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from ssl_jax import losses, ops
from ssl_jax.config import InputError, key
from ssl_jax.methods import base, multicrop, section_keys
from ssl_jax.models import decoder, position, zoo
from ssl_jax.views import configured, masks, recipe


def defaults() -> dict:
    """The section `mae` of the config: the published values, the same for ViT-B, L and H."""
    normalize = (
        'normalise each patch of the target by its own mean and variance; False = table 1d, "pixel'
        ' (w/o norm)"'
    )
    return dict(
        decoder_width=key(512, "width of the decoder", least=1, most=65536),
        decoder_depth=key(8, "number of blocks of the decoder", least=1, most=1000),
        decoder_heads=key(16, "number of attention heads of the decoder", least=1, most=4096),
        normalize_pixels=key(True, normalize),
        global_token=section_keys.token_key(),
    )


def check(config: ConfigDict) -> None:
    """Raises InputError for settings that contradict each other, and for views that MAE does not
    use."""
    c, v = config.mae, config.views
    section_keys.check_token(config)
    unit = math.lcm(4, c.decoder_heads)
    if c.decoder_width % unit:
        raise InputError(
            f"mae.decoder_width is {c.decoder_width}; it must be a multiple of mae.decoder_heads "
            f"and of 4, as {unit}"
        )
    if config.model.queries:
        raise InputError(
            f"model.queries is {config.model.queries} but MAE has none; set model.queries=0"
        )
    if v.global_count != 1:
        raise InputError(
            f"views.global_count is {v.global_count}; MAE reconstructs 1 view of each image"
        )
    if v.local_count:
        raise InputError(
            f"views.local_count is {v.local_count} but MAE has no local crops; "
            "set views.local_count=0"
        )
    if v.mask != "random" or v.mask_prob != 1 or v.mask_ratio[0] != v.mask_ratio[1]:
        raise InputError(
            f'views.mask is "{v.mask}", mask_ratio {v.mask_ratio}, mask_prob {v.mask_prob}; MAE '
            'drops a fixed number of patches: use views.mask="random", views.mask_ratio=(r, r) and '
            "views.mask_prob=1"
        )
    views = view_recipe(config)
    patches, masked = views["global"].patches, recipe.max_masked(views, "global")
    if not 0 < masked < patches:
        problem = "keeps none" if masked == patches else "masks none"
        raise InputError(
            f"views.mask_ratio is {v.mask_ratio}, which {problem} of the {patches} patches of a "
            "view; use about 0.75"
        )


def view_recipe(config: ConfigDict) -> recipe.ViewRecipe:
    """One masked crop, with the config's photometric augmentations (table 1e; published: none)."""
    v = config.views
    dropped = masks.MaskRecipe(kind="random", ratio=tuple(v.mask_ratio), drop=True)
    draws = configured.photometric_of_one(v)
    group = configured.group_of(v, config.model.patch, count=1, photometric=draws, mask=dropped)
    return recipe.ViewRecipe((("global", group),))


class Outputs(NamedTuple):
    """predicted [B, n, P], pixels [B, n, P] in [0, 1] (P = patch * patch * C) and mask [B, n],
    True = dropped."""

    predicted: jax.Array
    pixels: jax.Array
    mask: jax.Array


def make(config: ConfigDict) -> base.Method:
    """MAE with the networks and settings of a resolved config."""
    c, m = config.mae, config.model
    views, shape = view_recipe(config), zoo.vit_config(m)
    backbone = multicrop.encoders(m)
    decode = decoder.decoder(
        m.width,
        m.patch**2 * m.in_channels,
        width=c.decoder_width,
        depth=c.decoder_depth,
        heads=c.decoder_heads,
        init_std=m.init_std,
        gelu=m.gelu,
        mask_token=True,
        cls=m.cls,
        remat=m.remat,
        attention=m.attention,
        dtype=m.dtype,
    )
    # The encoder's normalisation for each value of a patch: [P] each.
    channels = np.array([shape.mean, shape.std], np.float32)
    mean, std = np.tile(channels, m.patch**2)

    def init(key):
        """Encoder and decoder; no carry."""
        key_encoder, key_decoder = jax.random.split(key)
        params = {
            "backbone": backbone.student.init(key_encoder),
            "decoder": decode.init(key_decoder),
        }
        return params, None

    def predict(encoder, params, images, keep, keys=None):
        """Predicted patches [B, n, P] of images; the encoder sees the patches `keep` [B, m]."""
        tokens = encoder.apply(params["backbone"], images, keep=keep, keys=keys)
        rows = tokens.patches
        if tokens.cls is not None:
            rows = jnp.concatenate([tokens.cls[:, None], rows], axis=1)
        return decode.apply(params["decoder"], rows, codes(images.shape[1:3]), keep=keep)

    def codes(size):
        """The decoder's sine-cosine position embeddings [n, decoder_width], resized for another
        image size like the encoder's."""
        native, grid = m.image_size // m.patch, (size[0] // m.patch, size[1] // m.patch)
        codes = jnp.asarray(position.sincos_2d(native, c.decoder_width), jnp.float32)
        return position.resize_codes(
            codes, native, grid, rule=m.position_resize, kernel=shape.resize_kernel
        )

    def encode(params, teacher, constants, views_of, keys, progress):
        group = views_of["global"]
        images = group.images[:, 0]
        predicted = predict(backbone.student, params, images, group.keep[:, 0], keys)
        return Outputs(predicted, ops.patchify(images, m.patch), group.masks[:, 0])

    def objective(params, teacher, outputs, carry, key, progress):
        """Mean squared error on dropped patches, of pixels normalised like the encoder's input or
        per patch (section 3)."""
        predicted, pixels, mask = outputs
        terms = losses.mae(
            predicted, (pixels - mean) / std, mask, normalize_pixels=c.normalize_pixels
        )
        loss = terms.pop("loss")
        metrics = {f"reconstruction_{name}": value for name, value in terms.items()}
        error = jnp.square(jax.lax.stop_gradient(as_pixels(predicted, pixels)) - pixels)
        by_image = (error.mean(axis=-1) * mask).sum(axis=-1) / mask.sum(axis=-1)
        metrics["psnr"] = -10 * jnp.log10(jnp.maximum(by_image, 1e-10)).mean()
        return loss, base.Output(carry, metrics)

    def as_pixels(predicted, pixels):
        """Predictions as pixels in [0, 1]. For normalised targets, mean and contrast of each patch
        are taken from the image."""
        if c.normalize_pixels:
            _, shift, scale = losses.normalize_patches((pixels - mean) / std)
            predicted = predicted * scale + shift
        return jnp.clip(predicted * std + mean, 0.0, 1.0)

    def show(params, images, features, *_):
        """Extras: hidden [B, n], masks that do not depend on the run, and reconstruction [B, n, P],
        predicted pixels in [0, 1] of all patches."""
        grid, mask = features.patches.shape[1:3], views["global"].mask
        assert mask is not None  # see `check`
        hidden = [masks.draw(np.random.default_rng(i), mask, grid) for i in range(len(images))]
        keep = np.stack([np.flatnonzero(~row) for row in hidden]).astype(np.int32)
        predicted = predict(backbone.teacher, params, images, keep)
        shown = as_pixels(predicted, ops.patchify(images, m.patch))
        return {"hidden": np.stack(hidden), "reconstruction": shown}

    def health(metrics):
        """Warns if predictions are no better than constant patches."""
        explained = metrics.get("reconstruction_explained")
        if explained is None or explained > 0.02:
            return []
        return [
            f"no reconstruction: {100 * explained:.1f} % of the variance inside masked patches is "
            "explained, no more than by flat patches; train longer, raise optim.lr, or lower "
            "views.mask_ratio"
        ]

    return base.Method(
        views=views,
        init=init,
        encode=encode,
        objective=objective,
        features=multicrop.features_of(backbone.teacher, m, c.global_token, show),
        health=health,
    )
