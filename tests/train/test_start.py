"""`init_from`: what a new run starts from, what a resumed run ignores, and what is refused before
anything is written.
"""

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import FrozenConfigDict

from ssl_jax import api, cli, evals, trees
from ssl_jax import config as config_lib
from ssl_jax.config import InputError
from ssl_jax.convert import own
from ssl_jax.convert.weights import Source, Weights
from ssl_jax.data.arrays import ArraySource
from ssl_jax.evals import section
from ssl_jax.methods import frozen
from ssl_jax.train import best as best_lib
from ssl_jax.train import checkpoint, log, loop, state
from ssl_jax.train import start as start_lib
from tests import tiny
from tests.conftest import ROOT
from tests.convert import published

CONFIG = f"--config={ROOT / 'tests' / 'tiny_run.py'}:dino"
OFFSET = {"model__position_resize": "dino_offset"}


def torch_names(seed: int) -> dict:
    """A DINO checkpoint of random numbers with the shapes of a tiny run, whose MLP has ratio 4."""
    numbers = published.Numbers(seed)
    t = {
        "backbone.cls_token": numbers(1, 1, 16),
        "backbone.pos_embed": numbers(1, 17, 16),
        "backbone.patch_embed.proj.weight": numbers(16, 3, 4, 4),
        "backbone.patch_embed.proj.bias": numbers(16),
    }
    t |= published.timm_blocks(numbers, "backbone.blocks", 2, 16, 64)
    return t | published.norm(numbers, "backbone.norm", 16) | published.dino_head(seed + 1)


@pytest.fixture
def both(tmp_path):
    """A file with a student and a teacher, and their tensors."""
    student, teacher = torch_names(0), torch_names(5)
    named = published.prefixed("student.module.", student) | published.prefixed("teacher.", teacher)
    np.savez(tmp_path / "full.npz", **named)
    return tmp_path / "full.npz", student, teacher


def fresh(name="dino", **changes):
    run = api.prepare(tiny.config(name, **changes))
    return run, loop.fresh_state(run)


@pytest.fixture(scope="module")
def plain():
    """The state of a run that starts from nothing."""
    return fresh()[1]


def query(params):
    return np.asarray(params["backbone"]["blocks"]["attn"]["qkv"]["kernel"][0])


def placed(state):
    return jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), state)


def test_student_and_teacher_go_to_their_own_and_the_rest_is_new(both, plain):
    path, student, teacher = both
    run, start = fresh(init_from=str(path), **OFFSET)
    for tree, t in ((start.params, student), (start.teacher, teacher)):
        np.testing.assert_array_equal(query(tree), t["backbone.blocks.0.attn.qkv.weight"].T)
        np.testing.assert_array_equal(tree["head"]["last"]["gain"], t["head.last_layer.weight_g"].T)
    rest = [s._replace(params=None, teacher=None) for s in (start, plain)]
    assert tiny.identical(*rest) and placed(start) == placed(plain)
    # The untrained network of a comparison stays random.
    untrained = state.initial_weights(run.method, run.config.seed, run.config.model)
    assert not np.array_equal(query(untrained), query(start.teacher))
    only = fresh(init_from=str(path), init_only="backbone", **OFFSET)[1].params
    assert tiny.identical(only["backbone"], start.params["backbone"])
    assert tiny.identical(only["head"], plain.params["head"])


def test_an_encoder_alone_starts_both_and_heads_stay_as_drawn(tmp_path, plain, capsys):
    t = {name: x for name, x in torch_names(0).items() if not name.startswith("head")}
    np.savez(tmp_path / "encoder.npz", **t)
    _, start = fresh(init_from=str(tmp_path / "encoder.npz"))  # no DINO names: no rule is asked for
    for tree, other in ((start.params, plain.params), (start.teacher, plain.teacher)):
        np.testing.assert_array_equal(query(tree), t["backbone.blocks.0.attn.qkv.weight"].T)
        assert tiny.identical(tree["head"], other["head"])
    text = capsys.readouterr().out
    assert "head/last/direction" in text and "model.position_resize=dino_offset" in text


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_buffers_are_its_own(kind, plain, monkeypatch):
    """The step donates the state: leaves share no memory with each other or the source."""
    arrays = {path: kind(x) for path, x in trees.per_block(plain.params).items()}
    weights = Weights("x", "x", arrays, {path: path for path in arrays}, (), {})
    monkeypatch.setattr(start_lib, "_source", lambda path, mesh: Source("dino", "", {"": weights}))
    _, start = fresh(init_from="x")
    leaves = [
        *jax.tree.leaves((start.params, start.teacher)),
        *(x for x in arrays.values() if isinstance(x, jax.Array)),
    ]
    assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)
    assert tiny.identical((start.params, start.teacher), (plain.params, plain.params))


