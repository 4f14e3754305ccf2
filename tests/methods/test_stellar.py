"""STELLAR's wiring: views, what each switch leaves out, targets, the teacher, frozen arrays,
pictures."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import methods, ops, trees
from ssl_jax.config import InputError, MissingFile
from ssl_jax.evals import pictures
from ssl_jax.methods import stellar
from ssl_jax.methods.encoder import Encoder
from ssl_jax.methods.stellar import pictures as drawing
from ssl_jax.models import tokenizer
from ssl_jax.train import optim, state
from ssl_jax.views import recipe
from tests import tiny

pytestmark = pytest.mark.slow

SETTINGS = tiny.values("""
    model.queries=5 optim.batch_size=4 optim.base_batch=4 optim.steps=20 optim.warmup_epochs=0.0
    optim.clip_by=global teacher.momentum=0.996 stellar.prototypes=12 stellar.head_hidden=16
    stellar.head_out=8 stellar.mask_ratio=0.75
""")


def unresolved(**changes):
    """5 tokens on views of 16 patches, of which a masked view keeps 4."""
    return tiny.config("stellar", **SETTINGS | changes)


def resolved(config):
    tiny.check(config)
    return tiny.resolved(config)


@functools.cache
def bound(**changes):
    """The method of a resolved config."""
    return methods.make(resolved(unresolved(**changes)))


def keys_of(seed):
    return jax.random.split(jax.random.key(seed), 4)


@functools.cache
def forward_of(method):
    constants = method.constants()

    @jax.jit
    def forward(params, teacher, batch):
        views = recipe.prepare(method.views, batch, 0)

        def loss(params, teacher):
            outputs = method.encode(params, teacher, constants, views, keys_of(7), None)
            value, out = method.objective(params, teacher, outputs, None, None, None)
            return value, (out.metrics, outputs, views)

        (_, results), gradients = jax.value_and_grad(
            loss, argnums=(0, 1) if teacher is not None else 0, has_aux=True
        )(params, teacher)
        return (*results, gradients)

    return forward


def forward(method, params, teacher=None):
    """(metrics, outputs, views, gradients) of the same batch."""
    batch = tiny.random_batch(method.views)
    return forward_of(method._replace(meanings=()))(params, teacher, batch)  # a dict has no hash


@functools.cache
def initial(**changes):
    params, carry = jax.jit(bound(**changes).init)(jax.random.key(0))
    assert carry is None
    return params


def present(outputs):
    """{name: array} of what the config does not leave out."""
    return {name: x for name, x in outputs._asdict().items() if x is not None}


def shapes_of(method):
    """(parameters, outputs of encode, metrics) without computing anything."""
    params, _ = jax.eval_shape(method.init, jax.random.key(0))
    teacher = method.teacher_of(params)
    views, keys = recipe.abstract_views(method.views, 4), jax.eval_shape(lambda: keys_of(0))
    outputs = jax.eval_shape(
        lambda p, t, c, v, k: method.encode(p, t, c, v, k, None),
        *(params, teacher, method.constants(), views, keys),
    )
    loss, out = jax.eval_shape(
        lambda p, t, o: method.objective(p, t, o, None, None, None), params, teacher, outputs
    )
    assert loss.shape == () and all(m.shape == () for m in out.metrics.values())
    return params, present(outputs), out.metrics


# Views


@pytest.mark.parametrize("targets", ["self", "teacher"])
def test_views_are_a_whole_main_view_masked_ones_and_small_ones(targets):
    views = bound(stellar__targets=targets).views
    assert [name for name, _ in views.groups] == ["global", "masked", "local"]
    for index in range(20):
        drawn = recipe.draw(views, seed=0, epoch=0, index=index, source_size=(24, 24))
        shared = 2 if targets == "teacher" else 1
        assert drawn["global"].boxes.shape == (shared, 4) and drawn["global"].keep is None
        np.testing.assert_array_equal(drawn["masked"].boxes[:shared], drawn["global"].boxes)
        np.testing.assert_array_equal(drawn["masked"].flips[:shared], drawn["global"].flips)
        assert drawn["masked"].keep.shape == (2, 4) and drawn["local"].boxes.shape == (2, 4)

    # The main view keeps its colours, all others may change them; none is solarised.
    def still(draws):
        return all(x == 0 for x in (draws.jitter_prob, draws.gray_prob, draws.blur_prob))

    groups = dict(views.groups)
    main = groups["global"].photometric
    assert main == () if targets == "self" else (still(main[0]) and not still(main[1]))
    others = [draws for name in ("masked", "local") for draws in groups[name].photometric]
    assert not any(map(still, others))
    assert all(draws.solarize_prob == 0 for draws in (*main, *others))


# What is computed

NETWORKS = {"backbone", "token_head", "cls_head", "factorise", "decoder"}
CLS_TERMS = {"cls_cluster_loss", "cls_align_loss", "cls_local_loss"}
NO_CLS = dict(stellar__cls=False, views__local_count=0)


def test_outputs_and_terms_of_the_published_form():
    params, outputs, metrics = shapes_of(bound())
    assert set(params) == NETWORKS and set(bound().constants()) == {"fourier"}
    assert params["token_head"]["prototypes"].shape == (12, 8)
    assert outputs["masked_token"].shape == (4, 2, 5, 8)
    terms = {"reconstruction_loss", "cluster_loss", "align_loss", "koleo", "masked_koleo"}
    assert terms | CLS_TERMS <= set(metrics)
    # What the second stage wants is what the student of the first has.
    stage = shapes_of(bound(stellar__targets="teacher", stellar__mask_ratio=0.6))[0]
    assert jax.tree.map(jnp.shape, stage) == jax.tree.map(jnp.shape, params)


REBUILD, CLUSTER, ALIGN = (
    {f"stellar__weights__{name}": 0.0} for name in ("reconstruction", "cluster", "align")
)
UNMASKED = dict(stellar__masked=False)
SWITCHED_OFF = {  # networks and terms that are left out
    "rebuilding": (REBUILD, {"factorise", "decoder"}, {"reconstruction_loss"}),
    "clustering": (CLUSTER, set(), set()),
    "cls": (NO_CLS, {"cls_head"}, CLS_TERMS),
    "cls token": (NO_CLS | dict(model__cls=False), {"cls_head"}, CLS_TERMS),
    "masked views": (UNMASKED, set(), {"align_loss", "cls_align_loss", "masked_koleo"}),
    "alignment": (ALIGN | NO_CLS, {"cls_head"}, {"align_loss", *CLS_TERMS}),
    "all but rebuilding": (
        ALIGN | CLUSTER | UNMASKED | NO_CLS,
        {"token_head", "cls_head"},
        {"align_loss", "cluster_loss", "masked_koleo", *CLS_TERMS},
    ),
}


@pytest.mark.parametrize(("changes", "without", "terms"), SWITCHED_OFF.values(), ids=SWITCHED_OFF)
def test_a_switch_leaves_out_its_networks_and_terms_and_no_others(changes, without, terms):
    _, _, full = shapes_of(bound())
    tree, outputs, metrics = shapes_of(bound(**changes))
    assert set(tree) == NETWORKS - without
    losses = {name for name in full if name.endswith("_loss") or "koleo" in name}
    assert {name for name in metrics if name in losses} == losses - terms
    if not changes.get("model__cls", True):
        assert not any("cls" in name for name in (*outputs, *metrics))


def test_the_target_is_the_main_view_and_every_parameter_learns():
    metrics, outputs, views, gradients = forward(bound(), initial())
    target = ops.patchify(views["global"].images[:, 0], 4)
    np.testing.assert_allclose(outputs.target, target, atol=1e-6)
    match = ops.align_sets(outputs.masked_tokens, outputs.tokens[:, None])
    cost = np.take_along_axis(np.asarray(match.cost), np.asarray(match.index)[..., None], -1)
    # a small distance between numbers near 1
    np.testing.assert_allclose(metrics["match_cost"], cost.mean(), rtol=1e-3)
    assert 0 < metrics["match_contrast"] <= 1.2 and 0 < metrics["match_distinct"] <= 1
    for path, leaf in trees.flatten(gradients).items():
        assert np.isfinite(leaf).all() and np.any(leaf), path


def test_a_masked_view_depends_on_its_kept_patches_only_and_more_tokens_than_patches_work():
    """5 tokens from 4 kept patches; what was dropped must not matter, what was kept must."""
    method = bound(stellar__weights__reconstruction=0.0)
    params = initial(stellar__weights__reconstruction=0.0)
    views = recipe.prepare(method.views, tiny.random_batch(method.views), 0)
    masks = np.asarray(views["masked"].masks).reshape(8, 16, 1)

    @jax.jit
    def tokens(dropped, kept):
        cells = ops.patchify(views["masked"].images.reshape(8, 16, 16, 3), 4)
        cells = jnp.where(masks, cells + dropped, cells + kept)
        images = ops.unpatchify(cells, 4, (4, 4)).reshape(4, 2, 16, 16, 3)
        changed = views | {"masked": views["masked"]._replace(images=images)}
        return method.encode(params, None, None, changed, keys_of(0), None).masked_tokens

    plain = np.asarray(tokens(0.0, 0.0))
    np.testing.assert_array_equal(tokens(0.3, 0.0), plain)
    assert np.abs(tokens(0.0, 0.3) - plain).max() > 1e-3


def test_order_of_the_queries_moves_tokens_and_maps_and_nothing_else():
    method, params, order = bound(), initial(), np.array([3, 0, 4, 1, 2])
    queries = params["backbone"]["queries"][order]
    moved = params | {"backbone": params["backbone"] | {"queries": queries}}
    (metrics, outputs, *_), (metrics_moved, outputs_moved, *_) = (
        forward(method, p) for p in (params, moved)
    )
    np.testing.assert_allclose(outputs_moved.tokens, outputs.tokens[:, order], atol=1e-5)
    for name in ("cls", "rebuilt"):
        np.testing.assert_allclose(getattr(outputs_moved, name), getattr(outputs, name), atol=1e-5)
    for name, value in metrics.items():
        np.testing.assert_allclose(metrics_moved[name], value, rtol=2e-4, atol=1e-5, err_msg=name)
    images = tiny.random_batch(method.views)["source"]
    features = jax.jit(lambda p: method.features(p, images, extras=True).extras["localization"])
    np.testing.assert_allclose(features(moved), features(params)[..., order], atol=1e-5)


def test_frozen_arrays_are_no_parameters_and_decay_follows_the_config():
    params, opt_state = jax.eval_shape(
        lambda: state.create(bound(), optimizer(), 0, bound().constants())[1:4:2]
    )
    assert not any("fourier" in path for path in trees.flatten(params))
    assert "fourier" not in str(jax.tree.structure(opt_state))
    norm = "backbone/norm/scale"
    for decay, want in (("all", True), ("matrices", "matrices")):
        rules = optim.assign_rules(bound(stellar__decay=decay).rules, params)
        assert rules[norm].decay == want


def optimizer():
    params = jax.eval_shape(bound().init, jax.random.key(0))[0]
    return optim.make(resolved(unresolved()).optim, bound().rules, params)


# The teacher


def test_a_teacher_gives_the_targets_and_has_no_gradient():
    """Those of the teacher's own prototypes and view, matched to the main view's tokens."""
    changes = dict(stellar__targets="teacher", stellar__matching="hungarian")
    method, params = bound(**changes), initial(**changes)
    teacher = jax.tree.map(lambda x: np.asarray(x) + 0.02, method.teacher_of(params))
    metrics, outputs, _, (_, by_teacher) = forward(method, params, teacher)
    assert set(teacher) == NETWORKS and bound().teacher_of(params) is None
    assert outputs.teacher_tokens.shape == (4, 5, 16)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(by_teacher))
    scores = np.asarray(outputs.teacher_token) @ teacher["token_head"]["prototypes"].T
    q = ops.sinkhorn_knopp(scores.reshape(20, 12), temperature=0.06).reshape(4, 5, 12)
    match = ops.align_sets(outputs.tokens, outputs.teacher_tokens, solver="hungarian").index
    logits = np.asarray(outputs.token) @ np.asarray(params["token_head"]["prototypes"]).T
    matched = np.take_along_axis(np.asarray(q), np.asarray(match)[..., None], 1)
    loss = ops.cross_entropy(matched, logits, temperature=0.12).mean()
    np.testing.assert_allclose(metrics["cluster_loss"], loss, rtol=1e-4)


# Codes as target


@pytest.fixture
def codes(monkeypatch, tmp_path):
    """A small tokenizer in place of MaskGIT's, and a file of its weights."""
    small = tokenizer.maskgit_vqgan(
        channels=32, multipliers=(1, 2), blocks=1, num_codes=11, code_width=6
    )
    monkeypatch.setattr(tokenizer, "maskgit_vqgan", lambda: small)
    rng = np.random.default_rng(0)
    layout = tokenizer._layout(32, (1, 2), 1, 11, 6)
    drawn = {n: 0.3 * rng.normal(size=shape) + ("norm" in n) for n, shape in layout.items()}
    np.savez(tmp_path / "vqgan.npz", **{n: x.astype(np.float32) for n, x in drawn.items()})
    return str(tmp_path / "vqgan.npz")


