"""A configuration so small that a step takes milliseconds, for tests of the whole machine."""

import jax
import numpy as np

from ssl_jax import methods, settings
from ssl_jax.data import source
from ssl_jax.data.arrays import ArraySource
from ssl_jax.train import loop
from ssl_jax.views import recipe

# What each method changes in the tiny config: dotted key -> value.
_CHANGES = {
    "cribo": {
        "views.local_count": 0,
        "cribo.head_hidden": 32,
        "cribo.head_bottleneck": 16,
        "cribo.prototypes": 24,
        "cribo.teacher_temperature_epochs": 2.0,
        "cribo.clusters": 5,
        "cribo.memory": 20,
        "cribo.group": 4,
    },
    "dino": {
        "dino.head_hidden": 32,
        "dino.head_bottleneck": 16,
        "dino.prototypes": 24,
        "dino.teacher_temperature_epochs": 2.0,
    },
    "dinov2": {
        "views.mask": "block",
        "views.mask_ratio": (0.1, 0.5),
        "views.mask_prob": 0.5,
        "model.layer_scale": 0.1,
        "optim.clip_by": "global",
        "dinov2.head_hidden": 32,
        "dinov2.cls.bottleneck": 16,
        "dinov2.cls.prototypes": 24,
        "dinov2.patch.bottleneck": 12,
        "dinov2.patch.prototypes": 20,
        "dinov2.teacher_temperature_epochs": 2.0,
    },
    "finetune": {
        "data.kind": "photos",  # each has a label
        "views.global_count": 1,
        "views.local_count": 0,
        "finetune.classes": 17,
        "finetune.init_scale": 1.0,
        "finetune.layer_decay": 0.75,
        "finetune.randaugment.count": 0,  # the device crops
    },
    "flsl": {
        "model.cls": False,
        "model.position": "sincos",
        "flsl.head_hidden": 32,
        "flsl.head_bottleneck": 16,
        "flsl.prototypes": 24,
        "flsl.teacher_temperature_epochs": 2.0,
    },
    "ibot": {
        "views.mask": "block",
        "ibot.head_hidden": 32,
        "ibot.head_bottleneck": 16,
        "ibot.cls.prototypes": 24,
        "ibot.teacher_temperature_epochs": 2.0,
    },
    "mae": {
        "views.global_count": 1,
        "views.local_count": 0,
        "views.mask": "random",
        "views.mask_ratio": (0.75, 0.75),
        "model.position": "sincos",
        "mae.decoder_width": 16,
        "mae.decoder_depth": 1,
        "mae.decoder_heads": 2,
    },
    "massl": {
        "massl.head_hidden": 32,
        "massl.head_out": 16,
        "massl.teacher_temperature_epochs": 2.0,
        "massl.cls.anchors": 12,
        "massl.cls.tasks": 2,
        "massl.cls.memory": 40,
    },
    "sop": {
        "views.mask": "block",
        "views.mask_ratio": (0.3, 0.3),
        "views.mask_prob": 1.0,
        "sop.head_hidden": 32,
        "sop.head_out": 16,
        "sop.teacher_temperature_epochs": 2.0,
        "sop.cls.anchors": 12,
        "sop.cls.members": 3,
        "sop.cls.tasks": 2,
        "sop.cls.memory": 40,
        "sop.patch.anchors": 8,
        "sop.patch.members": 2,
        "sop.patch.tasks": 1,
        "sop.patch.memory": 20,
    },
    "sove": {
        "views.mask": "block",
        "views.mask_ratio": (0.3, 0.3),
        "views.mask_prob": 1.0,
        "sove.head_hidden": 32,
        "sove.head_out": 16,
        "sove.teacher_temperature_epochs": 2.0,
        "sove.cls.anchors": 12,
        "sove.cls.members": 3,
        "sove.cls.tasks": 2,
        "sove.cls.memory": 40,
        "sove.patch.anchors": 8,
        "sove.patch.members": 2,
        "sove.patch.tasks": 1,
        "sove.patch.memory": 20,
    },
    "stellar": {
        "model.queries": 3,
        "views.global_count": 2,
        "stellar.mask_ratio": 0.7,
        "stellar.prototypes": 24,
        "stellar.head_hidden": 32,
        "stellar.head_out": 16,
        "stellar.decoder_width": 16,
        "stellar.decoder_depth": 1,
        "stellar.decoder_heads": 2,
    },
}

# Settings with a carry of their own, or that couple the images of a batch in another way: name ->
# (method, changes).
VARIANTS = {
    "cribo_batch": ("cribo", {"cribo.normalize": "batch"}),
    # 120 objects: a memory that eight devices share.
    "cribo_cut": ("cribo", {"cribo.memory": 24}),
    "cribo_kmeans": ("cribo", {"cribo.clustering": "kmeans"}),
    "dinov2_ema": (
        "dinov2",
        {
            "model.registers": 2,
            "dinov2.centering": "ema",
            "dinov2.separate_head": False,
            "dinov2.patch.bottleneck": 16,
            "dinov2.patch.prototypes": 24,
        },
    ),
    "finetune_host": (
        "finetune",
        {
            "finetune.randaugment.count": 2,
            "finetune.repeats": 3,
            "finetune.hidden": 32,
            "finetune.norm": True,
            "finetune.average": False,
            "finetune.global_token": "mean",
        },
    ),
    "flsl_centered": (
        "flsl",
        {"flsl.targets": "centered", "views.global_count": 1},
    ),  # the tiny config has 2: the symmetric loss
    "ibot_mlp": ("ibot", {"ibot.shared_head": "mlp", "ibot.patch.prototypes": 20}),
    "sop_fixed": ("sop", {"sop.anchors": "fixed"}),
    "stellar_teacher": ("stellar", {"stellar.targets": "teacher"}),
}
# What the methods' own runs have, and a variant only would compile again.
_WITHOUT = {"model.depth": 1, "views.local_count": 0, "data.crop_on": "host"}


def config(name: str, *, mesh_data=1, mesh_fsdp=1, **changes):
    """A 2-block ViT of width 16 on 24 px pictures: 16 px global and 8 px local crops, batch 8, 4
    steps an epoch.

    `name`: a method, or one of the variants above.
    """
    name, variant = VARIANTS.get(name, (name, {}))
    c = settings.base_config(name)
    c.data.update(dict(kind="photo_collages", length=35, size=24, crop_on="device"))
    c.views.update(
        dict(
            global_size=16,
            local_size=8,
            local_count=2,
            global_scale=(0.4, 1.0),
            local_scale=(0.1, 0.4),
        )
    )
    c.model.update(
        dict(size="custom", width=16, depth=2, heads=2, patch=4, image_size=16, drop_path=0.1)
    )
    c.optim.update(dict(batch_size=8, epochs=3.0, warmup_epochs=1.0, lr=0.02))
    c.teacher.momentum = 0.9
    c.mesh.update(dict(data=mesh_data, fsdp=mesh_fsdp))
    c.checkpoint.every_steps = 3
    c.log.every_steps = 1
    c.update_from_flattened_dict(_CHANGES[name] | (_WITHOUT | variant if variant else {}))
    for key, value in changes.items():
        c.update_from_flattened_dict({key.replace("__", "."): value})
    return c


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
