"""Published sizes, analytic FLOPs against XLA's count, and reading a config section."""

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest

from ssl_jax.models import vit, zoo

# Parameters without a classifier (timm 1.0, num_classes=0, 224 px); ViT-S/16 is the 21.67 M of the
# DINO paper.
PUBLISHED = {"ti": 5_524_416, "s": 21_665_664, "b": 85_798_656, "l": 303_301_632, "h": 630_764_800}


@pytest.mark.parametrize("size", PUBLISHED)
def test_parameter_counts(size):
    config = zoo.vit_config({"size": size, "patch": 0, "image_size": 224})
    assert config.patch == (14 if size == "h" else 16)
    assert zoo.count(jax.eval_shape(vit.vit(config).init, jax.random.key(0))) == PUBLISHED[size]


@pytest.mark.parametrize("kept, queries, height", [(None, 0, 96), (9, 4, 64)])
def test_flops_match_xla_up_to_elementwise_work(kept, queries, height):
    config = vit.ViTConfig(width=768, depth=2, heads=12, patch=16, image_size=96, queries=queries)
    model = vit.vit(config)
    params = jax.eval_shape(model.init, jax.random.key(0))
    images = jax.ShapeDtypeStruct((2, height, 96, 3), jnp.float32)
    keep = None if kept is None else jnp.zeros((2, kept), jnp.int32)
    cost = jax.jit(lambda p, x: model.apply(p, x, keep=keep)).lower(params, images).cost_analysis()
    analytic = 2 * zoo.forward_flops(config, height, 96, kept)
    assert analytic < cost["flops"] < 1.02 * analytic


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
    assert vit.vit(config) is vit.vit(
        zoo.vit_config(section, drop_path=0.0)
    )  # hashable, and one network per config
    custom = zoo.vit_config(dict(size="custom", width=96, depth=2, heads=3, patch=4, image_size=32))
    assert (custom.width, custom.depth, custom.heads) == (96, 2, 3)


def test_errors_name_key_and_choice():
    with pytest.raises(
        ValueError, match='model.size is "xl"; choose one of ti, s, b, l, h, custom'
    ):
        zoo.vit_config({"size": "xl"})
    with pytest.raises(ValueError, match='model.width is 200 but model.size = "s" means 384'):
        zoo.vit_config({"size": "s", "width": 200, "patch": 16, "image_size": 224})
    with pytest.raises(ValueError, match="model.colour is no field"):
        zoo.vit_config({"size": "s", "colour": 1, "patch": 16, "image_size": 224})
