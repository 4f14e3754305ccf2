"""How keys are declared and checked, config files, names, storing; and every rule that a config
must keep, in one table.
"""

import argparse
import functools
import math
import re
import sys

import pytest
from ml_collections import ConfigDict

from ssl_jax import api, evals, methods, settings
from ssl_jax import config as config_lib
from ssl_jax.cli import arguments
from ssl_jax.config import InputError, Key, key
from tests import tiny
from tests import toy as toy_module

pytestmark = pytest.mark.usefixtures("toy_method")

SOURCE = """
from ssl_jax import settings

def get_config(arg="small"):
    config = settings.base_config("toy")
    config.optim.epochs = {"small": 10, "large": 300}[arg]
    config.expected = {"knn": "75.3 (paper)"}
    return config
"""


def refused(function, *arguments) -> str:
    """The one line with which a call refuses its arguments."""
    with pytest.raises(InputError) as caught:
        function(*arguments)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


# --- the rules

# By config: changes, and behind an arrow what the message must name where that is not the first
# key that was changed. "toy": 224 px and 8 devices; "evals:TYPE": the same with one evaluation;
# "tiny:NAME": see tests/tiny.py; others: configs of the package.
REFUSED = {
    "toy": """
        seed=-1; seed=2147483648; max_nonfinite=-1; checkpoint.every_steps=0
        data.max_unreadable=1.5; data.workers=-1; data.workers=1000000000; data.size=1000000000
        data.length=1000000000000000000000000000000; evals.batch_size=0
        data.area_crops=True data.crop_on=device
        evals.dense.data.kind=photos; evals.knn.k=(); evals.knn.k=(0,10); evals.knn.temperature=0.0
        evals.knn.k=((0,0),(2,1))
        evals.knn.data.kind=photo_collages; evals.linear.lrs=(); log.every_steps=2147483648
        mesh.fsdp=3; mesh.data=16; model.size=S; model.width=256; model.width=1000000000
        model.depth=1000000000; model.queries=1000000000; model.in_channels=1; model.mean=(0.5,)
        model.std=(0.5,0.5); model.image_size=225; model.drop_path=1.0; model.mlp_ratio=1e30
        model.mlp_ratio=1e-30; model.init_std=1e30; model.position_std=-1.0
        model.position_std=1e30; optim.batch_size=100; optim.batch_size=10248; optim.lr=0.0
        optim.lr=nan; optim.lr=1e30; optim.epochs=0.0; optim.epochs=1e30; optim.warmup_epochs=-1.0
        optim.clip=0.0; optim.clip_by=norm; optim.beta2=1.0; optim.final_weight_decay=-1.0
        optim.extended=(50,); optim.extended=(200,150); teacher.momentum=1.01; toy.temperature=0.0
        toy.head.width=1000000000; views.global_size=230; views.local_size=100; views.local_size=8
        views.global_count=0; views.global_count=1000000000; views.local_count=-1
        views.local_count=1000000000; views.global_scale=(0.5,0.2); views.global_scale=(0.0,1.0)
        views.local_scale=(0.1,0.2,0.3); views.local_scale=(0.3,0.1); views.local_scale=(0.3,1.1)
        views.mask=grid; views.mask_ratio=(0.1,1.2); views.mask_ratio=(0.5,0.3)
        views.mask_ratio=(0.5,1.0); views.mask_prob=1.5; views.jitter=(0.4,0.4,0.2)
        views.jitter=(0.4,-0.4,0.2,0.1); views.jitter=(0.4,0.4,0.2,0.6); views.jitter=(1,'x')
        views.blur_prob=(1.0,0.1); views.blur_prob=(1.0,1.1,0.5); views.blur_radius=(1.0,1e9)
        views.blur_radius=(0.0,2.0); views.solarize_prob=-0.2; views.flip=1.1
        init_only=backbone -> init_from
        method='' -> method
        method=toi -> toi
        data.kind=folders -> folder
        data.kind=folder -> data.dir
        data.kind=tfds -> data.name
        data.kind=coco data.dir='' -> data.dir
        data.masks=m -> data.masks
        data.dir=x -> data.dir
        evals.knn.data.dir=x -> evals.knn.data.dir
        views.mask=blocks -> block
        model.size=custom -> model.width
        model.size=custom model.width=100 model.depth=2 model.heads=3 -> model.width
        model.size=custom model.width=90 model.depth=2 model.heads=3 model.position=sincos \
            -> sincos
        optim.batch_size=72 optim.chunks=2 -> optim.chunks
        optim.epochs=0.04 optim.warmup_epochs=0.0
        optim.epochs=5.0 -> optim.warmup_epochs
        optim.epochs=2.54 optim.warmup_epochs=2.56 -> optim.warmup_epochs
        mesh.data=3 -> optim.batch_size
        evals.tasks=('knn','denze') -> dense
        evals.tasks=('knn,linear',) -> evals.tasks
        evals.knn.data.kind=folder -> evals.knn.data.dir
        evals.dense.data.kind=tfds evals.dense.data.dir=x -> evals.dense.data.name
        toy.names=('a','d') -> toy.names
    """,
    "evals:box_knn": "evals.box_knn.data.kind=ade20k evals.box_knn.data.dir=x",
    "evals:decode": """
        evals.decode.width=30
        evals.decode.width=18 evals.decode.heads=4
        evals.decode.target=vq -> evals.decode.tokenizer
        evals.decode.target=vq evals.decode.tokenizer=none.npz
    """,
    "evals:dense": "evals.dense.data.kind=coco evals.dense.data.dir=x",
    "evals:knn": """
        evals.knn.data.kind=voc evals.knn.data.dir=x
        evals.knn.layers=4
        evals.knn.layers=13 evals.knn.tokens=mean
    """,
    "evals:linear": "evals.linear.crop_scale=(0.5,0.2); evals.linear.crop_scale=(0.5,)",
    "evals:rank": "evals.rank.data.kind=folder -> evals.rank.data.dir",
    "evals:reconstruct": """
        evals.reconstruct.fid=inception2048 evals.reconstruct.fid_weights=none.npz
    """,
    "evals:retrieval": "evals.retrieval.ground_truth=none.pkl",
    "evals:segment": """
        evals.segment.level=patch evals.segment.test=slide
        evals.segment.side=18
        evals.segment.layers=(0,1) evals.segment.head=fpn
        evals.segment.stride=64 evals.segment.side=32 evals.segment.test=slide
    """,
    "evals:stability": """
        evals.stability.scale=(0.5,); evals.stability.scale=(0.5,0.2); evals.stability.shifts=(0,)
        evals.stability.scale=(0.9,0.3)
    """,
    "evals:yolos": "evals.yolos.position_size=(48,50); evals.yolos.crop=32; evals.yolos.crop=16",
    "tiny:cribo": """
        cribo.clusters=33; cribo.clusters=0; cribo.memory=0; cribo.sinkhorn_iters=0; cribo.group=-1
        cribo.chunk=-1; cribo.position_weight=-1.0; cribo.start_epoch=-1; cribo.prototypes=1
        cribo.center_momentum=1.0; cribo.teacher_temperature=0.0; cribo.cluster_temperature=0.0
        cribo.clustering=kmean; cribo.normalize=device; cribo.counts=both
        cribo.cross_view_weight=-1.0; model.cls=False; views.global_count=1; views.local_count=2
        views.mask=block; views.global_count=3
        cribo.global_weight=0.0 cribo.cross_view_weight=0.0 cribo.cross_image_weight=0.0
        cribo.clustering=masks data.decode_size=16 -> data.decode_size
        cribo.same_classes=True data.cache=device -> data.cache
    """,
    "tiny:dino": """
        gram.weight=1.0 gram.teacher=ema
        dino.prototypes=0; optim.weight_decay=-0.1; optim.name=adam; views.mask=block
        model.cls=False -> dino.global_token
        data.kind=voc data.dir=
        data.kind=csv data.dir=
        data.kind=tfds data.name=
        data.kind=folder data.dir=d data.labels=l
        data.kind=photos data.masks=m
        data.kind=python:a.b data.masks=m
        data.kind=voc data.dir=d data.boxes=b
        data.kind=davis data.dir=d data.list=l
        data.kind=folder data.dir=d data.class_map=(0,300) -> data.class_map
        data.kind=folder data.dir=d data.class_map=('a',) -> data.class_map
        data.kind=folder data.dir=d data.class_map=((0,300),) -> data.class_map
    """,
    "tiny:dinov2": """
        dinov2.patch.weight=0.0; views.mask=none
        dinov2.separate_head=False -> dinov2.patch.prototypes
        dinov2.separate_head=False dinov2.patch.prototypes=24 -> dinov2.patch.bottleneck
        model.cls=False -> dinov2.global_token
        optim.backbone_layer_decay=0.8 -> dinov2.layer_decay
        views.mask_prob=0.0 -> views.mask
    """,
    "tiny:distill": """
        distill.teacher=; distill.teacher=no/such.safetensors; distill.size=25; distill.method=dino
        distill.family=dino3; distill.own_weight=-1.0; views.global_count=1
        distill.weight=0.0 distill.own_weight=0.0
        distill.image_weight=0.0 distill.patch_weight=0.0
        distill.cosine=0.0 distill.smooth_l1=0.0
        sop.cls.memory=11
        distill.method=flsl -> views.mask
    """,
    "tiny:finetune": """
        finetune.repeats=5; finetune.classes=1; finetune.smoothing=1.0
        finetune.randaugment.count=1; model.cls=False; optim.batch_size=7; views.global_count=2
        views.local_count=3; views.mask=block
        finetune.global_token=queries -> model.queries
        optim.backbone_layer_decay=0.8 -> finetune.layer_decay
        finetune.global_token=concat finetune.hidden=8 -> finetune.hidden
    """,
    "tiny:flsl": """
        flsl.window=5; flsl.local_window=3; flsl.window=0; flsl.photometric=eiter
        flsl.targets=sinkhorn; flsl.student_temperature=0.0; flsl.v=-0.1; flsl.sa_sharpness=-1.0
        flsl.prototypes=1; flsl.center_momentum=1.0; flsl.student_scale=(0.5,1.5); model.cls=True
        model.queries=1; model.queries=2; views.mask=block; views.global_count=3
    """,
    "tiny:ibot": """
        ibot.shared_head=some; ibot.global_token=clss; ibot.student_temperature=0.0
        ibot.cls.center_momentum=1.0; ibot.cls.weight=-1.0; ibot.cls.prototypes=1
        ibot.patch.prototypes=1; ibot.patch.prototypes=20; ibot.patch.teacher_temperature=-1.0
        ibot.patch.prototypes=12; views.mask=none
        ibot.cls.weight=0.0 ibot.patch.weight=0.0
        model.cls=False -> ibot.global_token
        views.mask_ratio=(0.0,0.0) -> mask_ratio
        views.mask_prob=0.0 -> views.mask
        views.mask_ratio=(0.01,0.05) -> views.mask
    """,
    "tiny:mae": """
        mae.decoder_width=18; mae.global_token=first; mae.decoder_depth=0; model.queries=2
        views.global_count=2; views.local_count=2; views.mask=block; views.mask_ratio=(0.5,0.75)
        views.mask_ratio=(0.0,0.0); views.mask_ratio=(0.999,0.999); views.mask=none
        views.mask_ratio=(0.95,0.95)
        mae.decoder_heads=3 -> mae.decoder_width
        model.cls=False -> mae.global_token
        views.mask_prob=0.5 -> mask_prob
    """,
    "tiny:massl": """
        massl.cls.memory=23; massl.cls.anchors=1; massl.cls.memory=0; views.mask=block
        views.global_count=1; views.global_count=3
        model.cls=False -> massl.global_token
        massl.cls.tasks=4 -> massl.cls.memory
    """,
    "tiny:sop": """
        sop.contributions=onehott; sop.pool=all; sop.anchors=none; sop.smoothing=1.0
        sop.final_teacher_temperature=0.0; sop.global_token=patch; sop.cls.memory=11
        sop.cls.memory=13; sop.cls.anchors=1; sop.cls.weight=-1.0; sop.patch.memory=7
        sop.patch.tasks=0; views.mask=none; views.global_count=3; views.global_count=1
        sop.cls.members=42 -> sop.cls.memory
        gram.weight=-1.0; gram.negatives=cut; gram.rise=(2,1)
        gram.weight=1.0 -> gram.teacher; gram.weight=1.0 gram.every=5 -> gram.teacher
        gram.weight=1.0 gram.teacher=ema gram.size=24 -> gram.size
        gram.weight=1.0 gram.every=1 gram.rise=(0,1) gram.size=18 -> gram.size
        gram.weight=1.0 gram.every=1 gram.rise=(0,1) gram.size=12 -> gram.size
        gram.weight=1.0 gram.every=1 gram.rise=(0,1) gram.over=batch gram.negatives=remove \
            optim.batch_size=1024 -> gram.over
        sop.cls.weight=0.0 sop.patch.weight=0.0
        views.mask_ratio=(0.01,0.01) -> mask_ratio
        model.cls=False -> sop.global_token
        sop.patch.anchors=21 -> sop.patch.memory
        views.mask_prob=0.0 -> views.mask
        views.mask_ratio=(0.0,0.0) -> views.mask
    """,
    "tiny:sove": """
        model.cls=False; sove.cls.memory=11; sove.cls.memory=13
        sove.patch.anchors=21 -> sove.patch.memory
    """,
    "tiny:stellar": """
        model.queries=0; model.cls=False; stellar.targets=ema; stellar.target=vqgan
        stellar.target=vq; stellar.matching=greedy; stellar.mask_focus=block; stellar.decay=none
        stellar.mask_ratio=0.95; stellar.mask_ratio=1.0; stellar.mask_ratio=-0.1
        stellar.temperature=0.0; stellar.target_temperature=-1.0; stellar.matching_epsilon=0.0
        stellar.localization_temperature=-0.1; stellar.prototypes=1; stellar.sinkhorn_iterations=0
        stellar.decoder_heads=3; stellar.weights.koleo=-1.0; views.mask=block
        stellar.decoder_width=15 stellar.decoder_heads=3 -> stellar.decoder_width
        stellar.cls=False -> views.local_count
        stellar.weights.align=0.0 -> views.local_count
        stellar.masked=False views.local_count=0 -> stellar.masked
        stellar.weights.reconstruction=0.0 stellar.weights.cluster=0.0 \
            stellar.weights.align=0.0 stellar.weights.koleo=0.0 -> stellar.weights
    """,
}
ACCEPTED = {
    "toy": """
        views.local_size=100 views.local_count=0
        views.global_scale=(1.0,1.0) views.mask=random views.mask_ratio=(0.0,0.0)
        views.global_count=1 views.flip=0 views.jitter=(0,0,0,0.5) views.blur_radius=(1e-3,1000)
        views.mask=block views.mask_ratio=(0.1,0.999) views.mask_prob=1
        optim.epochs=0.0 optim.steps=5000
        optim.epochs=5.0 optim.steps=7
        optim.clip=0.0 optim.clip_by=none
        mesh.fsdp=4
        mesh.data=1
        mesh.data=3 optim.batch_size=99
        evals.tasks=() evals.dense.data.kind=folder evals.knn.data.kind=folder
        data.kind=folder data.dir=x evals.knn.data.kind=folder
        model.size=custom model.width=192 model.depth=6 model.heads=6
        model.width=384
        expected.knn=anything expected.dense=nan
    """,
    "evals:rank": "evals.rank.data.kind=photo_collages",
    "evals:dense": """
        evals.dense.data.kind=folder evals.dense.data.dir=d evals.dense.data.class_map=((0,0),(9,1))
    """,
    "tiny:distill": """
        distill.weight=0.0 distill.teacher= distill.image_weight=0.0 distill.patch_weight=0.0
        distill.own_weight=0.0 views.mask=none views.global_count=1
    """,
    "tiny:ibot": """
        views.mask=none ibot.patch.weight=0.0
        ibot.shared_head=mlp ibot.patch.prototypes=12 views.local_count=0
    """,
    "tiny:stellar": "model.cls=False stellar.cls=False views.local_count=0",
}