@pytest.mark.parametrize("how, channels", [("mean", 5), ("repeat", 6), ("mean", 1)])
def test_a_patch_embedding_of_three_channels_made_one_of_more(both, capsys, how, channels):
    """An image of equal channels gives the tokens that a gray one gives."""
    path, student, _ = both
    c = tiny.config("dino", init_from=str(path), views__gray_prob=0.0, **OFFSET)
    c.views.jitter, c.init_channels = (0.4, 0.4, 0.0, 0.0), how
    c.model.in_channels, c.model.mean, c.model.std = channels, (0.5,) * channels, (0.2,) * channels
    records = ArraySource(np.zeros((40, 24, 24, channels), np.uint8))
    c.evals.tasks = ()
    kernel = loop.fresh_state(api.prepare(c, records)).params["backbone"]["patch"]["kernel"]
    kernel = np.asarray(kernel).reshape(16, channels, 16)
    theirs = student["backbone.patch_embed.proj.weight"].transpose(2, 3, 1, 0).reshape(16, 3, 16)
    np.testing.assert_allclose(kernel.sum(axis=1), theirs.sum(axis=1), atol=1e-5)
    second = theirs.mean(axis=1) if how == "mean" else theirs[:, 1]
    np.testing.assert_allclose(kernel[:, 1 % channels], second * 3 / channels, atol=1e-6)
    assert f"of 3 channels made one of {channels} ({how})" in capsys.readouterr().out


def test_a_gram_teacher_of_three_channels(both):
    c = tiny.config("sop", gram__weight=1.0, gram__file=str(both[0]), views__gray_prob=0.0)
    c.model.in_channels, c.model.mean, c.model.std = 5, (0.5,) * 5, (0.2,) * 5
    c.model.position_resize, c.views.jitter, c.evals.tasks = "dino_offset", (0.4, 0.4, 0.0, 0.0), ()
    run = api.prepare(c, ArraySource(np.zeros((40, 24, 24, 5), np.uint8)))
    zeros = jax.tree.map(
        lambda x: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding),
        {name: getattr(run.abstract, name) for name in ("params", "teacher", "constants")},
    )
    made = start_lib.anchored(run.config, run.abstract._replace(**zeros)).constants
    kernel = np.asarray(made[frozen.NAME]["patch"]["kernel"]).reshape(16, 5, 16)
    np.testing.assert_array_equal(kernel[:, 0], kernel[:, 4])
    assert kernel.any()


@pytest.mark.slow
def test_the_same_on_any_mesh(both):
    _, one = fresh(init_from=str(both[0]), **OFFSET)
    run, eight = fresh(init_from=str(both[0]), mesh_data=2, mesh_fsdp=4, **OFFSET)
    assert tiny.identical(one, eight)
    assert placed(eight) == placed(run.abstract)


def train(workdir, *arguments) -> int:
    command = ["ssl-jax", "train", CONFIG, "--config.model.depth=2", *arguments]
    return cli.main([*command, f"--workdir={workdir}"])


@pytest.mark.slow
def test_a_resumed_run_reads_none_of_them(both, tmp_path, capsys):
    given = [f"--config.init_from={both[0]}", "--config.model.position_resize=dino_offset"]
    given += ["--config.evals.tasks=()", "--config.optim.steps=2"]
    assert train(tmp_path / "run", *given) == loop.EXIT_DONE
    both[0].unlink()
    assert train(tmp_path / "run", *given, "--extend=4") == loop.EXIT_DONE
    assert "resuming from step 2" in capsys.readouterr().out


