"""STELLAR's wiring: views, what each switch leaves out, targets, the teacher, frozen arrays,
refusals, pictures, configs.
"""

import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import config as config_lib
from ssl_jax import methods, ops, papers, settings, trees
from ssl_jax.config import InputError, MissingFile
from ssl_jax.evals import pictures
from ssl_jax.evals.pictures import stellar as drawing
from ssl_jax.losses.stellar import match_meters
from ssl_jax.methods import stellar
from ssl_jax.methods.encoder import Encoder
from ssl_jax.methods.stellar.views import view_recipe
from ssl_jax.models import tokenizer, zoo
from ssl_jax.train import optim, state, step
from ssl_jax.views import recipe
from tests import tiny

PUBLISHED = ("vitb16", "vitl16", "vith14")
SMALL = ("cifar10", "imagenette96", "photos", "photo_collages")


SETTINGS = dict(
    model__queries=5,
    optim__batch_size=4,
    optim__base_batch=4,
    optim__steps=20,
    optim__warmup_epochs=0.0,
    optim__clip_by="global",
    teacher__momentum=0.996,
    stellar__prototypes=12,
    stellar__head_hidden=16,
    stellar__head_out=8,
    stellar__mask_ratio=0.75,
)


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


def prepared(method):
    return recipe.prepare(method.views, tiny.random_batch(method.views), 0)


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
            return value, (out.metrics, outputs)

        (_, found), gradients = jax.value_and_grad(
            loss, argnums=(0, 1) if teacher is not None else 0, has_aux=True
        )(params, teacher)
        return (*found, gradients)

    return forward


def forward(method, params, teacher=None):
    """(metrics, outputs, gradients) of the same batch."""
    batch = tiny.random_batch(method.views)
    return forward_of(method._replace(meanings=()))(params, teacher, batch)  # a dict has no hash


def init(method):
    params, carry = jax.jit(method.init)(jax.random.key(0))
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
    assert not any(
        still(draws) for name in ("masked", "local") for draws in groups[name].photometric
    )
    assert all(draws.solarize_prob == 0 for _, group in views.groups for draws in group.photometric)


def test_published_views_keep_39_51_and_78_patches():
    for variant, ratio, kept in (("vitb16", 0.8, 39), ("vith14", 0.8, 51), ("vitb16", 0.6, 78)):
        config = load(variant)
        config.stellar.mask_ratio = ratio
        group = view_recipe(config)["masked"]
        assert group.mask.kept(group.patches) == kept and group.count == 8


# What is computed


def test_outputs_and_terms_of_the_published_form():
    method = bound()
    params, outputs, metrics = shapes_of(method)
    assert set(params) == {"backbone", "token_head", "cls_head", "factorise", "decoder"}
    assert set(method.constants()) == {"fourier"}
    assert params["token_head"]["prototypes"].shape == (12, 8) and set(
        params["token_head"]["projection"]["mlp"]
    ) == {"0", "1"}
    assert {name: leaf.shape for name, leaf in outputs.items()} == {
        "tokens": (4, 5, 16),
        "masked_tokens": (4, 2, 5, 16),
        "token": (4, 5, 8),
        "cls": (4, 8),
        "masked_token": (4, 2, 5, 8),
        "masked_cls": (4, 2, 8),
        "local_cls": (4, 2, 8),
        "rebuilt": (4, 16, 48),
        "target": (4, 16, 48),
    }
    assert {
        "reconstruction_loss",
        "psnr",
        "cluster_loss",
        "align_loss",
        "cls_cluster_loss",
        "cls_align_loss",
        "cls_local_loss",
        "koleo",
        "masked_koleo",
        "token_usage",
        "token_teacher_entropy",
        "match_agreement",
        "match_cost",
        "match_distinct",
        "embedding_spread",
    } <= set(metrics)


NO_CLS = dict(stellar__cls=False, views__local_count=0)


