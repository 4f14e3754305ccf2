"""What fine-tuning alone promises: targets, learning rates, where it starts, and that it learns."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import api, cli, evals, methods, trees
from ssl_jax.config import InputError
from ssl_jax.convert.weights import Source, Weights
from ssl_jax.data.arrays import ArraySource
from ssl_jax.data.prepared import Prepared
from ssl_jax.evals import case as case_lib
from ssl_jax.methods import finetune
from ssl_jax.methods.encoder import Encoder
from ssl_jax.methods.finetune import rules, targets
from ssl_jax.methods.multicrop import global_token
from ssl_jax.models.vit import Tokens
from ssl_jax.runtime import sharding
from ssl_jax.train import loop, optim, start, step
from tests import tiny

config = functools.partial(tiny.config, "finetune")
PLAIN = tiny.values("""
    finetune.erase_prob=0.0 finetune.mixup=0.0 finetune.cutmix=0.0 finetune.smoothing=0.0
    views.jitter_prob=0.0 views.gray_prob=0.0 views.flip=0.0 views.blur_prob=(0.0,0.0,0.0)
    views.global_scale=(1.0,1.0) model.drop_path=0.0
""")  # no augmentation at all


def test_targets_loss_and_accuracy():
    """Smoothed shares of two labels, in float64."""
    method = methods.make(tiny.resolved(config(finetune__smoothing=0.1)))
    rng, rows = np.random.default_rng(0), np.arange(6)
    scores, label, partner = rng.normal(size=(6, 17)), *rng.integers(0, 17, (2, 6))
    share = np.array([0.9, 0.1, 0.5, 1.0, 0.3, 0.6])
    # wrong in rows 2 and 5, whose labels have half or more
    highest = [label[0], partner[1], partner[2], label[3], partner[4], partner[5]]
    scores[rows, highest] = 9.0
    out = finetune.Outputs(*map(jnp.asarray, (scores, label, partner, share)))
    loss, result = method.objective(None, None, out, None, None, None)
    goal = np.full((6, 17), 0.1 / 17)
    np.add.at(goal, (rows, label), 0.9 * share)
    np.add.at(goal, (rows, partner), 0.9 * (1 - share))
    np.testing.assert_allclose(targets(out, 0.1), goal, atol=1e-6)
    logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    assert float(loss) == pytest.approx(-(goal * logs).sum(1).mean(), rel=1e-6)
    assert float(result.metrics["accuracy"]) == pytest.approx(4 / 6)


def test_the_token_of_the_image():
    rng = np.random.default_rng(0)
    cls, patches, queries = (rng.normal(size=s) for s in ((2, 3), (2, 5, 3), (2, 4, 3)))
    tokens = Tokens(*map(jnp.asarray, (cls, patches, queries)), {}, None)
    expected = {
        "cls": cls,
        "mean": patches.mean(1),
        "queries": queries.mean(1),
        "concat": np.concatenate([cls, patches.mean(1)], axis=1),
    }
    for kind, value in expected.items():
        np.testing.assert_allclose(global_token(tokens, kind), value, atol=1e-6)


def shapes(c=None, **changes):
    method = methods.make(tiny.resolved(c or config(**changes)))
    return jax.eval_shape(lambda: method.init(jax.random.key(0))[0])


def test_learning_rates_shrink_towards_the_input():
    flat = trees.shapes(
        params := shapes(model__registers=2, finetune__hidden=8, finetune__norm=True)
    )
    assigned = optim.assign_rules(rules(2, (), 0.5), params)
    blocks = {"backbone/blocks/0": 0.25, "backbone/blocks/1": 0.5}
    first = ("patch", "cls", "position", "registers")
    wanted = blocks | {f"backbone/{name}": 0.125 for name in first}
    for path, rule in assigned.items():
        lr = next((lr for start, lr in wanted.items() if path.startswith(start)), 1.0)
        assert rule.lr == lr, path
    decayed = {path for path in flat if optim.is_decayed(path, flat[path], assigned[path])}
    assert decayed == {path for path in flat if path.endswith("kernel")}
    assert rules(12, (), 1.0)[0][1].lr == 1.0


def test_sets_without_the_labels_are_refused_before_anything_is_made():
    images = np.zeros((32, 24, 24, 3), np.uint8)
    for labels, name in ((None, "labels"), (np.arange(32) % 2, "classes")):
        with pytest.raises(InputError, match=name):
            api.prepare(config(), ArraySource(images, labels=labels))


def test_warnings():
    def kinds(c, loss):
        health = methods.make(tiny.resolved(c)).health
        return [text.split(":")[0] for text in health({"loss": loss})]

    assert kinds(config(teacher__momentum=0.5), 2.8) == []
    assert kinds(config(teacher__momentum=0.5), 3.5) == ["worse than chance"]
    slow = config(teacher__momentum=0.999, teacher__final_momentum=0.999)  # 12 steps
    assert kinds(slow, 2.8) == ["slow average"]
    slow.finetune.average = False
    assert kinds(slow, 2.8) == []


# --- where it starts


def numbers(tree, seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), tree)


def started(init_from, **changes):
    """The state before and after taking weights; other numbers than an initialised one has, which
    cost no compilation."""
    run = api.prepare(config(init_from=init_from, **changes))

    def put(tree, seed):
        arrays = numbers(tree, seed)
        return jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), arrays, tree)

    state = run.abstract._replace(params=put(run.abstract.params, 1))
    if state.teacher is not None:
        state = state._replace(teacher=put(run.abstract.teacher, 2))
    return state, start.start_from(run.config, state, evaluated=run.method.starts_evaluated)


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.fixture
def sop(monkeypatch):
    """The trees of student and teacher of a run of SOP, which any path gives."""
    parts = {"student": numbers(shapes(tiny.config("sop")), 3)}
    parts["teacher"] = numbers(parts["student"], 4)

    def weights(tree):
        arrays = trees.per_block(tree)
        return Weights("x", "sop", arrays, {path: path for path in arrays}, (), {})

    found = {part: weights(tree) for part, tree in parts.items()}
    monkeypatch.setattr(start, "_source", lambda path, mesh: Source("", "sop", found))
    return parts


def test_weights_and_their_average_both_start_from_the_teacher(sop):
    before, after = started("x")
    teacher = {k: x for k, x in sop["teacher"]["backbone"].items() if k != "mask_token"}
    same(after.params["backbone"], teacher)
    same(after.teacher["backbone"], teacher)
    same(after.params["classifier"], before.params["classifier"])


def test_the_first_layer_of_the_head_goes_on(sop):
    before, after = started("x", finetune__hidden=32, finetune__average=False)
    same(after.params["hidden"]["linear"], sop["teacher"]["head"]["mlp"]["0"])
    same(after.params["classifier"], before.params["classifier"])
    assert after.teacher is None
    with pytest.raises(InputError, match=r"finetune\.hidden"):
        started("x", finetune__hidden=16)  # another width
    before, after = started("x", finetune__hidden=16, init_only="backbone")
    same(after.params["hidden"], before.params["hidden"])


def save(folder, c, seed):
    """(path, parameters) of a network of that config."""
    params, path = numbers(shapes(c), seed), folder / "net.safetensors"
    api.save(Encoder(tiny.resolved(c), params), path)
    return str(path), params


def test_from_a_saved_network_at_another_size(tmp_path):
    path, params = save(tmp_path, tiny.config("sop"), 5)
    _, after = started(path, model__image_size=24, views__global_size=24)
    position = after.params["backbone"]["position"]
    assert position.shape == (37, 16)
    same(position[0], params["backbone"]["position"][0])
    same(after.params["backbone"]["blocks"], params["backbone"]["blocks"])


@pytest.mark.parametrize(
    "name, layer, changes",
    [
        ("cribo", "head/trunk/mlp/0", {}),
        ("stellar", "token_head/projection/mlp/0", dict(model__queries=3)),
    ],
)
def test_the_first_layer_of_other_heads(name, layer, changes, tmp_path):
    path, params = save(tmp_path, tiny.config(name), 8)
    _, after = started(path, finetune__hidden=32, **changes)
    first = {key: trees.flatten(params)[f"{layer}/{key}"] for key in ("kernel", "bias")}
    same(after.params["hidden"]["linear"], first)


def test_from_a_finetuned_network(tmp_path):
    path, params = save(tmp_path, config(), 6)
    same(started(path)[1].params, params)  # its classifier too
    before, after = started(path, finetune__norm=True)
    same(after.params["classifier"], before.params["classifier"])


def test_without_a_head_there_is_no_first_layer(tmp_path):
    path, _ = save(tmp_path, tiny.config("mae"), 7)
    with pytest.raises(InputError, match=r"finetune\.hidden"):
        started(path, finetune__hidden=32, model__position="sincos")


# --- learning


@pytest.mark.slow
def test_it_learns_a_few_images_by_heart():
    """Noise with labels, and what is evaluated is the average of the weights."""
    images = np.random.default_rng(0).integers(0, 256, (16, 24, 24, 3), np.uint8)
    source = ArraySource(images, labels=np.arange(16) % 4)
    sizes = dict(optim__batch_size=16, optim__steps=40, teacher__final_momentum=0.5)
    run = api.prepare(config(**PLAIN, **sizes, finetune__classes=4), source)
    train_step = step.compile_step(
        step.make_step(run.method, run.optimizer, run.config),
        run.mesh,
        jax.tree.map(lambda x: x.sharding, run.abstract),
    )
    state, accuracy = loop.fresh_state(run), []
    for batch in tiny.batches(run, 40):
        state, metrics = train_step(state, sharding.put_batch(batch, run.mesh))
        accuracy.append(float(metrics["accuracy"]))
    assert accuracy[0] < 0.7 and accuracy[-1] == 1.0
    section = evals.new("classify", data=dict(size=16))
    encoder, resized = Encoder(run.config, state.teacher), Prepared(source, size=16)
    scores = evals.TYPES["classify"].run(case_lib.Case(encoder, section, resized, resized, patch=4))
    assert scores == {"classify": 100.0}


@pytest.mark.slow
def test_a_run_is_scored_by_its_own_classifier(tmp_path, capsys):
    c = config(optim__steps=6)
    data = dict(kind="photos", size=16)
    c.evals.classify = evals.new("classify", data=data, test_examples=60)
    c.evals.tasks = ("classify",)
    assert api.train(c, tmp_path / "run") == loop.EXIT_DONE
    capsys.readouterr()
    assert cli.main(["ssl-jax", "eval", str(tmp_path / "run"), "--task=classify"]) == 0
    assert "classify_top5" in capsys.readouterr().out
    encoder = api.load(tmp_path / "run")
    extras = encoder(np.zeros((2, 16, 16, 3), np.float32), extras=True).extras
    assert extras["logits"].shape == (2, 17)
