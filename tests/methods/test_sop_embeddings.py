"""What SOP, SOVE and MaSSL share: temperatures, features, health, cost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import methods
from ssl_jax.methods.sop import embeddings
from tests.methods import embeddings_case as case

NAMES = ("sop", "sove", "massl")


@pytest.mark.parametrize("name", NAMES)
def test_temperature_rises_with_every_step_to_its_end(name):
    section = case.config_of(name)[name]

    def at(step):
        return embeddings.temperatures(section, case.PROGRESS._replace(step=jnp.int32(step)))

    values = [float(at(step)["teacher_temperature"]) for step in range(12)]
    np.testing.assert_allclose(
        values[:8],
        np.linspace(section.teacher_temperature, section.final_teacher_temperature, 8),
        rtol=1e-6,
    )
    np.testing.assert_allclose(values[8:], section.final_teacher_temperature, rtol=1e-6)
    assert at(0)["student_temperature"] == section.student_temperature


@pytest.mark.parametrize("name", NAMES)
def test_extras_are_embeddings_of_weights_with_a_head(name):
    method = methods.make(case.config_of(name))
    params, _ = jax.eval_shape(method.init, jax.random.key(0))
    images = jax.ShapeDtypeStruct((2, 16, 16, 3), jnp.float32)

    def extras(params, asked):
        features = jax.eval_shape(lambda p, x: method.features(p, x, extras=asked), params, images)
        return {name: x.shape for name, x in features.extras.items()}

    shapes = {"embedding": (2, case.WIDTH), "patch_embeddings": (2, 4, 4, case.WIDTH)}
    if name == "massl":
        del shapes["patch_embeddings"]
    assert extras(params, True) == shapes
    assert extras(params, False) == extras({"backbone": params["backbone"]}, True) == {}


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_masks_are_drawn_for_a_patch_loss_alone(weight):
    config = case.config_of("sop")
    config.sop.patch.weight = weight
    assert (methods.make(config).views["global"].mask is None) == (weight == 0)
