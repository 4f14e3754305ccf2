"""A configuration so small that a step takes milliseconds, for tests of the whole machine."""

import ast
import math
import pathlib
import tempfile

import jax
import numpy as np
from ml_collections import ConfigDict

from ssl_jax import config as config_lib
from ssl_jax import methods, settings
from ssl_jax.convert import own
from ssl_jax.data import source
from ssl_jax.data.arrays import ArraySource
from ssl_jax.train import loop
from ssl_jax.views import recipe

# What each method changes in the tiny config; a key that begins with a dot is of its own section.
_CHANGES = {
    "cribo": """
        views.local_count=0 .head_hidden=32 .head_bottleneck=16 .prototypes=24
        .teacher_temperature_epochs=2.0 .clusters=5 .memory=20 .group=4
    """,
    "dino": ".head_hidden=32 .head_bottleneck=16 .prototypes=24 .teacher_temperature_epochs=2.0",
    "dinov2": """
        views.mask=block views.mask_ratio=(0.1,0.5) views.mask_prob=0.5 model.layer_scale=0.1
        optim.clip_by=global .head_hidden=32 .cls.bottleneck=16 .cls.prototypes=24
        .patch.bottleneck=12 .patch.prototypes=20 .teacher_temperature_epochs=2.0
    """,
    "distill": """
        views.mask=block views.mask_ratio=(0.3,0.3) views.mask_prob=1.0 .teacher=random .size=24
        sop.head_hidden=32 sop.head_out=16 sop.teacher_temperature_epochs=2.0 sop.cls.anchors=12
        sop.cls.members=3 sop.cls.tasks=2 sop.cls.memory=40 sop.patch.anchors=8 sop.patch.members=2
        sop.patch.tasks=1 sop.patch.memory=20
    """,
    "finetune": """
        data.kind=photos views.global_count=1 views.local_count=0 .classes=17 .init_scale=1.0
        .layer_decay=0.75 .randaugment.count=0
    """,
    "flsl": """
        model.cls=False model.position=sincos .head_hidden=32 .head_bottleneck=16 .prototypes=24
        .teacher_temperature_epochs=2.0
    """,
    "ibot": """
        views.mask=block .head_hidden=32 .head_bottleneck=16 .cls.prototypes=24
        .teacher_temperature_epochs=2.0
    """,
    "mae": """
        views.global_count=1 views.local_count=0 views.mask=random views.mask_ratio=(0.75,0.75)
        model.position=sincos .decoder_width=16 .decoder_depth=1 .decoder_heads=2
    """,
    "massl": """
        .head_hidden=32 .head_out=16 .teacher_temperature_epochs=2.0 .cls.anchors=12 .cls.tasks=2
        .cls.memory=40
    """,
    "sop": """
        views.mask=block views.mask_ratio=(0.3,0.3) views.mask_prob=1.0 .head_hidden=32 .head_out=16
        .teacher_temperature_epochs=2.0 .cls.anchors=12 .cls.members=3 .cls.tasks=2 .cls.memory=40
        .patch.anchors=8 .patch.members=2 .patch.tasks=1 .patch.memory=20
    """,
    "sove": """
        views.mask=block views.mask_ratio=(0.3,0.3) views.mask_prob=1.0 .head_hidden=32 .head_out=16
        .teacher_temperature_epochs=2.0 .cls.anchors=12 .cls.members=3 .cls.tasks=2 .cls.memory=40
        .patch.anchors=8 .patch.members=2 .patch.tasks=1 .patch.memory=20
    """,
    "stellar": """
        model.queries=3 views.global_count=2 .mask_ratio=0.7 .prototypes=24 .head_hidden=32
        .head_out=16 .decoder_width=16 .decoder_depth=1 .decoder_heads=2
    """,
}

