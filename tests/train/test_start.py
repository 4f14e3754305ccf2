"""`init_from`: what a new run starts from, what a resumed run ignores, and what is refused before
anything is written.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import FrozenConfigDict

from ssl_jax import api, cli, settings, trees
from ssl_jax import config as config_lib
from ssl_jax.config import InputError
from ssl_jax.convert import fill, torch_in
from ssl_jax.train import checkpoint, loop, state
from ssl_jax.train import start as start_lib
from tests import tiny
from tests.conftest import ROOT
from tests.convert import published

CONFIG = f"--config={ROOT / 'tests' / 'tiny_run.py'}:dino"
OFFSET = {"model__position_resize": "dino_offset"}


def torch_names(seed: int) -> dict:
    """A DINO checkpoint of random numbers with the shapes of a tiny run (its MLP has ratio 4, so
    not `published.encoder`).
    """
    numbers = published.Numbers(seed)
    t = {"backbone.cls_token": numbers(1, 1, 16), "backbone.pos_embed": numbers(1, 17, 16)}
    t |= {
        "backbone.patch_embed.proj.weight": numbers(16, 3, 4, 4),
        "backbone.patch_embed.proj.bias": numbers(16),
    }
    t |= published.timm_blocks(numbers, "backbone.blocks", 2, 16, 64) | published.norm(
        numbers, "backbone.norm", 16
    )
    return t | published.dino_head(seed + 1)


@pytest.fixture
def both(tmp_path):
    """A file with a student and a teacher, and their tensors."""
    student, teacher = torch_names(0), torch_names(5)
    np.savez(
        tmp_path / "full.npz",
        **published.prefixed("student.module.", student),
        **published.prefixed("teacher.", teacher),
    )
    return tmp_path / "full.npz", student, teacher


def fresh(name="dino", **changes):
    run = api.prepare(tiny.config(name, **changes))
    return run, loop.fresh_state(run)


def query(params):
    return np.asarray(params["backbone"]["blocks"]["attn"]["qkv"]["kernel"][0])


def test_student_and_teacher_go_to_their_own(both, capsys):
    path, student, teacher = both
    run, start = fresh(init_from=str(path), **OFFSET)
    for tree, t in ((start.params, student), (start.teacher, teacher)):
        np.testing.assert_array_equal(query(tree), t["backbone.blocks.0.attn.qkv.weight"].T)
        np.testing.assert_array_equal(tree["head"]["last"]["gain"], t["head.last_layer.weight_g"].T)
    text = capsys.readouterr().out
    assert f"init_from: {path}: DINO" in text and f"init_from, teacher: {path}: DINO" in text
    count = len(trees.shapes(start.params))
    assert text.count(f"{count} of {count} parameters taken") == 2


def test_the_rest_of_the_state_is_that_of_a_new_run(both):
    run, start = fresh(init_from=str(both[0]), **OFFSET)
    _, plain = fresh(**OFFSET)

    def rest(s):
        return s._replace(params=None, teacher=None)

    assert tiny.identical(rest(start), rest(plain))
    assert jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), start) == jax.tree.map(
        lambda x: (x.shape, x.dtype, x.sharding), plain
    )


def test_an_encoder_alone_starts_both_and_heads_stay_as_drawn(tmp_path, capsys):
    t = {name: x for name, x in torch_names(0).items() if not name.startswith("head")}
    np.savez(tmp_path / "encoder.npz", **t)
    _, start = fresh(init_from=str(tmp_path / "encoder.npz"))  # no DINO names: no rule is asked for
    _, plain = fresh()
    for tree in (start.params, start.teacher):
        np.testing.assert_array_equal(query(tree), t["backbone.blocks.0.attn.qkv.weight"].T)
    assert tiny.identical(start.params["head"], plain.params["head"]) and tiny.identical(
        start.teacher["head"], plain.teacher["head"]
    )
    text = capsys.readouterr().out
    assert (
        "as initialised: head/last/direction, head/last/gain, head/mlp/*/bias x 3,"
        " head/mlp/*/kernel x 3" in text
    )
    assert "teacher" not in text
    assert "set model.position_resize=dino_offset for an encoder of DINO" in text


def test_init_only(both):
    path, student, _ = both
    _, start = fresh(init_from=str(path), init_only="backbone", **OFFSET)
    _, plain = fresh(**OFFSET)
    np.testing.assert_array_equal(
        query(start.params), student["backbone.blocks.0.attn.qkv.weight"].T
    )
    assert tiny.identical(start.params["head"], plain.params["head"])
    with pytest.raises(InputError, match='init_only is "backbone" but init_from is ""'):
        api.prepare(tiny.config("dino", init_only="backbone"))


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_buffers_are_its_own(kind, monkeypatch):
    """The step donates the state: no two leaves may share memory, nor may a leaf be the source's,
    also where both trees start from one.
    """
    _, plain = fresh()
    arrays = {path: kind(x) for path, x in trees.per_block(plain.params).items()}
    weights = fill.Weights("x", "x", arrays, {path: path for path in arrays}, (), {})
    monkeypatch.setattr(torch_in, "load", lambda path: fill.Source("dino", "", {"": weights}))
    _, start = fresh(init_from="x")
    leaves = [
        *jax.tree.leaves((start.params, start.teacher)),
        *(x for x in arrays.values() if isinstance(x, jax.Array)),
    ]
    assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)
    assert tiny.identical((start.params, start.teacher), (plain.params, plain.params))


def test_the_same_on_any_mesh(both):
    _, one = fresh(init_from=str(both[0]), **OFFSET)
    run, eight = fresh(init_from=str(both[0]), mesh_data=2, mesh_fsdp=4, **OFFSET)
    assert tiny.identical(one, eight)
    assert jax.tree.map(lambda x: x.sharding, eight) == jax.tree.map(
        lambda x: x.sharding, run.abstract
    )


def test_position_codes_must_be_resized_as_theirs_were(both):
    with pytest.raises(
        InputError,
        match=(
            r"full\.npz \(DINO family.*misread its weights; add"
            r" --config\.model\.position_resize=dino_offset"
        ),
    ):
        fresh(init_from=str(both[0]))


# --- from the command line


def train(workdir, *arguments) -> int:
    return cli.main(["ssl-jax", "train", CONFIG, *arguments, f"--workdir={workdir}"])


def test_a_run_starts_from_them_and_when_resumed_reads_nothing(both, tmp_path, capsys, monkeypatch):
    path, workdir = both[0], tmp_path / "run"
    given = (
        f"--config.init_from={path}",
        "--config.model.position_resize=dino_offset",
        "--config.evals.tasks=()",
        "--config.optim.steps=4",
    )
    save = checkpoint.Checkpoints.save

    class Killed(Exception):
        pass

    def save_and_die(self, current, meta):
        save(self, current, meta)
        self.wait()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Checkpoints, "save", save_and_die)
        with pytest.raises(Killed):
            train(workdir, *given)
    assert "parameters taken" in capsys.readouterr().out
    assert json.loads((workdir / "config.json").read_text())["init_from"] == str(path)
    path.unlink()  # the checkpoint of step 2 is all there is
    assert train(workdir, *given) == loop.EXIT_DONE
    text = capsys.readouterr().out
    assert "continuing from step 2" in text and "parameters taken" not in text


def test_another_start_is_another_run(earlier, capsys):
    assert (
        train(earlier[0], "--config.seed=3", "--config.init_from=elsewhere.npz") == cli.EXIT_INPUT
    )
    assert "other settings: init_from is '' there, 'elsewhere.npz' here" in capsys.readouterr().err


REFUSED = {
    "none.npz": "no such weight file: none.npz",
    "README.md": "README.md is no weight file by its name",
    "tests": "no checkpoints in",
    "resnet.npz": "which no table knows",
    "deep.npz": "has 3 transformer blocks, this model 2",
    "wide.npz": "another number of prototypes",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_leaves_nothing_behind(tmp_path, capsys, monkeypatch, name):
    monkeypatch.chdir(ROOT)
    files = {
        "resnet.npz": {"layer1.conv.weight": np.ones((3, 3), np.float32)},
        "deep.npz": (
            torch_names(0)
            | published.timm_blocks(published.Numbers(0), "backbone.blocks", 3, 16, 64)
        ),
        "wide.npz": torch_names(0) | published.dino_head(out=25),
    }
    path = name
    if name in files:
        (tmp_path / "weights").mkdir()
        path = tmp_path / "weights" / name
        np.savez(path, **files[name])
    assert (
        train(
            tmp_path / "run",
            f"--config.init_from={path}",
            "--config.model.position_resize=dino_offset",
        )
        == cli.EXIT_INPUT
    )
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and REFUSED[name] in error
    assert not (tmp_path / "run").exists()


# --- from a run of our own


def save_run(folder, run, start, *steps):
    """Makes a run folder with checkpoints at those steps, whose teacher is not their student;
    returns their states.
    """
    saved, states = checkpoint.Checkpoints(folder / "checkpoints"), []
    for step in steps:
        moved = jax.tree.map(lambda x, step=step: x + step, start.params)
        states.append(start._replace(step=jnp.int32(step), params=moved))
        saved.save(
            states[-1],
            {
                "config": config_lib.to_json(run.config),
                "record": step * run.config.optim.batch_size,
            },
        )
    saved.wait()
    saved.close()
    return states


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """(folder, states) of a run of DINO with checkpoints at steps 10 and 12."""
    folder = tmp_path_factory.mktemp("earlier") / "run"
    return folder, save_run(folder, *fresh(seed=3), 10, 12)


@pytest.mark.parametrize("where", ["", "checkpoints", "checkpoints/10"])
def test_a_run_starts_from_another(earlier, where, capsys):
    folder, states = earlier
    _, start = fresh(init_from=str(folder / where))
    ends = states[0 if where.endswith("10") else 1]
    assert tiny.identical(start.params, ends.params) and tiny.identical(start.teacher, ends.teacher)
    assert int(start.step) == 0 and not any(
        np.asarray(x).any() for x in jax.tree.leaves(start.opt_state)
    )
    assert f"dino of ssl_jax, step {10 if where.endswith('10') else 12}" in capsys.readouterr().out


def test_another_method_takes_the_encoder(earlier, capsys):
    _, start = fresh("sop", init_from=str(earlier[0]))
    _, plain = fresh("sop")
    ends = earlier[1][1]

    def encoder(tree):
        return {
            path: x for path, x in trees.flatten(tree["backbone"]).items() if path != "mask_token"
        }

    assert tiny.identical(encoder(start.params), encoder(ends.params))
    assert tiny.identical(encoder(start.teacher), encoder(ends.teacher))
    assert tiny.identical(start.params["head"], plain.params["head"])
    text = capsys.readouterr().out
    assert (
        "as initialised: backbone/mask_token, head/" in text and "head is another one there" in text
    )


@pytest.mark.parametrize("method", ["dino", "mae"])
def test_a_run_without_a_teacher(earlier, method):
    """Within a method the student goes on; another method gets the network that is evaluated."""
    run, plain = fresh()
    values = run.config.to_dict() | {"init_from": str(earlier[0]), "method": method}
    start = start_lib.start_from(FrozenConfigDict(values), plain._replace(teacher=None))
    ends = earlier[1][1]
    assert start.teacher is None
    assert tiny.identical(start.params, ends.params if method == "dino" else ends.teacher)


def test_a_run_without_a_checkpoint(earlier, tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(InputError, match="holds no complete checkpoint"):
        fresh(init_from=str(tmp_path / "run"))


def test_the_two_stages_of_stellar(tmp_path, capsys):
    """The second stage drops the teacher and goes on from the student, with the same Fourier
    matrix; all from the folder of the first.
    """
    small = dict(
        targets="teacher",
        prototypes=6,
        head_hidden=8,
        head_out=8,
        decoder_width=8,
        decoder_depth=1,
        decoder_heads=2,
    )
    c = settings.base_config("stellar")
    c.update({key: tiny.config("dino")[key] for key in ("data", "views", "optim")})
    c.model.update(
        dict(size="custom", width=16, depth=1, heads=2, patch=4, image_size=16, queries=3)
    )
    c.stellar.update(small)
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


def test_the_untrained_network_of_a_comparison_stays_random(both):
    run, start = fresh(init_from=str(both[0]), **OFFSET)
    untrained = state.initial_weights(run.method, run.config.seed)
    assert not np.array_equal(query(untrained), query(start.teacher))