def rows(table: dict) -> list:
    return [
        pytest.param(name, line.strip(), id=f"{name} {line.strip()}")
        for name, lines in table.items()
        for line in re.split("\n|; ", lines.strip())
    ]


@functools.cache
def start(name: str) -> ConfigDict:
    """The config of that name, which rows change."""
    kind, _, rest = name.partition(":")
    if kind == "tiny":
        return tiny.config(rest)
    if kind not in ("toy", "evals"):
        return config_lib.load(name)
    config = settings.base_config("toy")
    config.optim.epochs = 10
    evals.add(config, *([rest] if rest else ("knn", "linear", "rank", "dense")))
    config.evals.tasks = (rest,) if rest else ("knn", "linear", "dense")
    return config


def changed(name: str, changes: str) -> ConfigDict:
    config = ConfigDict(start(name).to_dict())
    for word in changes.split():
        path, _, text = word.partition("=")
        *sections, last = path.split(".")
        section = functools.reduce(lambda section, part: section[part], sections, config)
        with section.ignore_type():
            section[last] = tiny.value(text)
    return config


def check(config: ConfigDict) -> None:
    """What a run on eight devices checks before it allocates anything."""
    settings.validate(config, 8)
    methods.get(config.method).check(config)
    settings.resolve(config, num_records=10_240, num_devices=8)


