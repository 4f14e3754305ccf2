"""Every variant of every config and every row of the papers can work: loaded, checked, resolved;
small ones laid out on eight devices.

Nothing is compiled, and no data or memory is needed. A new config file is tested too.
"""

import functools
import re

import jax
import pytest

from ssl_jax import api, evals, methods, papers, settings
from ssl_jax import config as config_lib
from ssl_jax.cli import show
from ssl_jax.config import InputError
from ssl_jax.models import zoo
from ssl_jax.train import step
from ssl_jax.views import recipe

SMALL = ("cifar10", "imagenette96", "photos", "photo_collages")
NAMES = list(config_lib.shipped())
PAPERS = papers.names()


@functools.cache
def variants(name: str) -> tuple[str, ...]:
    """A config without variants has the one that no argument asks for."""
    module = vars(config_lib.read_module(config_lib.find(name)))
    return module.get("VARIANTS") or module.get("METHODS") or ("",)


WITH_VARIANTS = [name for name in NAMES if variants(name) != ("",)]
# The quickstart has variants of these names too, which are no presets.
WITH_SMALL = [n for n in NAMES if n != "quickstart" and set(SMALL) & set(variants(n))]
VIT = ("dino", "ibot", "massl", "sop", "sove")  # a plain ViT under "backbone"

LENGTHS = {
    "imagenet2012": 1_281_167,
    "imagenet2012_subset/1pct": 12_811,
    "imagenet2012_subset/10pct": 128_116,
    "cars196": 8_144,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "i_naturalist2018": 437_513,
    "oxford_flowers102": 2_040,
    "imagenette96": 9_469,
    "coco/2017": 118_287,
    "places365_small": 1_803_460,
}


class Records:
    """As many images as the set has, none of them there."""

    def __init__(self, name):
        self._length = LENGTHS[name]

    def __len__(self):
        return self._length


def load(name: str, variant: str):
    return config_lib.load(f"{name}:{variant}" if variant else name)


def supplied(config):
    """The config with what its user has to bring: STELLAR's published runs rebuild codes of a
    tokenizer whose weights must be fetched.
    """
    if (
        config.method == "stellar"
        and config.stellar.target == "vq"
        and config.stellar.weights.reconstruction > 0
    ):
        with pytest.raises(InputError, match="tokenizer"):
            methods.get("stellar").check(config)
        config.stellar.target = "pixel"
    return config


def prepared(config):
    config = supplied(config)
    return api.prepare(config, Records(config.data.name) if config.data.kind == "tfds" else None)


def resolved(config):
    """Checked and resolved as `api.prepare` does, without laying anything out."""
    config = supplied(config)
    settings.validate(config, num_devices=8)
    methods.get(config.method).check(config)
    records = config.data.length
    if config.data.kind == "tfds":
        percent = re.search(r"\[:(\d+)%\]", config.data.split)
        records = LENGTHS[config.data.name] * (int(percent[1]) if percent else 100) // 100
    config = settings.resolve(config, num_records=records, num_devices=8)
    return methods.make(config), config


@pytest.mark.parametrize("name", NAMES)
def test_every_variant_can_work(name):
    for variant in variants(name):
        method, config = resolved(load(name, variant))
        views = method.views
        hash(views)
        groups = dict(views.groups)
        assert groups["global"].size == config.model.image_size, (
            f"{variant}: global crops have the native size of the position codes"
        )
        assert "local" not in groups or groups["local"].size < groups["global"].size, variant
        assert config.run.warmup_steps < config.run.total_steps, variant
        assert config.checkpoint.every_steps <= config.run.total_steps, variant


@pytest.mark.parametrize("name", PAPERS)
def test_every_row_can_work_and_carries_its_numbers(name):
    same = {}
    for row in papers.load(name):
        config = row.load()
        assert config.expected.to_dict() == row.expected, row.name
        _, config = resolved(config)
        flat = {
            key: value
            for key, value in config_lib.flatten(config).items()
            if not key.startswith("expected")
        }
        same.setdefault(str(flat), []).append(row)
    # What a row changes must change something: equal configs are one setting that the papers print
    # in two tables.
    for rows in same.values():
        assert len({row.config for row in rows}) == 1, [row.name for row in rows]


@pytest.mark.parametrize("name", PAPERS)
def test_published_variants_have_numbers_and_small_ones_have_none(name):
    rows = papers.load(name)
    assert not any(row.config.endswith(SMALL) for row in rows), "an expected number has an origin"
    for variant in SMALL:
        assert not load(name, variant).expected.to_dict()
    assert any(load(name, variant).expected for variant in variants(name))
    for row in rows:
        if not row.changes:
            assert config_lib.load(row.config).expected.to_dict() == papers.expected(row.config)


@pytest.mark.parametrize("name", WITH_VARIANTS)
def test_a_misspelt_variant_is_named(name):
    first = variants(name)[0]
    with pytest.raises(
        InputError, match=f'unknown (variant|method) "{first}x"; did you mean "{first}"'
    ):
        load(name, f"{first}x")