def test_codes_are_rebuilt_and_the_tokenizer_is_a_constant(codes):
    weight = dict(stellar__weights__reconstruction=0.05)
    method = bound(stellar__target="vq", stellar__tokenizer=codes, **weight)
    params = jax.jit(method.init)(jax.random.key(0))[0]
    metrics, outputs, _, gradients = forward(method, params)
    assert outputs.rebuilt.shape == (4, 16, 11) and outputs.target.shape == (4, 16)
    assert np.isfinite(metrics["reconstruction_loss"]) and 0 <= metrics["code_accuracy"] <= 1
    assert set(method.constants()) == {"fourier", "tokenizer"}
    assert not any("quantize" in path for path in trees.flatten(gradients))


def test_codes_need_their_weights_to_train_but_not_to_be_evaluated(codes, tmp_path):
    missing = dict(stellar__target="vq", stellar__tokenizer=str(tmp_path / "gone.npz"))
    with pytest.raises(InputError, match="gone.npz"):
        stellar.check(unresolved(**missing))
    stellar.check(unresolved(**missing, stellar__weights__reconstruction=0.0))
    here = bound(stellar__target="vq", stellar__tokenizer=codes)
    gone = methods.make(tiny.resolved(unresolved(stellar__target="vq")))
    params, other = (jax.eval_shape(m.init, jax.random.key(0))[0] for m in (gone, here))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, other)
    images = jax.ShapeDtypeStruct((1, 16, 16, 3), jnp.float32)
    assert jax.eval_shape(gone.features, params, images).image.shape == (1, 16)
    with pytest.raises(MissingFile):
        gone.constants()