@pytest.mark.parametrize(("name", "row"), rows(REFUSED))
def test_refused(name, row):
    changes, _, named = row.partition(" -> ")
    assert (named or changes.partition("=")[0]) in refused(check, changed(name, changes))


# Changes on the command line -> keys that they set, or what the refusal names.
PARSED = """
    data.class_map={0:0,255:1} evals.knn.k=(1,0) -> data.class_map=((0,0),(255,1)) evals.knn.k=(1,0)
    data.class_map={} evals.knn.k={0:0,2:1} -> data.class_map=() evals.knn.k=((0,0),(2,1))
    data.class_map={20,10} -> data.class_map
    evals.knn.k={20,10} -> evals.knn.k
    data.dir=/x -> data.kind=folder evals.knn.data.kind=photos evals.knn.data.dir=
    data.dir=/x.TSV -> data.kind=csv evals.knn.data.kind=photos
    data.name=cifar10 data.dir=/x -> data.kind=tfds evals.knn.data.kind=photos
    evals.knn.data.dir=/x -> data.kind=photos evals.knn.data.kind=folder \
        evals.dense.data.kind=photo_collages
    evals.all.data.dir=/x evals.dense.data.kind=voc -> data.kind=photos evals.knn.data.kind=folder \
        evals.dense.data.kind=voc evals.knn.data.dir=/x
    data.kind=photos data.dir=/x -> data.kind=photos
    evals.knn.data.size=64 evals.all.data.size=48 evals.all.epochs=5 -> evals.knn.data.size=64 \
        evals.dense.data.size=48 evals.linear.epochs=5
    evals.all.kk=1 -> evals.all.kk
"""


