"""What fine-tuning alone promises: targets, learning rates, where it starts, and that it learns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import api, cli, evals, methods, settings, trees
from ssl_jax.config import InputError
from ssl_jax.convert import fill, torch_in
from ssl_jax.data.arrays import ArraySource
from ssl_jax.evals import case as case_lib
from ssl_jax.methods import finetune
from ssl_jax.methods.encoder import Encoder
from ssl_jax.methods.finetune import image_token, rules, targets
from ssl_jax.models.vit import Tokens
from ssl_jax.train import loop, optim, sharding, start, step
from tests import tiny

PLAIN = {  # no augmentation at all
    "finetune__erase_prob": 0.0,
    "finetune__mixup": 0.0,
    "finetune__cutmix": 0.0,
    "finetune__smoothing": 0.0,
    "views__jitter_prob": 0.0,
    "views__gray_prob": 0.0,
    "views__blur_prob": (0.0, 0.0, 0.0),
    "views__global_scale": (1.0, 1.0),
    "model__drop_path": 0.0,
}


def config(**changes):
    return tiny.config("finetune", **changes)


def outputs(scores, label, partner, share):
    arrays = jnp.asarray(scores), jnp.asarray(label), jnp.asarray(partner), jnp.asarray(share)
    return finetune.Outputs(*arrays)


def test_targets_are_the_smoothed_shares():
    out = outputs(np.zeros((2, 4)), [1, 2], [3, 2], [0.7, 0.4])
    np.testing.assert_allclose(
        targets(out, 0.2), [[0.05, 0.61, 0.05, 0.29], [0.05, 0.05, 0.85, 0.05]], atol=1e-6
    )
    np.testing.assert_allclose(targets(out, 0.0), [[0, 0.7, 0, 0.3], [0, 0, 1, 0]], atol=1e-6)


def test_loss_and_accuracy_against_float64():
    method = methods.make(tiny.resolved(config(finetune__smoothing=0.1)))
    rng = np.random.default_rng(0)
    scores, label, partner = (
        rng.normal(size=(6, 17)),
        rng.integers(0, 17, 6),
        rng.integers(0, 17, 6),
    )
    share = np.array([0.9, 0.1, 0.5, 1.0, 0.3, 0.6])
    highest = [label[0], partner[1], partner[2], label[3], partner[4], partner[5]]
    scores[np.arange(6), highest] = 9.0  # wrong in rows 2 and 5, whose labels have half or more
    out = outputs(scores, label, partner, share)
    loss, result = method.objective(None, None, out, None, None, None)
    goal = np.full((6, 17), 0.1 / 17)
    for row in range(6):
        goal[row, label[row]] += 0.9 * share[row]
        goal[row, partner[row]] += 0.9 * (1 - share[row])
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
        np.testing.assert_allclose(image_token(tokens, kind), value, atol=1e-6)


def shapes(**changes):
    return jax.eval_shape(
        lambda: methods.make(tiny.resolved(config(**changes))).init(jax.random.key(0))[0]
    )


def test_learning_rates_shrink_towards_the_input():
    params = shapes(model__registers=2, finetune__hidden=8, finetune__norm=True)
    assigned = optim.assign_rules(rules(2, 0.5), params)
    flat = trees.shapes(params)
    lrs = {path: rule.lr for path, rule in assigned.items()}
    for path, lr in lrs.items():
        before = ("backbone/patch", "backbone/cls", "backbone/position", "backbone/registers")
        wanted = 1.0
        if path.startswith(before):
            wanted = 0.125
        elif path.startswith("backbone/blocks/"):
            wanted = {"0": 0.25, "1": 0.5}[path.split("/")[2]]
        assert lr == wanted, path
    assert {path.split("/")[0] for path, lr in lrs.items() if lr == 1} == {
        *("backbone", "hidden", "classifier")
    }
    decayed = {path for path in flat if optim.is_decayed(path, flat[path], assigned[path])}
    assert decayed == {path for path in flat if path.endswith("kernel")}
    assert rules(12, 1.0)[0][1].lr == 1.0


REFUSED = [
    (dict(views__global_count=2), "one view of each image; set views.global_count=1"),
    (dict(views__local_count=3), "views.local_count 3, but"),
    (dict(views__mask="block"), 'masks nothing; set views.mask="none"'),
    (dict(model__cls=False), 'model.cls is False; .*global_token="mean"'),
    (dict(finetune__global_token="queries"), "model.queries is 0"),
    (dict(finetune__global_token="concat", finetune__hidden=8), "reads one token"),
    (dict(finetune__randaugment__count=1), 'data.crop_on is "device"'),
    (dict(optim__batch_size=7), "mixed in pairs; use an even number"),
    (dict(finetune__repeats=5), "finetune.repeats is 5, but a batch of 8"),
    (dict(finetune__classes=1), "finetune.classes is 1"),
    (dict(finetune__smoothing=1.0), "finetune.smoothing is 1.0"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=str)
def test_contradictions_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        tiny.check(config(**changes))


def test_sets_without_the_labels_are_refused_before_anything_is_made():
    images = np.zeros((32, 24, 24, 3), np.uint8)
    with pytest.raises(InputError, match="has no labels"):
        api.prepare(config(), ArraySource(images))
    with pytest.raises(InputError, match="has 2 classes, but the method is set to 17"):
        api.prepare(config(), ArraySource(images, labels=np.arange(32) % 2))


def test_warnings():
    health = methods.make(tiny.resolved(config(teacher__momentum=0.5))).health
    assert health({"loss": 2.8}) == []
    assert [text.split(":")[0] for text in health({"loss": 3.5})] == ["worse than chance"]
    slow = config(teacher__momentum=0.999, teacher__final_momentum=0.999)
    (warning,) = methods.make(tiny.resolved(slow)).health({"loss": 2.8})
    assert warning.startswith("slow average: 99 %")  # 12 steps
    slow.finetune.average = False
    assert methods.make(tiny.resolved(slow)).health({"loss": 2.8}) == []


# --- where it starts


def numbers(tree, seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), tree)


def sop_shapes(name="sop"):
    method = methods.make(tiny.resolved(tiny.config(name)))
    return jax.eval_shape(lambda: method.init(jax.random.key(0))[0])


def fresh(init_from, **changes):
    """A run, and its state with other numbers than an initialised one has, which costs no
    compilation."""
    run = api.prepare(config(init_from=init_from, **changes))

    def put(tree, seed):
        numbers_of = numbers(tree, seed)
        return jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), numbers_of, tree)

    state = run.abstract._replace(params=put(run.abstract.params, 1))
    if state.teacher is not None:
        state = state._replace(teacher=put(run.abstract.teacher, 2))
    return run, state


def started(run, state):
    return start.start_from(run.config, state, evaluated=run.method.starts_evaluated)


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.fixture
def sop(monkeypatch):
    """The path of a run of SOP with a student and a teacher that differ; their trees."""
    parts = {"student": numbers(sop_shapes(), 3), "teacher": numbers(sop_shapes(), 4)}

    def weights(tree):
        arrays = trees.per_block(tree)
        return fill.Weights("x", "sop", arrays, {path: path for path in arrays}, (), {})

    found = {part: weights(tree) for part, tree in parts.items()}
    monkeypatch.setattr(torch_in, "load", lambda path: fill.Source("", "sop", found))
    return parts


def test_weights_and_their_average_both_start_from_the_teacher(sop):
    run, state = fresh("x")
    after = started(run, state)
    teacher = {k: x for k, x in sop["teacher"]["backbone"].items() if k != "mask_token"}
    same(after.params["backbone"], teacher)
    same(after.teacher["backbone"], teacher)
    same(after.params["classifier"], state.params["classifier"])


def test_the_first_layer_of_the_head_goes_on(sop, capsys):
    run, state = fresh("x", finetune__hidden=32, finetune__average=False)
    after = started(run, state)
    same(after.params["hidden"]["linear"], sop["teacher"]["head"]["mlp"]["0"])
    same(after.params["classifier"], state.params["classifier"])
    assert after.teacher is None
    assert "head/mlp/0" not in capsys.readouterr().out.split("not used")[1]
    run, state = fresh("x", finetune__hidden=16)
    with pytest.raises(InputError, match=r"another width \(finetune.hidden"):
        started(run, state)
    run, state = fresh("x", finetune__hidden=16, init_only="backbone")
    same(started(run, state).params["hidden"], state.params["hidden"])


def save(path, params, c):
    api.save(Encoder(tiny.resolved(c), params), path)
    return str(path)


def test_from_a_saved_network_at_another_size(tmp_path, capsys):
    params = numbers(sop_shapes(), 5)
    path = save(tmp_path / "net.safetensors", params, tiny.config("sop"))
    run, state = fresh(path, model__image_size=24, views__global_size=24)
    after = started(run, state)
    assert after.params["backbone"]["position"].shape == (37, 16)
    same(after.params["backbone"]["position"][0], params["backbone"]["position"][0])
    same(after.params["backbone"]["blocks"], params["backbone"]["blocks"])
    assert "position codes resized from 4 x 4 to 6 x 6" in capsys.readouterr().out


def test_from_a_finetuned_network(tmp_path):
    params = numbers(shapes(), 6)
    path = save(tmp_path / "net.safetensors", params, config())
    run, state = fresh(path)
    same(started(run, state).params, params)  # its classifier too
    run, state = fresh(path, data__kind="photos", finetune__norm=True)
    same(started(run, state).params["classifier"], state.params["classifier"])


def test_without_a_head_there_is_no_first_layer(tmp_path):
    c = tiny.config("mae")
    path = save(tmp_path / "net.safetensors", numbers(sop_shapes("mae"), 7), c)
    run, state = fresh(path, finetune__hidden=32, model__position="sincos")
    with pytest.raises(InputError, match="has no projection head .* set finetune.hidden=0"):
        started(run, state)


# --- learning


def test_it_learns_a_few_images_by_heart():
    """Noise with labels, and what is evaluated is the average of the weights."""
    images = np.random.default_rng(0).integers(0, 256, (16, 24, 24, 3), np.uint8)
    source = ArraySource(images, labels=np.arange(16) % 4)
    c = config(
        **PLAIN,
        finetune__classes=4,
        optim__batch_size=16,
        optim__steps=40,
        teacher__final_momentum=0.5,
        views__flip=0.0,
    )
    run = api.prepare(c, source)
    train_step = step.compile_step(
        step.make_step(run.method, run.optimizer, run.config),
        run.mesh,
        jax.tree.map(lambda x: x.sharding, run.abstract),
    )
    state, batches, accuracy = loop.fresh_state(run), loop.open_loader(run), []
    for _ in range(40):
        state, metrics = train_step(state, sharding.put_batch(next(batches), run.mesh))
        accuracy.append(float(metrics["accuracy"]))
    batches.close()
    assert accuracy[0] < 0.7 and accuracy[-1] == 1.0
    section = evals.new("classify", data=dict(size=16))
    encoder = Encoder(run.config, state.teacher)
    resized = case_lib.Prepared(source, size=16)
    scores = evals.classify.run(case_lib.Case(encoder, section, resized, resized, patch=4))
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
    text = capsys.readouterr().out
    assert "top-1" in text and "classify_top5" in text and "raw pixels" in text
    encoder = api.load(tmp_path / "run")
    extras = encoder(np.zeros((2, 16, 16, 3), np.float32), extras=True).extras
    assert extras["logits"].shape == (2, 17)
    settings.validate(c, num_devices=None)