def test_a_shipped_config_is_found_by_name_and_by_path(monkeypatch, tmp_path, root):
    short = config_lib.load("sop:vits16")
    monkeypatch.chdir(root)
    assert config_lib.load("configs/sop.py:vits16") == short
    assert config_lib.load(f"{root / 'configs' / 'sop.py'}:vits16") == short
    monkeypatch.chdir(tmp_path)
    assert config_lib.load("sop:vits16") == short
    with pytest.raises(InputError, match='unknown config "sopp"; did you mean "sop"'):
        config_lib.load("sopp:vits16")
    with pytest.raises(InputError, match='no file "configs/sop.py" here.*--config=sop$'):
        config_lib.load("configs/sop.py:vits16")
    with pytest.raises(InputError, match='unknown config "presets"'):
        config_lib.load("presets")


@pytest.mark.parametrize(
    ("name", "variant"),
    [(n, v) for n in WITH_SMALL for v in ("cifar10", "photo_collages") if v in variants(n)],
)
def test_small_presets_are_laid_out(name, variant):
    run = prepared(load(name, variant))
    leaves = jax.tree.leaves(run.abstract)
    assert all(
        isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding is not None for leaf in leaves
    )


@pytest.mark.parametrize(
    ("name", "variant"), [("dino", "cifar10"), ("sop", "vits16"), ("massl", "photos")]
)
def test_a_step_fits_together_at_full_size(name, variant):
    run = prepared(load(name, variant))
    c, side = run.config, {"cifar10": 32, "photos": 64}.get(variant, 0)
    batch = recipe.abstract_batch(
        run.method.views, c.optim.batch_size, (side, side), c.data.crop_on
    )
    after, metrics = jax.eval_shape(
        step.make_step(run.method, run.optimizer, c), run.abstract, batch
    )
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(
        lambda x: (x.shape, x.dtype), run.abstract
    )
    assert all(m.shape == () for m in metrics.values())


@pytest.mark.parametrize(
    ("variant", "encoder"), [("vits16", 21.7), ("vitb16", 85.8), ("vitl16", 303.3)]
)
@pytest.mark.parametrize("name", VIT)
def test_full_size_presets_have_the_papers_networks(name, variant, encoder):
    """Millions of parameters of ViT-S/B/L at patch 16, without a classifier."""
    method, config = resolved(load(name, variant))
    params, _ = jax.eval_shape(lambda: method.init(jax.random.key(0)))
    assert zoo.count(params["backbone"]) / 1e6 == pytest.approx(encoder, abs=0.06)
    assert config.run.peak_lr == pytest.approx(
        (5e-4 if variant == "vits16" else 7.5e-4) * 4
    )  # batch 1024
    whole = [e for e in evals.named(config).values() if e.type != "dense"]
    assert all(e.crop == 224 and e.data.size == 256 for e in whole)


def carry(name: str, variant: str):
    method, config = resolved(load(name, variant))
    return jax.eval_shape(lambda: method.init(jax.random.key(0)))[1]


def test_memories_and_prototypes_at_full_size():
    def rows(held):
        return held["memory"]["rows"]["embedding"].shape

    for file in ("sop", "sove"):
        assert {name: rows(held) for name, held in carry(file, "vits16").items()} == {
            "cls": (65536, 256),
            "patch": (8192, 256),
        }
    assert {name: rows(held) for name, held in carry("massl", "vits16").items()} == {
        "cls": (131072, 256)
    }
    assert carry("dino", "vits16")["center"].shape == (65536,)


def test_published_commands_of_massl():
    small, base = (load("massl", variant) for variant in ("vits16", "vitb16"))
    assert (small.optim.lr, small.optim.warmup_epochs, small.teacher.momentum) == (5e-4, 0, 0.992)
    assert (
        base.optim.lr,
        base.optim.final_lr,
        base.optim.warmup_epochs,
        base.teacher.momentum,
    ) == (7.5e-4, 2e-6, 10, 0.996)
    assert (small.massl.teacher_temperature_epochs, base.massl.teacher_temperature_epochs) == (
        30,
        50,
    )
    for c in (small, base):
        assert (c.views.global_scale, c.views.local_scale, c.views.mask) == (
            (0.32, 1.0),
            (0.05, 0.32),
            "none",
        )
        assert (c.optim.clip, c.optim.clip_by, c.model.drop_path) == (3.0, "tensor", 0.1)


@pytest.mark.parametrize("name", WITH_SMALL)
def test_small_presets_evaluate_the_set_they_train_on(name):
    for variant in set(SMALL) & set(variants(name)):
        config = load(name, variant)
        config.data.dir = "sets"
        _, config = resolved(config)
        section = config.evals["dense" if variant == "photo_collages" else "knn"].data
        assert all(section[key] == config.data[key] for key in ("kind", "name", "size"))
        assert section.dir == "sets" and section.test_split != config.data.split


def test_a_full_size_preset_is_shown_without_its_data():
    config = load("sop", "vits16")
    config.data.dir = "nowhere"
    report = show.text({"config file": load("sop", "vits16"), "command line": config})
    assert "expected knn                     75.3 (paper, table 1)" in report
    assert report.splitlines()[-1].startswith(
        "steps assume 1000 an epoch, the data cannot be opened: data.dir: nowhere"
    )


@pytest.mark.parametrize("name", sorted(methods.METHODS))
def test_a_misspelt_key_of_a_method_is_no_new_key(name):
    with pytest.raises((AttributeError, KeyError)):
        settings.base_config(name)[name].update(dict(misspelt=1))


@pytest.mark.parametrize("name", sorted({*methods.METHODS} - {"finetune"}))  # no paper's method
def test_every_method_has_a_config_and_rows(name):
    assert papers.load(name) and set(SMALL) <= set(variants(name))