@pytest.mark.parametrize(("name", "row"), rows({"toy": PARSED}))
def test_what_the_command_line_sets(name, row):
    changes, _, expected = row.partition(" -> ")
    argv = [f"--config.{change}" for change in changes.split()]
    if "=" not in expected:
        assert expected in refused(arguments.changed, start(name), argv)
        return
    found = config_lib.flatten(arguments.changed(start(name), argv))
    values = tiny.values(expected)
    assert {key: found[key] for key in values} == values


@pytest.mark.parametrize(("name", "row"), rows(ACCEPTED))
def test_accepted(name, row):
    check(changed(name, row))


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_rules_change_is_accepted(name):
    check(start(name))


@pytest.mark.parametrize(
    ("path", "named"), [("expectd.knn", "expected"), ("sed", "seed"), ("optim.clp", "optim.clip")]
)
def test_an_unknown_key_names_the_nearest(path, named):
    values = start("toy").to_dict()
    *sections, last = path.split(".")
    functools.reduce(lambda at, part: at.setdefault(part, {}), sections, values)[last] = 1
    assert named in refused(settings.validate, ConfigDict(values), 8)


def test_a_section_that_lacks_a_key():
    values = start("toy").to_dict()
    del values["optim"]["clip"]
    assert "optim.clip" in refused(settings.validate, ConfigDict(values), 8)


