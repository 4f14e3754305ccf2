"""The meters and warnings that methods share."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.methods import base


def test_spread_is_zero_for_a_collapsed_and_one_for_a_centred_batch():
    unit = jnp.eye(4)
    assert float(base.spread(jnp.stack([unit[0]] * 5))) == 0.0
    assert float(base.spread(jnp.stack([unit[0], -unit[0]]))) == 1.0
    # Four orthogonal vectors: the mean has squared norm 1/4. Views are averaged, not pooled.
    assert float(base.spread(unit)) == pytest.approx(math.sqrt(0.75), rel=1e-6)
    both = jnp.stack([unit, jnp.broadcast_to(unit[0], (4, 4))])
    assert float(base.spread(both)) == pytest.approx(math.sqrt(0.75) / 2, rel=1e-6)


def test_spread_stays_finite_in_half_precision():
    x = jnp.asarray(np.full((3, 8), 8**-0.5), jnp.bfloat16)
    assert np.isfinite(base.spread(x)) and base.spread(x).dtype == jnp.float32


@pytest.mark.parametrize(("value", "warned"), [(0.01, True), (0.5, False)])
def test_spread_warnings(value, warned):
    warnings = base.spread_warnings({"embedding_spread": value})
    assert [text.split(":")[0] for text in warnings] == ["collapse of embeddings"] * warned


@pytest.mark.parametrize(
    ("each", "marginal", "kinds"),
    [
        (2.0, 5.0, []),
        (0.1, 0.1, ["collapse of cls targets"]),
        (math.log(1024), math.log(1024), ["uniform cls targets"]),
    ],
)
def test_assignment_warnings(each, marginal, kinds):
    row = {"cls_teacher_entropy": each, "cls_marginal_entropy": marginal}
    assert [text.split(":")[0] for text in base.assignment_warnings(row, "cls", 1024)] == kinds


def test_rows_without_the_meters_give_no_warnings():
    assert base.assignment_warnings({"loss": 1.0}, "cls", 1024) == []
    assert base.spread_warnings({}) == []