@pytest.mark.slow
def test_the_model_follows_the_weights(both, tmp_path, capsys):
    """Also of a run that is continued when they are gone; its best network stays. What a start
    that ended before its first checkpoint has left says nothing."""
    run = tmp_path / "run"
    run.mkdir()
    failed = tiny.resolved(tiny.config("dino", model__depth=1))
    (run / "config.json").write_text(config_lib.to_json(failed))
    given = [f"--config.init_from={both[0]}", "--config.init_model=True", "--config.optim.steps=2"]
    given += ["--config.model.depth=3", "--config.model.heads=1", "--config.evals.best=knn"]
    given += ["--config.evals.tasks=knn", "--config.evals.every_steps=1"]
    assert train(run, *given, "--config.evals.baselines=False") == loop.EXIT_DONE
    config = config_lib.from_json((run / "config.json").read_text())
    assert config.model.depth == 2 and config.model.position_resize == "dino_offset"
    assert config.model.heads == 1 and config.model.image_size == 16
    rows = [row["knn"] for row in log.read_rows(run / "evals.jsonl")]
    trained = json.loads((run / "results.json").read_text())["trained"]
    assert trained["knn_best_of_run"] == max(rows) and trained["knn"] == rows[-1]
    assert f"best knn of the run: {max(rows):.1f}" in (run / "results.txt").read_text()
    best = api.load(run / "best.safetensors")
    assert rows[best.step] == max(rows) and best.step == rows.index(max(rows))
    both[0].unlink()
    given += ["--config.evals.baselines=False", "--extend=3"]
    assert train(run, *given) == loop.EXIT_DONE
    assert "resuming from step 2" in capsys.readouterr().out


@pytest.mark.parametrize("width, heads", [(0, 12), (384, 12), (96, 6)])
def test_heads_that_no_file_states_are_the_configs(tmp_path, width, heads):
    """MoCo v3's ViT-S has 12. A config of another width says nothing of these weights."""
    np.savez(tmp_path / "a.npz", **published.encoder(depth=1, d=384))
    config = tiny.config("dino", init_from=str(tmp_path / "a.npz"), init_model=True)
    config.model.heads, config.model.width = 12, width
    assert start_lib.shaped(config).model.heads == heads


def test_weights_are_asked_for():
    with pytest.raises(InputError, match="--config.init_from=PATH"):
        api.prepare(tiny.config("dino", init_model=True))


def test_training_that_makes_a_network_worse_is_named(tmp_path):
    config = tiny.config("dino", evals__best="knn", evals__knn=evals.new("knn"))
    config.evals.tasks = ("knn",)
    kept = best_lib.Best(tmp_path, config)
    said = []
    for step, score in enumerate((50.0, 40.0, 60.0, 55.0, 45.0)):
        with open(tmp_path / "evals.jsonl", "a") as file:
            file.write(json.dumps({"step": step, "knn": score}) + "\n")
        network = {"w": np.full(2, step, np.float32)}
        said.append(kept.note(step, {"knn": score}, lambda network=network: (network, None)))
    assert ["warning" in text for text in said] == [False, True, False, False, True]
    saved = own.read(tmp_path / "best.safetensors")
    assert saved.notes["step"] == 2 and saved.params["w"][0] == 2
    assert best_lib.Best(tmp_path, config).note(9, {"rank": 1.0}, lambda: ({}, None)) == ""
    results = {"untrained network": {"knn": 9.0}, "trained": {"knn": 45.0}}
    trained = {"knn": 45.0, "knn_best_of_run": 60.0}
    assert kept.added(results) == {**results, "trained": trained}
    assert best_lib.Best(tmp_path, tiny.config("dino")).added(results) == results
    config.evals.best = "knn_k7"
    with pytest.raises(InputError, match="knn_k20"):
        best_lib.Best(tmp_path, config).note(9, {"knn": 1.0, "knn_k20": 1.0}, lambda: ({}, None))


def test_of_some_scores_the_lowest_is_best(tmp_path):
    types = {f"evals__{name}": evals.new(name) for name in ("knn", "collapse")}
    config = tiny.config("dino", **types)
    config.evals.tasks, config.evals.best = ("knn", "collapse"), "collapse"
    kept = best_lib.Best(tmp_path, config)
    for step, score in enumerate((50.0, 60.0, 40.0)):
        with open(tmp_path / "evals.jsonl", "a") as file:
            file.write(json.dumps({"step": step, "collapse": score}) + "\n")
        text = kept.note(step, {"collapse": score}, lambda: ({}, None))
        assert ("warning" in text) == (step == 1)
    assert kept.added({"trained": {}})["trained"] == {"collapse_best_of_run": 40.0}
    assert not section.is_lower_better(config, "collapse_rank")
    config.evals.best = "linear"
    with pytest.raises(InputError, match="evals.best.*linear.*knn, collapse"):
        evals.fit_to_data(config, given=["evals.best"])
    adapted, notes = evals.fit_to_data(config)  # of a config's own choice
    assert not adapted.evals.best and "linear" in notes[-1]


