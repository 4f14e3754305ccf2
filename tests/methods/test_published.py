"""Presets and rows of the papers' tables have the papers' numbers."""

import pytest

from ssl_jax import config as config_lib
from ssl_jax import papers
from ssl_jax.methods.stellar.views import view_recipe
from tests import tiny

# config: "key=value ..."
PRESETS = {
    "cribo:vits16_in1k": "optim.batch_size=1024 optim.epochs=800 optim.lr=5e-4 optim.final_lr=1e-5"
    " cribo.position_weight=1.0 cribo.clusters=32 cribo.group=128 cribo.freeze_last_layer_epochs=1",
    "cribo:vits16_coco": "optim.batch_size=256 optim.epochs=300 optim.lr=5e-4 optim.clip_by='none'"
    " data.name='coco/2017' cribo.position_weight=2.0 cribo.clusters=64 cribo.group=32",
    "cribo:vitb16_in1k": "optim.batch_size=1024 optim.epochs=400 optim.lr=7.5e-4 optim.clip=0.3"
    " optim.final_lr=2e-6 optim.clip_by='tensor' cribo.position_weight=1.0 cribo.clusters=32"
    " cribo.group=64 cribo.norm_last_layer=True cribo.freeze_last_layer_epochs=3"
    " cribo.teacher_temperature_epochs=50 cribo.memory=25000 optim.warmup_epochs=10"
    " optim.weight_decay=0.04 optim.final_weight_decay=0.4 teacher.momentum=0.996"
    " views.global_scale=(0.25,1.0) views.local_count=0",
    "dinov2:vitl16": "dinov2.centering='ema' dinov2.separate_head=False model.patch=16"
    " optim.batch_size=2048 optim.base_batch=2048 optim.lr=0.005656854249 optim.epochs=200"
    " optim.warmup_epochs=20 dinov2.teacher_temperature_epochs=60"
    " dinov2.freeze_last_layer_epochs=2",
    "dinov2:vitl14": "dinov2.centering='sinkhorn' dinov2.separate_head=True views.local_size=98",
    "flsl:vits16": "optim.batch_size=512 optim.epochs=300 optim.lr=2.5e-4 optim.warmup_epochs=10"
    " optim.clip=3 optim.weight_decay=0.05 optim.final_weight_decay=0.5 teacher.momentum=0.996"
    " model.drop_path=0.1 model.cls=False model.position='sincos' views.flip=0 flsl.v=0.03"
    " flsl.eta=1 flsl.gamma=5 flsl.prototypes=4096 flsl.window=2 views.global_count=1"
    " views.local_count=2 flsl.sa_sharpness=1.9595918 flsl.ca_sharpness=3.9191836",
    "flsl:vits16_paper": "views.global_count=2 views.local_count=0 flsl.photometric='both'"
    " optim.batch_size=512 flsl.v=0.03 flsl.prototypes=4096",
    "flsl:vitb16": "flsl.sa_sharpness=3.9191836 flsl.ca_sharpness=7.8383672",
    "ibot:vits16": "ibot.cls.prototypes=8192 ibot.patch.prototypes=0 ibot.shared_head='all'"
    " ibot.cls.final_teacher_temperature=0.07 ibot.patch.final_teacher_temperature=0.07",
    "mae:vitb16": "mae.decoder_width=512 mae.decoder_depth=8 mae.decoder_heads=16",
    "massl:vits16": "massl.cls.memory=131072 massl.cls.anchors=16384 massl.cls.tasks=8"
    " optim.lr=5e-4 optim.warmup_epochs=0 optim.clip=3.0 optim.clip_by=tensor"
    " teacher.momentum=0.992 massl.teacher_temperature_epochs=30 views.global_scale=(0.32,1.0)"
    " views.local_scale=(0.05,0.32) views.mask=none model.drop_path=0.1",
    "massl:vitb16": "optim.lr=7.5e-4 optim.final_lr=2e-6 optim.warmup_epochs=10 optim.clip=3.0"
    " optim.clip_by=tensor teacher.momentum=0.996 massl.teacher_temperature_epochs=50"
    " views.global_scale=(0.32,1.0) views.local_scale=(0.05,0.32) views.mask=none"
    " model.drop_path=0.1",
    "sove:vits16": "sove.contributions='similarity' sove.cls.anchors=8192 sove.cls.members=9"
    " sove.patch.anchors=512",
    "stellar:vitb16": "optim.batch_size=2048 optim.epochs=150 optim.lr=1.5e-4 optim.final_lr=1.5e-4"
    " optim.warmup_epochs=0 optim.weight_decay=0.04 optim.final_weight_decay=0.04 optim.clip=3"
    " optim.clip_by='global' model.queries=16 views.global_count=8 views.local_count=8"
    " stellar.mask_ratio=0.8 stellar.prototypes=16384 stellar.head_hidden=2048"
    " stellar.head_out=256 stellar.temperature=0.12 stellar.target_temperature=0.06",
    "stellar:vitl16": "optim.batch_size=2048 optim.epochs=100 optim.lr=5e-5 optim.final_lr=5e-5",
    "stellar:vith14": "optim.batch_size=2048 optim.epochs=50 optim.lr=5e-5 optim.final_lr=5e-5",
}
ROWS = {
    "cribo/table12/lambda_pos0-K64": "cribo.position_weight=0",
    "cribo/table12/k-means-K4": "cribo.clustering='kmeans'",
    "cribo/table4/S1000": "cribo.memory=1000",
    "cribo/table5/L_g": "cribo.cross_view_weight=0 cribo.cross_image_weight=0",
    "cribo/table5/L_g+L_cv": "cribo.cross_view_weight=1 cribo.cross_image_weight=0",
    "cribo/table8/none": "cribo.cycle=False",
    "stellar/figure2/r24": "model.queries=24",
    "stellar/table5/D": "stellar.weights.cluster=0",
    "stellar/table5/E": "stellar.cls=False views.local_count=0",
    "stellar/table6/random-prior/first-stage": "stellar.targets='teacher' stellar.mask_ratio=0.6"
    " teacher.final_momentum=0.996 optim.epochs=150",
}


@pytest.mark.parametrize("name", [*PRESETS, *ROWS])
def test_numbers(name):
    config = config_lib.load(name) if name in PRESETS else papers.find(name).load()
    values = config_lib.flatten(config)
    for key, value in tiny.values((PRESETS | ROWS)[name]).items():
        same = value if isinstance(value, str) else pytest.approx(value, rel=1e-6)
        assert values[key] == same, key


@pytest.mark.parametrize("variant, kept", [("vitb16", 39), ("vith14", 51)])
def test_views_of_stellar_keep_a_fifth_of_their_patches(variant, kept):
    group = view_recipe(config_lib.load(f"stellar:{variant}"))["masked"]
    assert group.mask.visible(group.patches) == kept and group.count == 8