@pytest.mark.parametrize(
    ("changes", "params", "terms"),
    [
        (
            dict(stellar__weights__reconstruction=0.0),
            {"backbone", "token_head", "cls_head"},
            {"reconstruction_loss"},
        ),
        (
            dict(stellar__weights__cluster=0.0),
            {"backbone", "token_head", "cls_head", "factorise", "decoder"},
            set(),
        ),
        (
            NO_CLS,
            {"backbone", "token_head", "factorise", "decoder"},
            {"cls_cluster_loss", "cls_align_loss", "cls_local_loss"},
        ),
        (
            dict(stellar__masked=False),
            {"backbone", "token_head", "cls_head", "factorise", "decoder"},
            {"align_loss", "cls_align_loss", "masked_koleo"},
        ),
        (
            dict(stellar__weights__align=0.0, **NO_CLS),
            {"backbone", "token_head", "factorise", "decoder"},
            {"align_loss", "cls_cluster_loss", "cls_align_loss", "cls_local_loss"},
        ),
        (
            dict(
                stellar__weights__align=0.0,
                stellar__weights__cluster=0.0,
                stellar__masked=False,
                **NO_CLS,
            ),
            {"backbone", "factorise", "decoder"},
            {
                "align_loss",
                "cluster_loss",
                "masked_koleo",
                "cls_cluster_loss",
                "cls_align_loss",
                "cls_local_loss",
            },
        ),
    ],
    ids=[
        "no reconstruction",
        "no clustering",
        "no cls",
        "no masked",
        "no alignment",
        "reconstruction alone",
    ],
)
def test_a_switch_leaves_out_its_networks_and_terms_and_no_others(changes, params, terms):
    _, _, full = shapes_of(bound())
    tree, _, metrics = shapes_of(bound(**changes))
    assert set(tree) == params
    losses = {name for name in full if name.endswith("_loss") or "koleo" in name}
    assert {name for name in metrics if name in losses} == losses - terms


def test_loss_is_the_weighted_sum_and_the_target_the_main_view():
    method = bound()
    metrics, outputs, _ = forward(method, init(method))
    views = prepared(method)
    np.testing.assert_allclose(
        outputs.target, ops.patchify(views["global"].images[:, 0], 4), atol=1e-6
    )  # jit rounds otherwise
    found = ops.align_sets(outputs.masked_tokens, outputs.tokens[:, None])
    matched = np.take_along_axis(
        np.asarray(found.cost), np.asarray(found.index)[..., None], -1
    ).mean()
    np.testing.assert_allclose(
        metrics["match_cost"], matched, rtol=1e-3
    )  # a small distance between numbers near 1
    assert 0 < metrics["match_contrast"] <= 1.2 and 0 < metrics["match_distinct"] <= 1


def test_a_masked_view_depends_on_its_kept_patches_only_and_more_tokens_than_patches_work():
    """5 tokens from 4 kept patches; what was dropped must not matter, what was kept must."""
    method = bound(stellar__weights__reconstruction=0.0)
    params, views = init(method), prepared(method)
    masks = np.asarray(views["masked"].masks)
    cells = ops.patchify(views["masked"].images.reshape(8, 16, 16, 3), 4)

    @jax.jit
    def encode(views):
        return method.encode(params, None, None, views, keys_of(0), None)

    def tokens(cells):
        images = ops.unpatchify(cells, 4, (4, 4)).reshape(4, 2, 16, 16, 3)
        changed = views | {"masked": views["masked"]._replace(images=images)}
        return np.asarray(encode(changed).masked_tokens)

    dropped = jnp.where(masks.reshape(8, 16, 1), 0.3, cells)
    kept = jnp.where(masks.reshape(8, 16, 1), cells, 0.3)
    np.testing.assert_array_equal(tokens(dropped), tokens(cells))
    assert np.abs(tokens(kept) - tokens(cells)).max() > 1e-3


