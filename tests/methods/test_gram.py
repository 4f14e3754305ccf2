"""Gram anchoring as a term of the methods: which places are compared, by whose weights, when the
Gram teacher changes, what it starts from.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import api, losses, methods
from ssl_jax.methods import gram
from ssl_jax.methods.frozen import NAME as FROZEN
from ssl_jax.models import lora
from ssl_jax.ops import numerics
from ssl_jax.train import loop, step
from ssl_jax.views import recipe
from tests import tiny
from tests.losses.reference import close

PLAIN = {"model__depth": 1, "model__drop_path": 0.0, "views__mask_prob": 0.0}
PLAIN |= {"views__local_count": 0}


def made(name, **changes):
    changes = {f"gram__{key}": value for key, value in changes.items()}
    c = tiny.resolved(tiny.config(name, **PLAIN, **changes))
    return c, methods.make(c)


def progress(done, config):
    return step.progress_at(jnp.int32(done), config)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cribo", "dinov2", "flsl", "ibot", "sop"])
def test_the_term_is_of_the_same_places_by_the_frozen_weights(name):
    """Of all methods, from crops of another size, without their colours and masks."""
    c, method = made(name, weight=3.0, every=1, size=24)
    _, bare = made(name)
    large = "student" if name == "flsl" else "global"
    keys = jax.random.split(numerics.key(2), 4)

    @jax.jit
    def terms(batch):
        views = recipe.prepare(method.views, batch, c.seed)
        (params, carry), (other, _) = (method.init(numerics.key(seed)) for seed in (0, 1))
        teacher, frozen = map(method.teacher_of, (params, other))
        constants = method.freeze(None, other, frozen, 0)
        outputs = method.encode(params, teacher, constants, views, keys, progress(0, c))
        rest = (carry, keys[0], progress(0, c))
        total, (_, metrics) = method.objective(params, teacher, outputs, *rest)
        without, _ = bare.objective(params, teacher, outputs.method, *rest)

        def patches(weights, group):
            images = views[group].images
            seen = method.features(weights, images.reshape(-1, *images.shape[2:])).patches
            return seen.reshape(*images.shape[:2], -1, seen.shape[-1])

        want = losses.gram(patches(teacher, large), gram.reduced(patches(frozen, "gram"), 16))
        return total, without, metrics["gram"], want, views

    total, without, term, want, views = terms(tiny.random_batch(method.views))
    np.testing.assert_array_equal(views["gram"].boxes, views[large].boxes)
    np.testing.assert_array_equal(views["gram"].flips, views[large].flips)
    assert views["gram"].images.shape[:3] == (4, views[large].images.shape[1], 24)
    assert want > 1e-3
    close(term, want)
    close(total, without + 3.0 * want)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flsl", "dinov2"])
def test_the_ema_teacher_sees_the_students_own_crops(name):
    c, method = made(name, weight=1.0, teacher="ema")
    assert "gram" not in dict(method.views.groups) and method.freeze is None
    keys = jax.random.split(numerics.key(2), 4)

    @jax.jit
    def terms(batch):
        views = recipe.prepare(method.views, batch, c.seed)
        params, other = (method.init(numerics.key(seed))[0] for seed in (0, 1))

        def term(teacher):
            outputs = method.encode(params, teacher, None, views, keys, progress(0, c))
            return losses.gram(*outputs.patches)

        return [term(method.teacher_of(tree)) for tree in (params, other)]

    same, different = terms(tiny.random_batch(method.views))
    assert same < 1e-10 and different > 1e-3


def test_without_weight_nothing_is_added():
    c, method = made("sop")
    assert "gram" not in dict(method.views.groups) and method.freeze is None
    outputs = object()
    assert gram.seen(c, outputs, None) is outputs


def test_updates_and_weight_are_as_published():
    """Of the 7B network's second stage: three updates from step 1,010,000 on, a weight that rises
    within 1,000 steps."""
    numbers = dict(every=10_000, first_update=1_010_000, updates=3, rise=(1_000_000, 1_001_000))
    _, method = made("sop", weight=2.0, **numbers)
    old, new = {FROZEN: jnp.zeros(())}, {"backbone": jnp.ones(())}
    freeze = jax.jit(method.freeze)
    updated = [n for n in range(990_000, 1_080_000, 2_500) if freeze(old, (), new, n)[FROZEN] == 1]
    assert updated == [1_010_000, 1_020_000, 1_030_000]
    for begun, done in ((0, 1), (1, 10**6)):  # without a first step and a limit
        _, always = made("sop", weight=1.0, every=begun + 1)
        assert always.freeze(old, (), new, done)[FROZEN] == 1
    c, _ = made("sop", weight=2.0, every=1, rise=(1_000_000, 1_001_000))
    steps = jnp.array([0, 1_000_000, 1_000_500, 1_000_999, 2_000_000])
    close(gram.weight(c.gram, steps), np.array([0, 0, 1 + np.sin(np.pi / 1998), 2, 2]))
    c, _ = made("sop", weight=2.0, every=1)
    close(gram.weight(c.gram, jnp.array([0, 7])), np.array([2, 2]))


def test_a_map_is_reduced_as_torch_does():
    """Bicubic with a = -.75, edges repeated, no antialiasing: by hand, and by JAX's."""
    ramp = np.float32([0, 1, 4, 9, 16, 25])
    small = gram.reduced(jnp.asarray(np.repeat(ramp, 6)[:, None]), 9)
    close(small.reshape(3, 3), np.repeat([0.21875, 6.125, 21.15625], 3).reshape(3, 3))
    maps = np.random.default_rng(0).normal(size=(2, 6 * 6, 3)).astype(np.float32)
    for side in (3, 4, 5):
        want = jax.image.resize(
            maps.reshape(2, 6, 6, 3), (2, side, side, 3), "cubic-pytorch", antialias=False
        )
        close(gram.reduced(maps, side * side), want.reshape(2, side * side, 3))