# Features, pictures, health


def test_features_at_another_size():
    encoder = Encoder(resolved(unresolved()), initial(), bound().constants())
    images = np.random.default_rng(0).random((2, 20, 28, 3), np.float32)
    out = encoder(images, layers=(0,), attention=True, extras=True)
    np.testing.assert_allclose(out.image, out.extras["tokens"].mean(axis=1), atol=1e-6)
    assert out.patches.shape == (2, 5, 7, 16) and out.layers[0].patches.shape == (2, 35, 16)
    np.testing.assert_allclose(out.extras["localization"].sum(axis=-1), 1, rtol=1e-5)
    assert out.attention.shape == (2, 2, 41, 41)
    rebuilt = out.extras["rebuilt"]
    assert rebuilt.shape == images.shape and 0 <= rebuilt.min() and rebuilt.max() <= 1


def test_pictures_show_what_the_tree_holds():
    images = np.random.default_rng(0).random((6, 16, 16, 3), np.float32)
    config, params, constants = resolved(unresolved()), initial(), bound().constants()
    drawn = pictures.draw(Encoder(config, params, constants), images)
    shapes = {name: [len(row) for row in picture.rows] for name, picture in drawn.items()}
    assert shapes == {"reconstructions": [3] * 6, "localization": [7] * 6, "concepts": [6] * 4}
    without = Encoder(config, params)
    assert set(pictures.draw(without, images)) == {"localization", "concepts"}
    assert pictures.draw(Encoder(config, {"backbone": params["backbone"]}), images) == {}


def test_concepts_rank_images_by_the_prototype_and_mark_half_the_maximum(monkeypatch):
    rng = np.random.default_rng(0)
    images, maps = rng.random((3, 8, 8, 3)), rng.random((3, 2, 2, 2))
    share = np.full((3, 2, 4), 0.01)
    share[:, 1, 2] = 0.2, 0.9, 0.7  # prototype 2 is what token 1 of all images means
    share[0, 0, 3] = 0.95  # prototype 3 is of one image only
    monkeypatch.setattr(drawing, "_ROWS", 1)
    features = types.SimpleNamespace(extras={"localization": maps, "share": share})
    (row,) = drawing.draw(lambda images, extras: features, images)["concepts"].rows
    for panel, i in zip(row, (1, 2, 0), strict=True):
        np.testing.assert_array_equal(panel.image, images[i])
        half = maps[i, ..., 1] >= 0.5 * maps[i, ..., 1].max()
        np.testing.assert_array_equal(panel.labels == 0, half)
