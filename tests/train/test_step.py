"""What a step costs, counted by tracing it."""

import pytest

from ssl_jax import api
from ssl_jax.models import zoo
from ssl_jax.train import step
from tests import tiny


def flops(name, **changes) -> float:
    run = api.prepare(tiny.config(name, **changes))
    return step.flops_per_image(run.config, run.abstract)


def test_flops_are_those_of_encoders_and_heads():
    """DINO by hand: student views forward and backward, two of the teacher forward, heads."""
    run = api.prepare(tiny.config("dino"))
    shape = zoo.vit_config(run.config.model)
    sides = {name: (group.count, group.size) for name, group in run.method.views.groups}
    student = sum(n * zoo.forward_flops(shape, side, side) for n, side in sides.values())
    # No gradient flows into the images, so the patch embedding has two products, not three.
    embedded = sum(n * 2 * side**2 * 3 * shape.width for n, side in sides.values())
    count, side = sides["global"]
    teacher = count * zoo.forward_flops(shape, side, side)
    head = 2 * (16 * 32 + 32 * 32 + 32 * 16 + 16 * 24)
    views = sum(n for n, _ in sides.values())
    by_hand = 3 * student - embedded + teacher + (3 * views + count) * head
    assert flops("dino") == pytest.approx(by_hand, rel=0.02)


def test_what_is_dropped_or_recomputed_does_not_count():
    most, half = (flops("mae", views__mask_ratio=(ratio, ratio)) for ratio in (0.75, 0.5))
    assert most < 0.8 * half
    assert flops("dino", model__remat="block") == flops("dino", optim__chunks=2) == flops("dino")