# Settings with a carry of their own, or that couple the images of a batch in another way: the
# method, and what it changes.
VARIANTS = {
    "cribo_batch": "cribo .normalize=batch",
    # 120 objects: a memory that eight devices share.
    "cribo_cut": "cribo .memory=24",
    # Objects and neighbours by masks, in a memory that eight devices share.
    "cribo_masks": "cribo .memory=24 .clustering=masks .same_classes=True .cycle=False",
    "cribo_kmeans": "cribo .clustering=kmeans",
    "dinov2_ema": """
        dinov2 model.registers=2 .centering=ema .separate_head=False .patch.bottleneck=16
        .patch.prototypes=24
    """,
    "dinov2_gram": """
        dinov2 .centering=ema gram.weight=2.0 gram.rise=(0,6) gram.first_update=2 gram.every=3
        gram.updates=2 gram.size=24 model.position=rope model.rope_rescale=2.0 model.mlp=swiglu
        model.qkv_bias=qv model.registers=2
    """,
    "distill_alone": "distill .own_weight=0.0 views.mask=none",
    "dinov2_lora": "dinov2 model.lora=2 model.depth=2 model.scan=True",
    "finetune_host": """
        finetune .randaugment.count=2 .repeats=3 .hidden=32 .norm=True .average=False
        .global_token=mean
    """,
    "flsl_centered": "flsl .targets=centered views.global_count=1",
    "ibot_mlp": "ibot .shared_head=mlp .patch.prototypes=20",
    "sop_fixed": "sop .anchors=fixed",
    "stellar_teacher": "stellar .targets=teacher",
}
# What the methods' own runs have, and others only would compile again.
_SMALL = "model.depth=1 views.local_count=0 data.crop_on=host"
_BASE = """
    data.kind=photo_collages data.length=35 data.size=24 data.crop_on=device views.global_size=16
    views.local_size=8 views.local_count=2 views.global_scale=(0.4,1.0) views.local_scale=(0.1,0.4)
    model.size=custom model.width=16 model.depth=2 model.heads=2 model.patch=4 model.image_size=16
    model.drop_path=0.1 optim.batch_size=8 optim.epochs=3.0 optim.warmup_epochs=1.0 optim.lr=0.02
    teacher.momentum=0.9 checkpoint.every_steps=3 log.every_steps=1
"""


def value(text: str):
    """Of what stands in a table behind a key: a number, a tuple, a word."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return math.nan if text == "nan" else text


def values(text: str, section: str = "") -> dict:
    """{key: value} of "key=value key=value"."""
    pairs = (word.split("=", 1) for word in text.split())
    return {section * key.startswith(".") + key: value(x) for key, x in pairs}


def config(name: str, *, small=False, mesh_data=1, mesh_fsdp=1, **changes):
    """A 2-block ViT of width 16 on 24 px pictures: 16 px global and 8 px local crops, batch 8, 4
    steps an epoch.

    name: a method, or one of the variants above. small: one block and global crops alone, cut on
    the host, as all variants have: compiled in about half the time.
    """
    name, _, variant = VARIANTS.get(name, name).strip().partition(" ")
    c = settings.base_config(name)
    text = f"{_BASE} {_CHANGES[name]} {_SMALL if variant or small else ''} {variant}"
    c.update_from_flattened_dict(values(text, name))
    c.mesh.update(dict(data=mesh_data, fsdp=mesh_fsdp))
    for key, x in changes.items():
        c.update_from_flattened_dict({key.replace("__", "."): x})
    if c.model.lora and not c.init_from:
        c.init_from = _weights(c)
    return c


_FOLDER = tempfile.TemporaryDirectory()


def _weights(c) -> str:
    """A file of random weights, as adapters need some that stay."""
    plain = ConfigDict(c.to_dict())
    plain.model.lora = 0
    plain.mesh.update(dict(data=1, fsdp=1))
    plain = resolved(plain)
    params, _ = methods.make(plain).init(jax.random.key(5))
    file = pathlib.Path(_FOLDER.name, f"{c.method}.safetensors")
    own.write(file, own.Saved(config_lib.to_json(plain), params, None, {}))
    return str(file)


def check(c) -> None:
    """Refuses a config as a run does: its keys first, then what the method cannot do."""
    settings.validate(c, num_devices=None)
    methods.get(c.method).check(c)


def resolved(c, num_records=35):
    """The config as a run on one device has it."""
    return settings.resolve(c, num_records=num_records, num_devices=1)


def random_batch(views: recipe.ViewRecipe, count=4) -> dict:
    """Random images of 24 px with the draws of their views, as the loader hands them over where
    the device crops.
    """
    size = (24, 24)
    drawn = [recipe.draw(views, seed=0, epoch=0, index=i, source_size=size) for i in range(count)]
    draws = jax.tree.map(lambda *leaves: np.stack(leaves), *drawn)
    return {name: recipe.Group(None, *group) for name, group in draws.items()} | {
        "source": np.random.default_rng(0).random((count, *size, 3), np.float32),
        "source_size": np.full((count, 2), 24, np.float32),
        "index": np.arange(count, dtype=np.int32),
        "epoch": np.zeros(count, np.int32),
        "replaced": np.zeros(count, bool),
    }


def float_source(data):
    """The images of a section `data` in [0, 1], through which a test can inject NaN."""
    records = [source.make_source(data)[i] for i in range(data.length)]
    images = np.stack([record["image"] for record in records]).astype(np.float32) / 255
    labels = [record["label"] for record in records] if "label" in records[0] else None
    return ArraySource(images, labels)


def batches(run: loop.Run, count: int) -> list[dict]:
    """The first `count` batches of the run, on the host."""
    stream = loop.open_loader(run)
    try:
        return [next(stream) for _ in range(count)]
    finally:
        stream.close()


def identical(a, b) -> bool:
    """Whether two trees have the same leaves to the bit (PRNG keys included)."""

    def raw(x):
        return np.asarray(
            jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        )

    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(raw(x).tobytes() == raw(y).tobytes() for x, y in pairs)
