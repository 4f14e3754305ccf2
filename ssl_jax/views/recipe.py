"""The random draws of a view recipe: crops, masks and photometric draws of an image, and the batch
that holds them.

Geometry and masks are drawn on the host in NumPy (`draw`), crops are made on the host (`crop_host`)
or on the device, and photometric draws on the device inside the step (`prepare`). Every
draw is a pure function of (seed, epoch, record index, group, view), so order, workers, restarts,
batch size and devices do not change a sample.

A batch is a dict: one `Group` per group name; "source_size" [B, 2] float32; "index" [B] and "epoch"
[B] int32; "replaced" [B] bool; and "source" [B, H, W, C] uint8 or float32 where the device crops.
If the recipe uses labels there is "label" [B] int32, to which `prepare` adds "partner" [B] int32,
the label of the image that this one is mixed with, and "share" [B] float32, that of its own image.
"""

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from ssl_jax.config import InputError
from ssl_jax.ops import numerics
from ssl_jax.views import boxes as boxes_lib
from ssl_jax.views import crops, erasing, masks, mixing, randaugment
from ssl_jax.views.configured import recipe_multicrop as recipe_multicrop
from ssl_jax.views.groups import GroupRecipe, ViewRecipe
from ssl_jax.views.groups import max_masked as max_masked
from ssl_jax.views.photometric import augment, uniforms

STREAM = 0x76696577  # "view": keeps these draws apart from other users of Philox with the same seed
_AUGMENT = 0x61756764  # "augd": RandAugment's, so that it leaves crops and masks as they are
_ERASING, _MIXING = 0x65726173, 0x6D697867  # "eras" and "mixg", folded into keys


class Group(NamedTuple):
    """The views of one size of a batch."""

    # [B, V, H, W, C] from the host, None if the device crops; float32 in [0, 1] after
    # `prepare`
    images: Any
    boxes: Any  # [B, V, 4] float32 (y, x, height, width) in source pixels
    flips: Any  # [B, V] bool, horizontal
    masks: Any = None  # [B, V, n] bool, True = masked, or None
    # [B, V, m] int32, indices of the patches kept, rising; only where masked patches are dropped
    keep: Any = None
    # [B, V, n] uint8, classes of the patches, 255 = ignore; only where the recipe asks for them
    labels: Any = None


class Draws(NamedTuple):
    """The host's draws for one group of one record."""

    boxes: np.ndarray  # [V, 4] float32 (y, x, height, width) in source pixels
    flips: np.ndarray  # [V] bool
    masks: np.ndarray | None  # [V, n] bool
    keep: np.ndarray | None  # [V, m] int32


def draw(
    recipe: ViewRecipe, *, seed: int, epoch: int, index: int, source_size: Sequence[int]
) -> dict[str, Draws]:
    """Draws boxes, flips and masks of one record; a pure function of its arguments.

    Args:
      seed, epoch, index: integers >= 0: of the run, of the pass over the data, of the record.
      source_size: (height, width) of the image, pixels.

    Raises:
      InputError: a negative seed, epoch or index.
    """
    if min(seed, epoch, index) < 0:
        raise InputError(f"seed {seed}, epoch {epoch} and index {index} must not be negative")
    # A counter-based generator: the key and the upper half of the counter name the stream, so no
    # state is carried over.
    rng = np.random.Generator(np.random.Philox(key=[seed, epoch], counter=[0, 0, STREAM, index]))
    height, width = int(source_size[0]), int(source_size[1])
    geometry: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, group in recipe.groups:
        outer = recipe[group.inside].size if group.inside else None
        rows, coins = [], []
        for _ in range(group.count):
            area = (outer, outer) if outer else (height, width)
            rows.append(
                boxes_lib.random_resized_crop(rng, *area, scale=group.scale, ratio=group.ratio)
            )
            coins.append(rng.random() < group.flip)
        boxes, flips = np.array(rows, np.float32), np.array(coins)
        if outer:
            around, mirrored = (x[np.arange(group.count) % len(x)] for x in geometry[group.inside])
            boxes = boxes_lib.compose(around, boxes, (outer, outer), mirrored).astype(np.float32)
            flips = flips ^ mirrored
        if group.reuse:
            shared = min(group.count, recipe[group.reuse].count)
            for mine, other in zip((boxes, flips), geometry[group.reuse], strict=True):
                mine[:shared] = other[:shared]
        geometry[name] = boxes, flips
    # Masks come last, so that switching them on leaves the crops of all groups as they are.
    return {name: Draws(*geometry[name], *_draw_masks(rng, group)) for name, group in recipe.groups}


