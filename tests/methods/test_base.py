"""The meters that methods share, and the warnings of each."""

import math

import jax.numpy as jnp
import pytest

from ssl_jax import methods
from ssl_jax.methods import base
from tests import tiny


def test_spread_is_zero_for_a_collapsed_and_one_for_a_centred_batch():
    unit = jnp.eye(4)
    assert float(base.spread(jnp.stack([unit[0]] * 5))) == 0.0
    assert float(base.spread(jnp.stack([unit[0], -unit[0]]))) == 1.0
    # Four orthogonal vectors: the mean has squared norm 1/4. Views are averaged, not pooled.
    assert float(base.spread(unit)) == pytest.approx(math.sqrt(0.75), rel=1e-6)
    both = jnp.stack([unit, jnp.broadcast_to(unit[0], (4, 4))])
    assert float(base.spread(both)) == pytest.approx(math.sqrt(0.75) / 2, rel=1e-6)


def kinds_of(name, row):
    """Of the warnings of a method's tiny config."""
    health = methods.make(tiny.resolved(tiny.config(name))).health
    return [text.split(":")[0] for text in health(row)]


@pytest.mark.parametrize("name", methods.METHODS)
def test_health_watches_every_distribution(name):
    meanings = methods.make(tiny.resolved(tiny.config(name))).meanings
    top = {column: math.log(x.classes) for column, x in meanings.items() if x.classes}
    fine = {column: (0.9 if "marginal" in column else 0.5) * x for column, x in top.items()}
    always = ["slow average"] if name == "finetune" else []  # its tiny config is too short
    assert kinds_of(name, fine) == always
    for column in (column for column in top if column.endswith("_teacher_entropy")):
        prefix = column.removesuffix("_teacher_entropy")
        collapsed = {f"{prefix}_{x}_entropy": 0.02 * top[column] for x in ("teacher", "marginal")}
        assert kinds_of(name, fine | collapsed) == [f"collapse of {prefix} targets"]
        alike = {column: 0.5 * top[column], f"{prefix}_marginal_entropy": 0.52 * top[column]}
        assert kinds_of(name, fine | alike) == [f"collapse of {prefix} targets"]
        assert kinds_of(name, fine | {column: 0.99 * top[column]}) == [f"uniform {prefix} targets"]


@pytest.mark.parametrize(
    ("names", "row", "kind"),
    [
        ("cribo flsl massl sop sove", {"embedding_spread": 0.01}, "collapse of embeddings"),
        ("cribo flsl massl sop sove", {"embedding_spread": 0.5}, ""),
        ("cribo", {"objects_per_image": 0.5}, "hardly any objects"),
        ("cribo", {"memory_fill": 1.0, "bootstrapping_ratio": 0.0}, "no bootstrapping"),
        ("cribo", {"memory_fill": 0.5, "bootstrapping_ratio": 0.0}, ""),
        ("mae", {"reconstruction_explained": 0.001}, "no reconstruction"),
        ("stellar", {"match_contrast": 0.99}, "similar tokens"),
        ("stellar", {"match_contrast": 0.5}, ""),
    ],
)
def test_health_names_what_else_is_wrong(names, row, kind):
    for name in names.split():
        assert kinds_of(name, row) == [kind] * bool(kind), name