def test_order_of_the_queries_moves_tokens_and_maps_and_nothing_else():
    method = bound()
    params, order = init(method), np.array([3, 0, 4, 1, 2])
    moved = params | {
        "backbone": params["backbone"] | {"queries": params["backbone"]["queries"][order]}
    }
    (metrics, outputs, _), (metrics_moved, outputs_moved, _) = (
        forward(method, p) for p in (params, moved)
    )
    np.testing.assert_allclose(outputs_moved.tokens, outputs.tokens[:, order], atol=1e-5)
    for name in ("cls", "rebuilt"):
        np.testing.assert_allclose(getattr(outputs_moved, name), getattr(outputs, name), atol=1e-5)
    for name, value in metrics.items():
        np.testing.assert_allclose(metrics_moved[name], value, rtol=2e-4, atol=1e-5, err_msg=name)
    images = jnp.asarray(tiny.random_batch(method.views)["source"])
    features = jax.jit(lambda p: method.features(p, images, extras=True))
    maps, maps_moved = (features(p).extras["localization"] for p in (params, moved))
    np.testing.assert_allclose(maps_moved, maps[..., order], atol=1e-5)


def test_gradient_reaches_everything_that_learns():
    method = bound()
    _, _, gradients = forward(method, init(method))
    for path, leaf in trees.flatten(gradients).items():
        assert np.isfinite(leaf).all() and np.any(leaf), path


def test_frozen_arrays_are_no_parameters_and_decay_follows_the_config():
    config = resolved(unresolved())
    method = methods.make(config)
    params, constants = init(method), method.constants()
    optimizer = optim.make(config.optim, method.rules, params)
    ones = jax.tree.map(jnp.ones_like, params)
    after, opt_state, _ = optimizer.update(
        ones, optimizer.init(params), params, lr=0.1, weight_decay=0.1, epoch=jnp.int32(0)
    )
    assert set(constants) == {"fourier"}
    leaves = jax.tree_util.tree_leaves_with_path((after, opt_state))
    assert not any("fourier" in jax.tree_util.keystr(path) for path, _ in leaves)
    assert np.any(after["backbone"]["cls"] != params["backbone"]["cls"])
    norm = "backbone/norm/scale"
    decayed = {
        decay: optim.assign_rules(bound(stellar__decay=decay).rules, params)[norm].decay
        for decay in ("all", "matrices")
    }
    assert decayed == {"all": True, "matrices": "matrices"}


# The teacher


def test_without_a_teacher_there_is_none():
    method = bound()
    assert method.teacher_of(init(method)) is None


def test_a_teacher_gives_the_targets_and_has_no_gradient():
    method = bound(stellar__targets="teacher")
    params = init(method)
    teacher = jax.tree.map(lambda x: x + 0.02, method.teacher_of(params))
    assert set(teacher) == {"backbone", "token_head", "cls_head", "factorise", "decoder"}
    metrics, outputs, (_, by_teacher) = forward(method, params, teacher)
    assert outputs.teacher_tokens.shape == (4, 5, 16) and not any(
        np.any(leaf) for leaf in jax.tree.leaves(by_teacher)
    )
    # The targets are those of the teacher's own prototypes and of its own view, matched to the main
    # view's tokens.
    scores = np.asarray(outputs.teacher_token) @ np.asarray(teacher["token_head"]["prototypes"]).T
    q = ops.sinkhorn_knopp(scores.reshape(20, 12), temperature=0.06).reshape(4, 5, 12)
    match = np.asarray(ops.align_sets(outputs.tokens, outputs.teacher_tokens).index)
    logits = np.asarray(outputs.token) @ np.asarray(params["token_head"]["prototypes"]).T
    loss = ops.cross_entropy(
        np.take_along_axis(np.asarray(q), match[..., None], 1), logits, temperature=0.12
    ).mean()
    np.testing.assert_allclose(metrics["cluster_loss"], loss, rtol=1e-4)
    features = method.features(teacher, jnp.zeros((2, 16, 16, 3)), extras=True)
    assert features.extras["localization"].shape == (2, 4, 4, 5)


