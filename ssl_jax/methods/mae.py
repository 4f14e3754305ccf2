"""MAE: masked autoencoders (He et al. 2021). No teacher, no pairs of views.

Most patches of an image are dropped; a vision transformer encodes the others, and a small decoder,
given their tokens and a mask token in each gap, predicts the pixels that were dropped. Features
come from the encoder; the decoder is only used here and for pictures."""

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from ssl_jax import losses
from ssl_jax.config import InputError, check_choice
from ssl_jax.methods import base, multicrop
from ssl_jax.models import decoder, position, vit, zoo
from ssl_jax.views import masks, recipe


def defaults() -> ml_collections.ConfigDict:
    """The `mae` section of the config: the published values, the same for ViT-B, L and H."""
    c = ml_collections.ConfigDict()
    c.decoder_width = 512  # channels of the decoder's tokens
    c.decoder_depth = 8  # blocks
    c.decoder_heads = 16  # attention heads
    # each patch's target is normalised by its own mean and variance; False: table 1d, "pixel (w/o
    # norm)"
    c.normalize_pixels = True
    # the image's vector in `features`: "cls" (published linear probe) or "mean" (average of the
    # patch tokens)
    c.global_token = "cls"
    return c


def check(config) -> None:
    """Refuses impossible settings of the `mae` section, and views that MAE has no use for, by name.
    Raises InputError.
    """
    c, v = config.mae, config.views
    check_choice("mae.global_token", c.global_token, ("cls", "mean"))
    for key in ("decoder_width", "decoder_depth", "decoder_heads"):
        if c[key] < 1:
            raise InputError(f"mae.{key} is {c[key]}; it must be at least 1")
    unit = int(np.lcm(4, c.decoder_heads))
    if c.decoder_width % unit:
        raise InputError(
            f"mae.decoder_width is {c.decoder_width}; it must be a multiple of mae.decoder_heads"
            f" and of 4, as {unit}"
        )
    if c.global_token == "cls" and not config.model.cls:
        raise InputError(
            'mae.global_token is "cls" but model.cls is False; set model.cls=True or'
            ' mae.global_token="mean"'
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
            f"views.local_count is {v.local_count} but MAE has no local crops; set"
            " views.local_count=0"
        )
    if v.mask != "random" or v.mask_prob != 1 or v.mask_ratio[0] != v.mask_ratio[1]:
        raise InputError(
            f'views.mask is "{v.mask}", mask_ratio {v.mask_ratio}, mask_prob {v.mask_prob}; MAE'
            ' drops a fixed number of patches: use views.mask="random", views.mask_ratio=(r, r)'
            " and views.mask_prob=1"
        )
    group = views(config)["global"]
    kept = group.mask.kept(group.patches)
    if not 0 < kept < group.patches:
        what = "keeps none" if kept == 0 else "masks none"
        raise InputError(
            f"views.mask_ratio is {v.mask_ratio}, which {what} of the {group.patches} patches of a"
            " view; use about 0.75"
        )


def views(config) -> recipe.ViewRecipe:
    """One masked crop. Photometric draws only where the config asks for some (table 1e; published:
    none).
    """
    v = config.views
    wanted = v.jitter_prob or v.gray_prob or v.blur_prob[0]
    with recipe.named("views.mask_"):
        mask = masks.MaskRecipe(kind="random", ratio=tuple(v.mask_ratio), drop=True)
    with recipe.named("views."):
        photometric = (recipe.photometric(v, blur_prob=v.blur_prob[0]),) if wanted else ()
    with recipe.named("views.global_"):
        group = recipe.GroupRecipe(
            count=1,
            size=v.global_size,
            scale=tuple(v.global_scale),
            patch=config.model.patch,
            flip=v.flip,
            photometric=photometric,
            mask=mask,
        )
    return recipe.ViewRecipe((("global", group),))


def _encoder(config):
    return vit.vit(zoo.vit_config(config.model))


def _decoder(config):
    c, m = config.mae, config.model
    return decoder.decoder(
        m.width,
        m.patch**2 * 3,
        width=c.decoder_width,
        depth=c.decoder_depth,
        heads=c.decoder_heads,
        init_std=m.init_std,
        gelu=m.gelu,
        mask_token=True,
        cls=m.cls,
        remat=m.remat,
        dtype=m.dtype,
    )


def init(key, config):
    """Parameters of encoder and decoder; no carry."""
    key_encoder, key_decoder = jax.random.split(key)
    return {
        "backbone": _encoder(config).init(key_encoder),
        "decoder": _decoder(config).init(key_decoder),
    }, None


def _predict(params, images, keep, keys, config):
    """Predicted patches [B, n, patch * patch * 3] of images [B, H, W, 3] of which the encoder sees
    the patches `keep` [B, m].
    """
    tokens = _encoder(config).apply(params["backbone"], images, keep=keep, keys=keys)
    rows = (
        tokens.patches
        if tokens.cls is None
        else jnp.concatenate([tokens.cls[:, None], tokens.patches], axis=1)
    )
    return _decoder(config).apply(
        params["decoder"], rows, _codes(config, images.shape[1:3]), keep=keep
    )