@pytest.mark.slow
def test_what_the_gram_teacher_starts_from(tmp_path, capsys):
    """A file or the run's weights, in buffers of its own; never another run's Gram teacher."""
    changes = {"model__depth": 1, "gram__weight": 1.0, "gram__every": 5, "gram__rise": (5, 5)}
    first = loop.fresh_state(api.prepare(tiny.config("sop", seed=3, **changes)))
    assert tiny.identical(first.constants[FROZEN], first.teacher["backbone"])
    c = tiny.resolved(tiny.config("sop", seed=3, **changes))
    teacher = methods.make(c).init(numerics.key(7))[0]
    encoder = api.Encoder(c, teacher, first.constants)
    assert encoder.constants is None  # which is not saved
    api.save(encoder, tmp_path / "other.npz")
    path = str(tmp_path / "other.npz")
    state = loop.fresh_state(api.prepare(tiny.config("sop", **changes, gram__file=path)))
    other = gram_of(teacher)
    assert tiny.identical(state.constants[FROZEN], other)
    assert not tiny.identical(state.teacher["backbone"], other)
    assert "gram.file: " in capsys.readouterr().out
    state = loop.fresh_state(api.prepare(tiny.config("sop", **changes, init_from=path)))
    assert tiny.identical(state.constants[FROZEN], other)
    assert tiny.identical(state.teacher["backbone"], other)
    leaves = jax.tree.leaves((state.params, state.teacher, state.constants))
    assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)
    # With adapters the teacher has these alone: the frozen network is the whole one.
    run = api.prepare(tiny.config("sop", **changes, model__lora=2, init_from=path))
    state = loop.fresh_state(run)
    assert tiny.identical(state.constants[FROZEN], other)
    moved = jax.tree.map(lambda x: x + 1, state.teacher)
    new = run.method.freeze(state.constants, state.params, moved, 5)[FROZEN]
    assert tiny.identical(new, lora.network(state.params, moved, run.config.model)["backbone"])


def gram_of(params):
    return {name: x for name, x in params["backbone"].items() if name != "mask_token"}