def test_the_second_stage_takes_all_weights_of_the_first():
    """Random prior: what the second stage wants is what the student of the first has."""
    stages = [bound(stellar__targets="teacher", stellar__mask_ratio=0.6), bound()]
    first, second = (jax.eval_shape(method.init, jax.random.key(0))[0] for method in stages)
    assert jax.tree.map(lambda x: x.shape, first) == jax.tree.map(lambda x: x.shape, second)


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
    path = tmp_path / "vqgan.npz"
    np.savez(
        path,
        **{
            name: (0.3 * rng.normal(size=shape) + ("norm" in name)).astype(np.float32)
            for name, shape in layout.items()
        },
    )
    return str(path)


def test_codes_are_rebuilt_and_the_tokenizer_is_a_constant(codes):
    config = resolved(
        unresolved(
            stellar__target="vq", stellar__tokenizer=codes, stellar__weights__reconstruction=0.05
        )
    )
    method = methods.make(config)
    params, constants = init(method), method.constants()
    metrics, outputs, gradients = forward(method, params)
    assert outputs.rebuilt.shape == (4, 16, 11) and outputs.target.shape == (4, 16)
    assert np.isfinite(metrics["reconstruction_loss"]) and 0 <= metrics["code_accuracy"] <= 1
    assert set(constants) == {"fourier", "tokenizer"}
    assert not any("quantize" in path for path in trees.flatten(gradients))
    images = np.random.default_rng(0).random((2, 16, 16, 3)).astype(np.float32)
    drawn = pictures.draw(Encoder(config, params, constants), images)
    assert set(drawn) == {"reconstructions", "localization", "concepts"}


def test_codes_need_their_weights_to_train_but_not_to_be_evaluated(codes, tmp_path):
    missing = unresolved(stellar__target="vq", stellar__tokenizer=str(tmp_path / "gone.npz"))
    with pytest.raises(
        InputError,
        match=(
            'stellar.target is "vq" but there are no tokenizer weights at .*gone.npz"; fetch'
            " maskgit-vqgan"
        ),
    ):
        stellar.check(missing)
    stellar.check(
        unresolved(
            stellar__target="vq", stellar__weights__reconstruction=0.0, stellar__tokenizer=""
        )
    )  # nothing is rebuilt
    here = bound(stellar__target="vq", stellar__tokenizer=codes)
    gone = methods.make(tiny.resolved(unresolved(stellar__target="vq")))
    params = init(gone)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, init(here))
    assert np.isfinite(gone.features(params, jnp.zeros((1, 16, 16, 3))).image).all()
    with pytest.raises(MissingFile, match="no tokenizer weights"):
        gone.constants()


# Features, pictures, health


def test_features_at_another_size():
    config = resolved(unresolved())
    method = methods.make(config)
    encoder = Encoder(config, init(method), method.constants())
    images = jnp.asarray(np.random.default_rng(0).random((2, 20, 28, 3)), jnp.float32)
    found = encoder(images, layers=(0,), attention=True, extras=True)
    np.testing.assert_allclose(found.image, found.extras["tokens"].mean(axis=1), atol=1e-6)
    assert (
        found.patches.shape == (2, 5, 7, 16)
        and found.cls.shape == (2, 16)
        and found.layers[0].patches.shape == (2, 35, 16)
    )
    np.testing.assert_allclose(found.extras["localization"].sum(axis=-1), 1, rtol=1e-5)
    assert found.attention.shape == (2, 2, 41, 41)
    rebuilt = found.extras["rebuilt"]
    assert rebuilt.shape == images.shape and 0 <= rebuilt.min() and rebuilt.max() <= 1


