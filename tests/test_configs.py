"""Every variant of every config file can run: checked, resolved and laid out at full size on eight devices, without data or memory."""

import ast
import pathlib

import jax
import pytest

from ssl_jax import config as config_lib
from ssl_jax import loop, methods, show, step
from ssl_jax.config import InputError
from ssl_jax.models import zoo
from ssl_jax.views import recipe

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMALL = ("cifar10", "imagenette96", "digits")
VARIANTS = {"dino": ("vits16", "vitb16", "vitl16", *SMALL), "sop": ("vits16", "vitb16", "vitl16", *SMALL), "quickstart": ("",)}
CASES = [(file, variant) for file, variants in VARIANTS.items() for variant in variants]


LENGTHS = {"imagenet2012": 1_281_167, "cifar10": 50_000, "imagenette96": 9_469}


class Records:
    """As many images as the set has, none of them there."""

    def __init__(self, name):
        self._length = LENGTHS[name]

    def __len__(self):
        return self._length


def prepared(config):
    return loop.prepare(config, Records(config.data.name) if config.data.kind == "tfds" else None)


def load(file: str, variant: str):
    return config_lib.load(str(ROOT / "configs" / f"{file}.py") + (f":{variant}" if variant else ""))


def test_every_config_file_is_tested():
    def defines_get_config(path):
        return any(isinstance(n, ast.FunctionDef) and n.name == "get_config" for n in ast.parse(path.read_text()).body)

    assert {path.stem for path in (ROOT / "configs").rglob("*.py") if defines_get_config(path)} == set(VARIANTS)


@pytest.mark.parametrize("file", ["dino", "sop"])
def test_every_variant_is_tested_and_a_misspelt_one_named(file):
    with pytest.raises(InputError, match='unknown variant "cifar"; did you mean "cifar10"') as caught:
        load(file, "cifar")
    listed = str(caught.value).partition("known: ")[2].rstrip(")").split(", ")
    assert set(listed) == set(VARIANTS[file])


@pytest.mark.parametrize(("file", "variant"), CASES)
def test_a_variant_can_run(file, variant):
    run = prepared(load(file, variant))
    leaves = jax.tree.leaves(run.abstract)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding is not None for leaf in leaves)
    groups = dict(run.method.views(run.config).groups)
    grid = run.config.model.image_size
    assert groups["global"].size == grid, "global crops have the native size of the position codes"
    assert "local" not in groups or groups["local"].size < grid
    assert run.config.run.warmup_steps < run.config.run.total_steps
    assert run.config.checkpoint.every_steps <= run.config.run.total_steps


@pytest.mark.parametrize(("file", "variant"), [("dino", "vits16"), ("dino", "cifar10"), ("sop", "vits16"), ("sop", "digits")])
def test_a_step_fits_together_at_full_size(file, variant):
    run = prepared(load(file, variant))
    c, side = run.config, {"cifar10": 32, "digits": 64}.get(variant, 0)
    batch = recipe.abstract_batch(run.method.views(c), c.optim.batch_size, (side, side), c.data.crop_on)
    after, metrics = jax.eval_shape(step.make_step(run.method, run.optimizer, c), run.abstract, batch)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), run.abstract)
    assert all(m.shape == () for m in metrics.values())


@pytest.mark.parametrize(("variant", "encoder"), [("vits16", 21.7), ("vitb16", 85.8), ("vitl16", 303.3)])
@pytest.mark.parametrize("file", ["dino", "sop"])
def test_full_size_presets_have_the_papers_networks(file, variant, encoder):
    """Millions of parameters of ViT-S/B/L at patch 16, without a classifier."""
    run = prepared(load(file, variant))
    assert zoo.count(run.abstract.params["backbone"]) / 1e6 == pytest.approx(encoder, abs=0.06)
    assert run.config.run.peak_lr == pytest.approx((5e-4 if variant == "vits16" else 7.5e-4) * 4)  # batch 1024
    assert run.config.eval.crop == 224 and run.config.eval.image.size == 256


def test_memories_and_prototypes_at_full_size():
    sop = prepared(load("sop", "vits16")).abstract.carry
    assert sop["cls"]["memory"]["rows"]["embedding"].shape == (65536, 256)
    assert sop["patch"]["memory"]["rows"]["embedding"].shape == (8192, 256)
    assert prepared(load("dino", "vits16")).abstract.carry["center"].shape == (65536,)


@pytest.mark.parametrize("file", ["dino", "sop"])
@pytest.mark.parametrize("variant", SMALL)
def test_small_presets_evaluate_the_set_they_train_on(file, variant):
    config = load(file, variant)
    config.data.dir = "sets"
    config = prepared(config).config
    assert all(config.eval.image[key] == config.data[key] for key in ("kind", "name", "size"))
    assert config.eval.image.dir == "sets"
    assert config.eval.image.test_split != config.data.split
    assert not config.expected.to_dict(), "an expected number needs an origin"


def test_a_full_size_preset_is_shown_without_its_data():
    config = load("sop", "vits16")
    config.data.dir = "nowhere"
    report = show.text(load("sop", "vits16"), config)
    assert "expected knn                     75.3 (paper, table 1)" in report
    assert report.splitlines()[-1].startswith("steps assume 1000 an epoch, the data cannot be opened: data.dir: nowhere")


@pytest.mark.parametrize("name", sorted(methods.METHODS))
def test_a_misspelt_key_of_a_method_is_no_new_key(name):
    with pytest.raises((AttributeError, KeyError)):
        methods.base_config(name)[name].update(dict(misspelt=1))