def _draw_masks(rng, group: GroupRecipe):
    """(masks [V, n] or None, keep [V, m] or None) of one record."""
    if group.mask is None:
        return None, None
    masked = np.stack([masks.draw(rng, group.mask, group.grid) for _ in range(group.count)])
    if not group.mask.drop:
        return masked, None
    return masked, np.stack([np.flatnonzero(~mask) for mask in masked]).astype(np.int32)


def crop_host(
    recipe: ViewRecipe,
    image: np.ndarray,
    draws: dict[str, Draws],
    *,
    area: bool = False,
    seed: int = 0,
    epoch: int = 0,
    index: int = 0,
) -> dict[str, np.ndarray]:
    """Crops the drawn views from an image [H, W, C] and applies RandAugment in groups that use it:
    {group: [V, size, size, C]}; see `crops.crops_host`.

    area: see `crops.crops_host`. seed, epoch, index: as of `draw`; RandAugment is a pure function
    of them.
    """
    cut = {
        name: crops.crops_host(
            image, draws[name].boxes, group.size, draws[name].flips, area, group.bilinear
        )
        for name, group in recipe.groups
    }
    if not any(group.randaugment for _, group in recipe.groups):
        return cut
    rng = np.random.Generator(np.random.Philox(key=[seed, epoch], counter=[0, 0, _AUGMENT, index]))
    for name, group in recipe.groups:
        if group.randaugment:
            views = [randaugment.augment(view, group.randaugment, rng) for view in cut[name]]
            cut[name] = np.stack(views)
    return cut


def prepare(recipe: ViewRecipe, batch: dict, seed: int) -> dict:
    """Makes the views of a batch: crops them if the host did not, applies the photometric draws,
    erases and mixes. For use inside jit, on the whole batch.

    Each view's key is fold_in(key(seed), epoch, index, group, view); that of a batch which is mixed
    is fold_in(key(seed), epoch, index) of its first row.

    Args:
      batch: see the module; images uint8 [0, 255] or float32 [0, 1]. A NaN in a float32 source
        reaches all views of its record and no other record.

    Returns:
      the batch with float32 images [B, V, H, W, C] in [0, 1] (except erased rectangles), without
      "source", and with "partner" and "share" if it has labels.
    """
    out = {name: value for name, value in batch.items() if name != "source"}
    source = _rows(batch["source"]) if "source" in batch else None
    keys = _keys(recipe, batch["epoch"], batch["index"], seed)
    u = uniforms(keys)
    share = jnp.ones((), jnp.float32)
    first = 0
    for name, group in recipe.groups:
        views = batch[name]
        if views.images is None:
            assert source is not None
            rows = crops.crops_device(source, views.boxes, views.flips, group.size)
        else:
            rows = _rows(views.images)
        if group.photometric:
            rows = augment(rows, u[:, first : first + group.count], group.photometric)
        if group.erasing:
            erase_keys = jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, _ERASING)))(
                keys[:, first : first + group.count]
            )
            rows = erasing.erase(rows, erase_keys, group.erasing)
        if recipe.mix:
            rows, share = mixing.mix(rows, _batch_key(batch, seed), recipe.mix)
        first += group.count
        out[name] = views._replace(images=jnp.swapaxes(rows, -1, -2))
    if recipe.classes:
        label = batch["label"]
        out["partner"] = mixing.partners(label) if recipe.mix else label
        out["share"] = jnp.broadcast_to(share, label.shape)
    return out