def test_pictures_show_what_the_tree_holds():
    config, images = (
        resolved(unresolved()),
        np.random.default_rng(0).random((6, 16, 16, 3)).astype(np.float32),
    )
    method = methods.make(config)
    params, constants = init(method), method.constants()
    drawn = pictures.draw(Encoder(config, params, constants), images)
    assert set(drawn) == {"reconstructions", "localization", "concepts"}
    assert [len(drawn[name].rows) for name in ("reconstructions", "localization", "concepts")] == [
        6,
        6,
        4,
    ]
    assert all(len(row) == 2 + 5 for row in drawn["localization"].rows) and all(
        len(row) == 6 for row in drawn["concepts"].rows
    )
    for picture in drawn.values():
        for panel in (panel for row in picture.rows for panel in row):
            assert panel.image.shape == (16, 16, 3) and panel.title
            assert panel.heat is None or (panel.heat.ndim == 2 and panel.heat.min() >= 0)
    without = Encoder(config, params)
    assert set(pictures.draw(without, images)) == {"localization", "concepts"}
    teacher = {name: tree for name, tree in params.items() if name != "decoder"}
    drawn = pictures.draw(Encoder(config, teacher, constants), images)
    assert set(drawn) == {"localization", "concepts"}
    assert pictures.draw(Encoder(config, {"backbone": params["backbone"]}), images) == {}


def test_concepts_rank_images_by_the_prototype_and_mark_half_the_maximum(monkeypatch):
    rng = np.random.default_rng(0)
    images, maps = rng.random((3, 8, 8, 3)), rng.random((3, 2, 2, 2))
    share = np.full((3, 2, 4), 0.01)
    share[:, 1, 2] = 0.2, 0.9, 0.7  # prototype 2 is what token 1 of all images means
    share[0, 0, 3] = 0.95  # prototype 3 is of one image only
    monkeypatch.setattr(drawing, "_ROWS", 1)
    features = types.SimpleNamespace(extras={"localization": maps, "share": share})
    picture = drawing.draw(lambda images, extras: features, images)["concepts"]
    (row,) = picture.rows
    assert [float(panel.title.split("p ")[-1]) for panel in row] == [
        0.9,
        0.7,
        0.2,
    ] and "prototype 2" in row[0].title
    np.testing.assert_array_equal(row[0].image, images[1])
    np.testing.assert_array_equal(
        row[0].labels == 0, maps[1, ..., 1] >= 0.5 * maps[1, ..., 1].max()
    )


def test_match_meters_by_hand():
    cost = jnp.array([[[1.0, 5.0, 5.0], [2.0, 9.0, 9.0]], [[4.0, 1.0, 1.0], [1.0, 3.0, 4.0]]])
    found = match_meters(ops.Alignment(jnp.array([[0, 0], [1, 0]]), cost, None))
    np.testing.assert_allclose(found["match_cost"], (1 + 2 + 1 + 1) / 4)
    np.testing.assert_allclose(found["match_contrast"], 1.25 / float(cost.mean()), rtol=1e-6)
    np.testing.assert_allclose(found["match_distinct"], (0.5 + 1) / 2)


def test_health_names_what_is_wrong():
    health, top = bound().health, np.log(12)
    fine = {
        "token_teacher_entropy": 0.3 * top,
        "token_marginal_entropy": 0.9 * top,
        "match_contrast": 0.5,
    }
    fine |= {"cls_teacher_entropy": 0.3 * top, "cls_marginal_entropy": 0.9 * top}
    assert health(fine) == [] and health({}) == []
    for changes, kind in (
        ({"token_teacher_entropy": 0.999 * top}, "uniform token targets"),
        ({"cls_marginal_entropy": 0.31 * top}, "collapse of cls targets"),
        ({"match_contrast": 0.99}, "tokens alike"),
    ):
        assert [text.split(":")[0] for text in health(fine | changes)] == [kind]


# Refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(stellar__targets="ema"), 'stellar.targets is "ema"'),
        (dict(stellar__target="vqgan"), 'stellar.target is "vqgan"'),
        (
            dict(stellar__target="vq"),
            'stellar.target is "vq" but there are no tokenizer weights at ""; fetch maskgit-vqgan',
        ),
        (dict(stellar__matching="greedy"), 'stellar.matching is "greedy"'),
        (dict(stellar__mask_focus="block"), 'stellar.mask_focus is "block"'),
        (dict(stellar__decay="none"), 'stellar.decay is "none"'),
        (
            dict(stellar__mask_ratio=0.95),
            "stellar.mask_ratio is 0.95; a masked view must keep one or more of its 16 patches",
        ),
        (dict(stellar__mask_ratio=1.0), "stellar.mask_ratio is 1.0"),
        (dict(stellar__mask_ratio=-0.1), "stellar.mask_ratio is -0.1"),
        (dict(stellar__temperature=0.0), "stellar.temperature is 0.0; it must be above 0"),
        (
            dict(stellar__target_temperature=-1.0),
            "stellar.target_temperature is -1.0; it must be above 0",
        ),
        (dict(stellar__matching_epsilon=0.0), "stellar.matching_epsilon is 0.0"),
        (
            dict(stellar__localization_temperature=-0.1),
            "stellar.localization_temperature is -0.1; it must be 0 or more",
        ),
        (dict(stellar__prototypes=1), "stellar.prototypes is 1; it must be between 2 and 16777216"),
        (dict(stellar__sinkhorn_iterations=0), "stellar.sinkhorn_iterations is 0"),
        (
            dict(stellar__decoder_heads=3),
            "stellar.decoder_heads is 3; it must divide decoder_width 16",
        ),
        (
            dict(stellar__decoder_width=15, stellar__decoder_heads=3),
            "stellar.decoder_width is 15; it must be even",
        ),
        (dict(model__queries=0), "model.queries is 0; STELLAR needs at least 1 sparse token"),
        (dict(model__cls=False), "stellar.cls is True but model.cls is False"),
        (
            dict(stellar__cls=False),
            "views.local_count is 2, but local crops only align the class token",
        ),
        (
            dict(stellar__weights__align=0.0),
            "views.local_count is 2, but local crops only align the class token",
        ),
        (
            dict(stellar__masked=False, views__local_count=0),
            "stellar.weights.align is above 0 without a view to align",
        ),
        (dict(stellar__weights__koleo=-1.0), "stellar.weights.koleo is -1.0; it must be 0 or more"),
        (
            {
                f"stellar__weights__{part}": 0.0
                for part in ("reconstruction", "cluster", "align", "koleo")
            },
            "stellar.weights are all 0",
        ),
        (dict(views__mask="block"), 'views.mask is "block"; STELLAR masks by stellar.mask_ratio'),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_impossible_settings_are_refused_by_name(changes, message):
    with pytest.raises(InputError, match=re.escape(message)):
        tiny.check(unresolved(**changes))


def test_no_cls_token_at_all_works():
    _, outputs, metrics = shapes_of(bound(model__cls=False, **NO_CLS))
    assert not any("cls" in name for name in (*outputs, *metrics))


# Training


def test_a_few_steps_of_the_warm_up_lower_the_loss_and_move_the_teacher():
    """With a teacher and the exact matching; the standard form goes through the tests of all
    methods.
    """
    config = resolved(unresolved(stellar__targets="teacher", stellar__matching="hungarian"))
    method = methods.make(config)
    params, _ = jax.eval_shape(method.init, jax.random.key(0))
    optimizer = optim.make(config.optim, method.rules, params)
    train = jax.jit(step.make_step(method, optimizer, config))
    create = jax.jit(lambda constants: state.create(method, optimizer, config.seed, constants))
    first = current = create(method.constants())
    batch, rows = tiny.random_batch(method.views), []
    for _ in range(20):
        current, metrics = train(current, batch)
        rows.append({name: float(value) for name, value in metrics.items()})
    assert all(np.isfinite(list(row.values())).all() for row in rows)
    assert rows[-1]["loss"] < 0.8 * rows[0]["loss"] and rows[-1]["psnr"] > rows[0]["psnr"] + 1
    np.testing.assert_array_equal(current.constants["fourier"], method.constants()["fourier"])
    queries = [x["backbone"]["queries"] for x in (first.teacher, current.teacher, current.params)]
    assert 0 < np.abs(queries[1] - queries[0]).max() < np.abs(queries[2] - queries[0]).max()


# Configs


def load(variant: str):
    return config_lib.load(f"stellar:{variant}")


