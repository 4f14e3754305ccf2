"""Published sizes, FLOPs of the literature, and the section of a config."""

import dataclasses

import jax
import ml_collections
import numpy as np
import pytest

from ssl_jax import config as config_lib
from ssl_jax.models import lora, vit, zoo

# Parameters without a classifier (timm 1.0, num_classes=0, 224 px); ViT-S/16 is the 21.67 M of the
# DINO paper.
PUBLISHED = {"ti": 5_524_416, "s": 21_665_664, "b": 85_798_656, "l": 303_301_632, "h": 630_764_800}


@pytest.mark.parametrize("size", PUBLISHED)
def test_parameter_counts(size):
    config = zoo.vit_config({"size": size, "patch": 0, "image_size": 224})
    assert config.patch == (14 if size == "h" else 16)
    assert zoo.count(jax.eval_shape(vit.vit(config).init, jax.random.key(0))) == PUBLISHED[size]


def test_flops_of_vit_b():
    """17.58 G multiply-adds of ViT-B/16 at 224 px in the literature, classifier (0.77 M)
    included.
    """
    config = zoo.vit_config({"size": "b", "patch": 16, "image_size": 224})
    np.testing.assert_allclose(zoo.forward_flops(config, 224, 224) / 2e9, 17.56, atol=0.02)


def test_section_and_overrides():
    section = ml_collections.ConfigDict(
        dict(size="s", width=0, patch=8, image_size=64, drop_path=0.1, mean=[0.5, 0.5, 0.5])
    )
    config = zoo.vit_config(section, drop_path=0.0)
    assert (config.width, config.depth, config.heads, config.patch) == (384, 12, 6, 8)
    assert config.drop_path == 0.0 and config.mean == (0.5, 0.5, 0.5)
    assert vit.vit(config) is vit.vit(zoo.vit_config(section, drop_path=0.0))  # hashable


def test_the_section_has_every_field_but_what_the_method_sets():
    section = config_lib.build(zoo.defaults())
    fields = {field.name for field in dataclasses.fields(vit.ViTConfig)}
    assert set(section) == fields - {"mask_token"} | {"size"} | set(lora.defaults())
    plain = vit.ViTConfig(width=384, depth=12, heads=6, patch=16, image_size=224)
    assert zoo.vit_config(section) == plain
    section.update(norm_eps=1e-12, mean=(0.5,) * 3, std=(0.5,) * 3, registers=4, layer_scale=1e-5)
    changed = zoo.vit_config(section)
    assert (changed.norm_eps, changed.mean, changed.registers) == (1e-12, (0.5,) * 3, 4)