REFUSED = {  # {file: what its refusal names}
    "none.npz": "none.npz",
    "README.md": "README.md",
    "deep.npz": "3 transformer blocks",
    "wide.npz": "prototypes",
    "full.npz": "model.position_resize=dino_offset",  # or its position embeddings are misread
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_leaves_nothing_behind(both, tmp_path, capsys, name):
    deep = published.timm_blocks(published.Numbers(0), "backbone.blocks", 3, 16, 64)
    np.savez(tmp_path / "deep.npz", **torch_names(0) | deep)
    np.savez(tmp_path / "wide.npz", **torch_names(0) | published.dino_head(out=25))
    (tmp_path / "README.md").write_text("# Words")
    offset = [] if name == "full.npz" else ["--config.model.position_resize=dino_offset"]
    init = f"--config.init_from={tmp_path / name}"
    assert train(tmp_path / "run", init, *offset) == cli.EXIT_INPUT
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and REFUSED[name] in error
    assert not (tmp_path / "run").exists()


def save_run(folder, run, start, *steps):
    """The states at those steps, of which checkpoints are made; the teacher is not the student."""
    saved, states = checkpoint.Checkpoints(folder / "checkpoints"), []
    for step in steps:
        moved = jax.tree.map(lambda x, step=step: x + step, jax.device_get(start.params))
        states.append(start._replace(step=jnp.int32(step), params=moved))
        saved.save(states[-1], {"config": config_lib.to_json(run.config), "record": 8 * step})
    saved.wait()
    saved.close()
    return states


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """(folder, states) of a run of DINO with checkpoints at steps 10 and 12."""
    folder = tmp_path_factory.mktemp("earlier") / "run"
    return folder, save_run(folder, *fresh(seed=3), 10, 12)


@pytest.mark.parametrize("where", ["", "checkpoints/10"])
def test_a_run_starts_from_another(earlier, where):
    folder, states = earlier
    _, start = fresh(init_from=str(folder / where))
    ends = states[0 if where else 1]
    assert tiny.identical(start.params, ends.params) and tiny.identical(start.teacher, ends.teacher)
    assert int(start.step) == 0
    chex.assert_trees_all_equal(start.opt_state, jax.tree.map(np.zeros_like, start.opt_state))


def test_another_method_takes_the_encoder(earlier):
    _, start = fresh("sop", init_from=str(earlier[0]))
    _, fresh_sop = fresh("sop")
    ends = earlier[1][1]

    def encoder(tree):
        return {k: x for k, x in trees.flatten(tree["backbone"]).items() if k != "mask_token"}

    assert tiny.identical(encoder(start.params), encoder(ends.params))
    assert tiny.identical(encoder(start.teacher), encoder(ends.teacher))
    assert tiny.identical(start.params["head"], fresh_sop.params["head"])


def test_a_run_without_a_teacher_gets_the_network_that_is_evaluated(earlier, plain):
    """Of another method; within one the student goes on, see the stages of STELLAR."""
    config = api.prepare(tiny.config("dino")).config.to_dict()
    values = config | {"init_from": str(earlier[0]), "method": "mae"}
    start = start_lib.start_from(FrozenConfigDict(values), plain._replace(teacher=None))
    assert start.teacher is None
    assert tiny.identical(start.params, earlier[1][1].teacher)


def test_a_run_that_is_none_and_another_start_are_refused(earlier, tmp_path, capsys):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(InputError, match="checkpoint"):
        fresh(init_from=str(tmp_path / "run"))
    # Every weight but the stem's would fit.
    with pytest.raises(InputError, match=r"model\.stem=linear"):
        fresh(init_from=str(earlier[0]), model__stem="conv")
    changed = ("--config.seed=3", "--config.init_from=elsewhere.npz")
    assert train(earlier[0], *changed) == cli.EXIT_INPUT
    assert "init_from is '' there" in capsys.readouterr().err


@pytest.mark.slow
def test_the_two_stages_of_stellar(tmp_path):
    """The second one drops the teacher and goes on from the student, with its Fourier matrix."""
    c = tiny.config("stellar", model__depth=1, stellar__targets="teacher")
    run = api.prepare(c)
    start = loop.fresh_state(run)
    (ends,) = save_run(tmp_path / "first", run, start, 7)
    c.update(dict(seed=5, init_from=str(tmp_path / "first")))
    c.stellar.targets = "self"
    second = loop.fresh_state(api.prepare(c))
    assert second.teacher is None and start.teacher is not None
    assert tiny.identical(second.params, ends.params)
    assert tiny.identical(second.constants, ends.constants)
    assert not tiny.identical(second.constants, api.prepare(c).method.constants())  # another seed