@pytest.mark.parametrize("row", papers.load("stellar"), ids=lambda row: row.id)
def test_every_row_of_the_papers_tables_is_a_config(row):
    config = row.load()
    assert config.expected.to_dict() == row.expected
    if config.stellar.weights.reconstruction:
        with pytest.raises(
            InputError,
            match='stellar.target is "vq" but there are no tokenizer weights at "".*fetch',
        ):
            stellar.check(config)
    config.stellar.target = "pixel"
    settings.validate(config, num_devices=16)
    stellar.check(config)
    assert view_recipe(config)["global"].patches == (256 if config.model.patch == 14 else 196)


def test_rows_differ():
    rows = papers.load("stellar")
    assert len({(row.config, *sorted(row.changes.items())) for row in rows}) == len(rows)
    assert len({row.place for row in rows}) == len(rows)


def test_rows_change_what_they_name():
    full = load("vitb16")

    def changed(row):
        config = papers.find(f"stellar/{row}").load()
        return {k for k in config_lib.changed(full, config) if not k.startswith("expected")}

    assert changed("table5/D") == {"stellar.weights.cluster"}
    assert changed("table5/E") == {"stellar.cls", "views.local_count"}
    assert changed("figure2/r24") == {"model.queries"}
    assert papers.find("stellar/figure2/r24").load().model.queries == 24
    warmup = papers.find("stellar/table6/random-prior/first-stage").load()
    assert (
        warmup.stellar.targets == "teacher"
        and warmup.stellar.mask_ratio == 0.6
        and warmup.teacher.final_momentum == 0.996
        and warmup.optim.epochs == 150
    )
    with pytest.raises(InputError, match='unknown variant "vits16"; did you mean'):
        load("vits16")


@pytest.mark.parametrize("variant", PUBLISHED)
def test_published_presets_have_the_papers_numbers(variant):
    config = load(variant)
    config.stellar.target = "pixel"  # the tokenizer's weights must be fetched
    config.stellar.weights.reconstruction = 10.0
    published = {
        "vitb16": (150, 1.5e-4, 768, 85.8),
        "vitl16": (100, 5e-5, 1024, 303.3),
        "vith14": (50, 5e-5, 1280, 630.8),
    }
    epochs, lr, width, encoder = published[variant]
    config = settings.resolve(config, num_records=1_281_167, num_devices=16)
    o, c = config.optim, config.stellar
    assert (o.epochs, o.lr, config.run.peak_lr, o.final_lr, o.batch_size) == (
        epochs,
        lr,
        lr,
        lr,
        2048,
    ) and config.run.warmup_steps == 0
    assert (o.weight_decay, o.final_weight_decay, o.clip, o.clip_by, config.model.width) == (
        0.04,
        0.04,
        3.0,
        "global",
        width,
    )
    assert (c.prototypes, c.head_hidden, c.head_out, c.target_temperature, c.temperature) == (
        16384,
        2048,
        256,
        0.06,
        0.12,
    )
    assert (
        config.model.queries,
        config.views.global_count,
        config.views.local_count,
        c.mask_ratio,
    ) == (16, 8, 8, 0.8)
    method = methods.make(config)
    params, _ = jax.eval_shape(method.init, jax.random.key(0))
    assert zoo.count(params["backbone"]) / 1e6 == pytest.approx(encoder, abs=0.2)
    assert method.constants()["fourier"].shape == (2, 256) and params["decoder"]["out"][
        "kernel"
    ].shape == (512, 3 * config.model.patch**2)


@pytest.mark.parametrize("variant", SMALL)
def test_small_presets_rebuild_pixels_and_claim_nothing(variant):
    config = load(variant)
    settings.validate(config, num_devices=1)
    stellar.check(config)
    assert config.stellar.target == "pixel" and not config.expected.to_dict()
    assert config.optim.batch_size * config.model.queries >= 2 * config.stellar.prototypes
    groups = dict(view_recipe(config).groups)
    assert (
        set(groups) == {"global", "masked"}
        and groups["masked"].mask.kept(groups["masked"].patches) >= 5
    )