def _codes(config, size: tuple[int, int]):
    """The decoder's sine-cosine position codes [n, decoder_width], resized like the encoder's for
    another image size.
    """
    m = config.model
    native, target = m.image_size // m.patch, (size[0] // m.patch, size[1] // m.patch)
    codes = jnp.asarray(position.sincos_2d(native, config.mae.decoder_width), jnp.float32)
    return position.resize_codes(
        codes, native, target, rule=m.position_resize, kernel=zoo.vit_config(m).resize_kernel
    )


def encode(params, teacher, batch, keys, config):
    """predicted [B, n, P], pixels [B, n, P] in [0, 1] (P = patch * patch * 3) and mask [B, n], True
    = dropped.
    """
    del teacher
    group = batch["global"]
    images = group.images[:, 0]
    return {
        "predicted": _predict(params, images, group.keep[:, 0], keys, config),
        "pixels": losses.patchify(images, config.model.patch),
        "mask": group.masks[:, 0],
    }


def objective(params, teacher, outputs, carry, key, progress, config):
    """Mean squared error on dropped patches, of pixels as the encoder sees them or normalised patch
    by patch (section 3).
    """
    del params, teacher, key, progress
    predicted, pixels, mask = (outputs[name] for name in ("predicted", "pixels", "mask"))
    terms = losses.mae(
        predicted, _standardised(pixels, config), mask, normalize_pixels=config.mae.normalize_pixels
    )
    loss = terms.pop("loss")
    metrics = {f"reconstruction_{name}": value for name, value in terms.items()} | {
        "psnr": _psnr(predicted, pixels, mask, config)
    }
    return loss, base.Output(carry, metrics)


def _channels(config):
    """Mean and standard deviation that the encoder normalises images with, for each value of a
    patch: [P] each.
    """
    c = zoo.vit_config(config.model)
    return tuple(
        jnp.tile(jnp.asarray(values, jnp.float32), c.patch**2) for values in (c.mean, c.std)
    )


def _standardised(pixels, config):
    mean, std = _channels(config)
    return (pixels - mean) / std


def _pictured(predicted, pixels, config):
    """Predictions as pixels in [0, 1]. Normalised ones say nothing of a patch's mean and contrast:
    those are taken from the image.
    """
    mean, std = _channels(config)
    if config.mae.normalize_pixels:
        _, shift, scale = losses.normalize_patches(_standardised(pixels, config))
        predicted = predicted * scale + shift
    return jnp.clip(predicted * std + mean, 0.0, 1.0)


def _psnr(predicted, pixels, mask, config):
    """Peak signal-to-noise ratio of the dropped patches, dB, mean over images (see `_pictured` on
    normalised pixels).
    """
    error = jnp.square(jax.lax.stop_gradient(_pictured(predicted, pixels, config)) - pixels).mean(
        axis=-1
    )
    by_image = (error * mask).sum(axis=-1) / mask.sum(axis=-1)
    return -10 * jnp.log10(jnp.maximum(by_image, 1e-10)).mean()


def features(params, images, config, *, layers=(), attention=False):
    """Encoder features of whole images; the decoder is not used."""
    return multicrop.features(
        _encoder(config),
        params["backbone"],
        images,
        kind=config.mae.global_token,
        patch=config.model.patch,
        layers=layers,
        attention=attention,
    )


def health(metrics, config):
    """Warns while predictions are no better than flat patches."""
    del config
    explained = metrics.get("reconstruction_explained")
    if explained is None or explained > 0.02:
        return []
    return [
        f"no reconstruction: {100 * explained:.1f} % of the variance inside masked patches is"
        " explained, no more than by flat patches; train longer, raise optim.lr, or lower"
        " views.mask_ratio"
    ]


def pictures(params, images, config):
    """{"reconstructions": Picture}: the image, what the encoder sees of it, and the prediction in
    its gaps. Masks never change.
    """
    images, patch = np.asarray(images, np.float32), config.model.patch
    grid = (images.shape[1] // patch, images.shape[2] // patch)
    mask_recipe = views(config)["global"].mask
    hidden = np.stack(
        [masks.draw(np.random.default_rng(i), mask_recipe, grid) for i in range(len(images))]
    )
    keep = np.stack([np.flatnonzero(~mask) for mask in hidden]).astype(np.int32)
    pixels = losses.patchify(images, patch)
    predict = jax.jit(lambda params, images, keep: _predict(params, images, keep, None, config))
    predicted = _pictured(predict(params, images, keep), pixels, config)
    masked = losses.unpatchify(jnp.where(hidden[..., None], 0.5, pixels), patch, grid)
    filled = losses.unpatchify(jnp.where(hidden[..., None], predicted, pixels), patch, grid)
    titles = ("image", f"{100 * hidden.mean():.0f} % masked", "reconstruction")
    rows = tuple(
        tuple(base.Panel(np.asarray(x), title=t) for x, t in zip(row, titles))
        for row in zip(images, masked, filled)
    )
    note = ", given the mean and contrast of each patch" if config.mae.normalize_pixels else ""
    return {"reconstructions": base.Picture(f"Masked patches reconstructed{note}", rows)}


METHOD = base.Method(
    name="mae",
    defaults=defaults,
    check=check,
    views=views,
    init=init,
    encode=encode,
    objective=objective,
    features=features,
    health=health,
    pictures=pictures,
)