def _batch_key(batch, seed: int):
    """One key for all of a batch, from its first row."""
    key = numerics.key(seed)
    for part in (_MIXING, batch["epoch"][0], batch["index"][0]):
        key = jax.random.fold_in(key, part)
    return key


def _rows(images):
    """[..., H, W, C] uint8 or float -> float32 [..., H, C, W] in [0, 1]."""
    scale = 1 / 255 if images.dtype == jnp.uint8 else 1.0
    return jnp.swapaxes(images, -1, -2).astype(jnp.float32) * scale


def _keys(recipe: ViewRecipe, epoch, index, seed: int):
    """Keys [B, V] of the views of all groups in turn, from epoch [B] and index [B]. A group is
    marked by its name.
    """
    group = [
        zlib.crc32(name.encode()) for name, recipe_ in recipe.groups for _ in range(recipe_.count)
    ]
    view = [v for _, recipe_ in recipe.groups for v in range(recipe_.count)]
    shape = (len(epoch), len(view))
    parts = (epoch[:, None], index[:, None], np.array(group, np.uint32), np.array(view, np.uint32))
    path = jnp.stack(
        [jnp.broadcast_to(jnp.asarray(part).astype(jnp.uint32), shape) for part in parts]
    )
    root = jnp.broadcast_to(numerics.key(seed), shape)
    # A loop over the chain, because threefry is slow to compile and this compiles it once.
    return jax.lax.scan(
        lambda keys, part: (jax.vmap(jax.vmap(jax.random.fold_in))(keys, part), None), root, path
    )[0]


def abstract_batch(
    recipe: ViewRecipe,
    batch_size: int,
    source_size: Sequence[int] | None,
    crop_on: str,
    dtype: DTypeLike = np.uint8,
    channels: int = 3,
) -> dict:
    """Shapes and dtypes of a batch as it comes from the loader, as jax.ShapeDtypeStruct.

    Args:
      source_size: (height, width) of the images, pixels; only used where the device crops.
      crop_on: "host" or "device"; dtype, channels: of the source images, uint8 or float32.

    Raises:
      InputError: crop_on is neither, or the device shall crop images of different sizes.
    """
    if crop_on not in ("host", "device"):
        raise InputError(f'data.crop_on is "{crop_on}"; use "host" or "device"')
    if crop_on == "device" and source_size is None:
        raise InputError(
            'data.crop_on="device" needs images of one size; set data.size or data.crop_on="host"'
        )

    def shape(*dims, of=np.float32):
        return jax.ShapeDtypeStruct((batch_size, *dims), of)

    batch = {
        "source_size": shape(2),
        "index": shape(of=np.int32),
        "epoch": shape(of=np.int32),
        "replaced": shape(of=np.bool_),
    }
    if recipe.classes:
        batch["label"] = shape(of=np.int32)
    if crop_on == "device":
        assert source_size is not None
        batch["source"] = shape(*source_size, channels, of=dtype)
    for name, group in recipe.groups:
        v, n, mask = group.count, group.patches, group.mask
        batch[name] = Group(
            images=shape(v, group.size, group.size, channels, of=dtype)
            if crop_on == "host"
            else None,
            boxes=shape(v, 4),
            flips=shape(v, of=np.bool_),
            masks=shape(v, n, of=np.bool_) if mask else None,
            keep=shape(v, mask.visible(n), of=np.int32) if mask and mask.drop else None,
            labels=shape(v, n, of=np.uint8) if recipe.patch_labels else None,
        )
    return batch


def abstract_views(recipe: ViewRecipe, batch_size: int, channels: int = 3) -> dict:
    """Shapes and dtypes of a batch as `prepare` makes it, as jax.ShapeDtypeStruct."""
    batch = abstract_batch(recipe, batch_size, None, "host", channels=channels)
    for name, _ in recipe.groups:
        images = jax.ShapeDtypeStruct(batch[name].images.shape, np.float32)
        batch[name] = batch[name]._replace(images=images)
    if recipe.classes:
        batch["partner"] = batch["label"]
        batch["share"] = jax.ShapeDtypeStruct((batch_size,), np.float32)
    return batch