def test_without_a_number_of_devices_the_mesh_is_not_checked():
    """A run of eight devices is evaluated on one."""
    config = changed("toy", "mesh.data=8")
    assert "mesh.data" in refused(settings.validate, config, 1)
    settings.validate(config, None)


# --- keys

# Key, values that it cannot have, and such as it can.
KEYS = {
    "above": (Key(1.0, "", above=0), (0.0, -1, math.nan, math.inf, "high", True), (1, 1e30)),
    "least": (Key(1, "", least=0), (-1, 1.5), (0,)),
    "two": (Key(2, "", least=2), (1,), (2,)),
    "share": (Key(0.5, "", least=0, most=1), (1.1,), (0, 1.0)),
    "decay": (Key(0.5, "", least=0, below=1), (1.0,), (0.999,)),
    "most": (Key(1, "", above=0, most=1024), (10**9,), (1024,)),
    "choice": (Key("block", "", choices=("none", "block")), ("blok",), ("none",)),
    "flag": (Key(True, ""), (1,), (False,)),
    "text": (Key("", ""), (1,), ("a,b",)),
    "pair": (
        Key((0.1, 0.2), "", above=0, most=1, ordered=True),
        ((0.5, 0.2), (0.0, 0.2), (0.1, 0.2, 0.3), 0.1, (0.1, math.nan)),
        ([0.2, 0.2], (1, 1)),
    ),
    "three": (Key((0.0, 0.5, 1.0), "", least=0, most=1, length=3), ((1, 1),), ((0, 1, 0.5),)),
    "several": (Key((10, 20), "", above=0), ((0, 10), ("a", "b")), ((), (1, 2, 3))),
    "names": (Key(("knn",), "", choices=("knn", "dense")), (("knn", "x"), ("knn,dense",)), ((),)),
    "any": (Key((), ""), (1,), ((1, "a"),)),
    "none": (Key((), "", element=0.5), (("a",),), ((), (1, 0.2))),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_key_refuses_and_accepts(name):
    declared, bad, good = KEYS[name]
    for each in bad:
        assert refused(declared.check, name, each).startswith(f"{name} is ")
        assert not declared.allows(each)
    for each in good:
        declared.check(name, each)


def test_a_section_with_other_defaults():
    section = dict(lr=key(0.1, "step", "epochs", above=0), cls=dict(anchors=key(8, "of tokens")))
    other = config_lib.with_defaults(section, {"cls.anchors": 16, "lr": 0.2})
    assert other["lr"] == key(0.2, "step", "epochs", above=0) and section["lr"].default == 0.1
    assert other["cls"]["anchors"].default == 16 and section["cls"]["anchors"].default == 8
    free = config_lib.flatten(config_lib.free_on_resume(section))
    assert all(entry.free for entry in free.values())
    assert not any(entry.free for entry in config_lib.flatten(section).values())


def test_a_config_of_declared_keys_takes_no_others():
    config = config_lib.build(toy_module.defaults())
    assert config.to_dict() == {"temperature": 0.1, "head": {"width": 64}, "names": ("a", "b")}
    for section in (config, config.head):
        with pytest.raises((AttributeError, KeyError)):
            section.new = 1


@pytest.mark.parametrize(("wrong", "right"), [(30, (16, 32)), (8, (16,))])
def test_multiples(wrong, right):
    said = refused(config_lib.check_multiple, "a.b", wrong, 16, "c")
    assert said.startswith(f"a.b is {wrong}") and all(str(number) in said for number in right)
    config_lib.check_multiple("a.b", 32, 16, "c")


@pytest.mark.parametrize(
    ("name", "options", "nearest"),
    [
        ("sopp", ("dino", "sop"), "sop"),
        ("zzz", ("dino", "sop"), None),
        ("max_unreadabl", ("data.max_unreadable", "optim.lr"), "data.max_unreadable"),
    ],
)
def test_the_nearest_name(name, options, nearest):
    assert config_lib.nearest(name, options) == nearest
    assert (nearest or name) in config_lib.unknown("key", name, options)


# --- config files


@pytest.fixture
def write(tmp_path):
    """Writes a config file and returns its path as text."""

    def write(source: str, name="mine.py") -> str:
        (tmp_path / name).write_text(source)
        return str(tmp_path / name)

    return write


def test_load_calls_get_config_with_the_argument(write):
    file = write(SOURCE)
    assert config_lib.load(file).optim.epochs == 10.0
    config = config_lib.load(f"{file}:large")
    assert (config.optim.epochs, config.toy.head.width) == (300.0, 64)
    in_colons = write(SOURCE, "C:mine.py")
    assert config_lib.load(in_colons).optim.epochs == 10.0
    assert config_lib.load(f"{in_colons}:large").optim.epochs == 300.0
    with pytest.raises(AttributeError):
        config.toy.new = 1


def test_the_modules_that_a_config_names_are_imported(write, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("one_of_test", "two_of_test", "three_of_test"):
        write("", f"{name}.py")
    file = write(SOURCE.replace("return", 'config.imports = ("one_of_test",)\n    return'))
    options = argparse.Namespace(config=[file], row=[], changes=[], imports=["two_of_test"])
    config = arguments.start(options).config
    assert config.imports == ("one_of_test", "two_of_test")
    assert set(config.imports) <= {*sys.modules}
    config.imports, config.seed = ("three_of_test",), -1
    assert "seed" in refused(api.prepare, config)
    assert "three_of_test" in sys.modules
    write("import gone_of_test", "broken_of_test.py")
    with pytest.raises(ModuleNotFoundError, match="gone"):
        methods.import_modules(["broken_of_test"])
    for name in ("os.path.gone", "a-b", 1):
        assert str(name) in refused(methods.import_modules, [name])


def test_a_config_imports_its_neighbours(write, tmp_path):
    write(SOURCE, "toy_neighbour_of_test.py")
    file = write("from .toy_neighbour_of_test import get_config\n")
    assert config_lib.load(f"{file}:large").optim.epochs == 300.0
    assert str(tmp_path) not in sys.path


BAD_FILES = {  # source, what the line names
    "no get_config": ("x = 1", "get_config"),
    "needs a variant": ("def get_config(arg): return {}", "mine.py:NAME"),
    "no config": ("def get_config(): return {}", "dict"),
    "misspelt key": (SOURCE.replace("optim.epochs", "optim.epoch"), "epochs"),
    "misspelt key of a method": (
        SOURCE.replace("config.optim.epochs", "config.toy.lock().tempratur"),
        "temperature",
    ),
    "key of another section": (
        SOURCE.replace("config.optim.epochs", "config.optim.max_unreadabl"),
        "data.max_unreadable",
    ),
    "misspelt top key": (SOURCE.replace("config.optim.epochs", "config.sed"), "seed"),
    "misspelt section": (SOURCE.replace("config.expected", "config.expectd"), "expected"),
    "unknown variant": (SOURCE.replace("[arg]", '["medium"]'), "medium"),
    "wrong type": (
        SOURCE.replace("config.expected =", 'config.optim.lr = "high"; config.expected ='),
        "lr",
    ),
    "no Python": ("def get_config(:", "line 1"),
    "zero byte": ("\0", "mine.py"),
    "missing import": ("import no_such_module", "no_such_module"),
    "missing name": ("from math import nothing", "nothing"),
}


@pytest.mark.parametrize(("source", "named"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_config_file_that_cannot_be_used(write, source, named):
    assert named in refused(config_lib.load, write(source), settings.keys())


def test_a_config_file_that_is_not_there_and_one_without_variants(write, tmp_path):
    file = write(SOURCE.replace('arg="small"', "").replace("[arg]", '["small"]'))
    assert config_lib.load(file).optim.epochs == 10.0
    assert "large" in refused(config_lib.load, f"{file}:large")
    assert file in refused(config_lib.load, file.replace("mine.py", "mien.py"))
    assert "toy.toml" in refused(config_lib.read_module, tmp_path / "toy.toml")


# --- storing


def test_json_round_trip(write):
    toy = config_lib.load(write(SOURCE))
    toy.update_from_flattened_dict({"evals.tasks": (), "optim.lr": 0.1 + 0.2})
    config = settings.resolve(toy, num_records=10_240, num_devices=8)
    again = config_lib.from_json(config_lib.to_json(config))
    assert again == config and hash(again) == hash(config)
    flat, kept = config_lib.flatten(again), config_lib.flatten(config)
    assert {k: type(v) for k, v in flat.items()} == {k: type(v) for k, v in kept.items()}
    settings.validate(again, 8)


BROKEN = ["", "{", "[1]", "[" * 100_000, '{"a":' * 90 + "1" + "}" * 90, '{"method": 1}', None]
BROKEN += ['{"model": []}', '{"a.b": 1}', '{"a": [{}]}']
NO_FILES = ["~nobody_of_this_name/a", "a\0b", "a" * 5000]


@pytest.mark.parametrize("text", [*BROKEN, *NO_FILES])
def test_broken_json_and_what_can_be_no_file(text):
    refused(config_lib.local if text in NO_FILES else config_lib.from_json, text)


def test_changed_keys():
    toy, other = start("toy"), changed("toy", "evals.batch_size=7 toy.head.width=8")
    assert config_lib.changed(toy, other) == ["evals.batch_size", "toy.head.width"]
    assert config_lib.changed(toy, toy) == []
    assert config_lib.changed({"a": None}, {"b": 1}) == ["a", "b"]
