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
from ssl_jax.config import InputError
from ssl_jax.data.source import EMBEDDED
from ssl_jax.models import zoo
from ssl_jax.train import step
from ssl_jax.views import recipe
from tests import tiny

REAL = ("cifar10", "imagenette96")
SMALL = (*REAL, *(f"{name}_gpu" for name in REAL), "photos", "photo_collages")
NAMES = list(config_lib.shipped())
PAPERS = papers.names()
LENGTHS = tiny.values("""
    imagenet2012=1281167 imagenet2012_subset/1pct=12811 imagenet2012_subset/10pct=128116
    cars196=8144 cifar10=50000 cifar100=50000 i_naturalist2018=437513 oxford_flowers102=2040
    imagenette96=9469 coco/2017=118287 places365_small=1803460
""")


@functools.cache
def variants(name: str) -> tuple[str, ...]:
    """Those of a config; ("",) of one without."""
    module = vars(config_lib.read_module(config_lib.find(name)))
    return module.get("VARIANTS") or module.get("METHODS") or ("",)


WITH_SMALL = [n for n in NAMES if set(SMALL) & set(variants(n))]


def load(name: str, variant: str):
    return config_lib.load(f"{name}:{variant}" if variant else name)


def supplied(config):
    """The config with what its user has to bring: STELLAR's published runs rebuild codes of a
    tokenizer whose weights must be fetched, and distillation has a teacher.
    """
    if config.method == "distill":
        with pytest.raises(InputError, match="distill.teacher"):
            methods.get("distill").check(config)
        config.distill.teacher = "random"
        config.distill.size = 2 * config.model.patch
    stellar = config.get("stellar")
    if stellar and stellar.target == "vq" and stellar.weights.reconstruction > 0:
        with pytest.raises(InputError, match="tokenizer"):
            methods.get("stellar").check(config)
        stellar.target = "pixel"
    return config


def resolved(config):
    """(method, config), checked and resolved as a run does, without laying anything out."""
    config = supplied(config)
    settings.validate(config, num_devices=8)
    methods.get(config.method).check(config)
    records = config.data.length
    if config.data.kind == "tfds":
        percent = re.search(r"\[:(\d+)%\]", config.data.split)
        records = LENGTHS[config.data.name] * (int(percent[1]) if percent else 100) // 100
    config = settings.resolve(config, num_records=records, num_devices=8)
    return methods.make(config), config


def prepared(config):
    """The run of a config. A set of TFDS is as long as it is, and holds nothing."""
    config = supplied(config)
    length = LENGTHS.get(config.data.name, 0)
    records = range(length)  # nobody reads them
    return api.prepare(config, records if config.data.kind == "tfds" else None)


@pytest.mark.parametrize("name", NAMES)
def test_every_variant_can_work(name):
    for variant in variants(name):
        method, config = resolved(load(name, variant))
        groups = dict(method.views.groups)
        hash(method.views)
        assert groups["global"].size == config.model.image_size, variant
        assert "local" not in groups or groups["local"].size < groups["global"].size, variant
        assert config.run.warmup_steps < config.run.total_steps, variant
        assert config.checkpoint.every_steps <= config.run.total_steps, variant


@pytest.mark.parametrize("name", PAPERS)
def test_every_row_of_a_paper_can_work_and_has_its_numbers(name):
    rows, same = papers.load(name), {}
    assert rows and set(SMALL) <= set(variants(name))
    for row in rows:
        assert not row.config.endswith(SMALL), "an expected number has an origin"
        config = row.load()
        assert config.expected.to_dict() == row.expected, row.name
        if not row.changes:
            assert config_lib.load(row.config).expected.to_dict() == papers.expected(row.config)
        _, config = resolved(config)
        flat = {k: v for k, v in config_lib.flatten(config).items() if not k.startswith("expected")}
        same.setdefault(str(flat), []).append(row)
    # What a row changes must change something: equal configs are one setting that the papers print
    # in two tables.
    for equal in same.values():
        assert len({row.config for row in equal}) == 1, [row.name for row in equal]
    assert not any(load(name, variant).expected.to_dict() for variant in SMALL)
    assert any(load(name, variant).expected for variant in variants(name))


def test_a_shipped_config_is_found_by_name_and_by_path(monkeypatch, tmp_path, root):
    short = config_lib.load("sop:vits16")
    monkeypatch.chdir(root)
    assert config_lib.load("configs/sop.py:vits16") == short
    assert config_lib.load(f"{root / 'configs' / 'sop.py'}:vits16") == short
    monkeypatch.chdir(tmp_path)
    assert config_lib.load("sop:vits16") == short
    for wrong, named in (
        ("sopp:vits16", '"sop"'),
        ("configs/sop.py:vits16", "--config=sop"),
        ("presets", "presets"),
        ("sop:vits61", '"vits16"'),
    ):
        with pytest.raises(InputError, match=named):
            config_lib.load(wrong)


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        pytest.param(n, v, marks=pytest.mark.slow if v == "cifar10" else ())
        for n in WITH_SMALL
        for v in ("cifar10", "photo_collages")
        if v in variants(n)
    ],
)
def test_small_presets_are_laid_out(name, variant):
    for leaf in jax.tree.leaves(prepared(load(name, variant)).abstract):
        assert isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "variant"), [("dino", "cifar10"), ("sop", "vits16"), ("massl", "photos")]
)
def test_a_step_fits_together_at_full_size(name, variant):
    run = prepared(load(name, variant))
    c, side = run.config, {"cifar10": 32, "photos": 64}.get(variant, 0)
    views = run.method.views
    batch = recipe.abstract_batch(views, c.optim.batch_size, (side, side), c.data.crop_on)
    advance = step.make_step(run.method, run.optimizer, c)
    after, metrics = jax.eval_shape(advance, run.abstract, batch)
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), (after, run.abstract))
    assert shapes[0] == shapes[1] and all(m.shape == () for m in metrics.values())


@pytest.mark.parametrize(
    ("variant", "encoder", "lr"),
    [("vits16", 21.7, 5e-4), ("vitb16", 85.8, 7.5e-4), ("vitl16", 303.3, 7.5e-4)],
)
@pytest.mark.parametrize("name", ["dino", "ibot", "massl", "sop", "sove"])
def test_full_size_presets_have_the_papers_networks(name, variant, encoder, lr):
    """Millions of parameters of ViT-S/B/L at patch 16, without a classifier; batch 1024."""
    method, config = resolved(load(name, variant))
    params, _ = jax.eval_shape(lambda: method.init(jax.random.key(0)))
    assert zoo.count(params["backbone"]) / 1e6 == pytest.approx(encoder, abs=0.06)
    assert config.run.peak_lr == pytest.approx(lr * 4)
    for evaluation in evals.named(config).values():
        assert evaluation.type == "dense" or (evaluation.crop, evaluation.data.size) == (224, 256)


SOPS = {"cls": (65536, 256), "patch": (8192, 256)}
MEMORIES = {"sop": SOPS, "sove": SOPS, "massl": {"cls": (131072, 256)}}


@pytest.mark.parametrize("name", MEMORIES)
def test_memories_at_full_size(name):
    method, _ = resolved(load(name, "vits16"))
    carry = jax.eval_shape(lambda: method.init(jax.random.key(0)))[1]
    held = {part: memory["memory"]["rows"]["embedding"] for part, memory in carry.items()}
    assert {part: rows.shape for part, rows in held.items()} == MEMORIES[name]


@pytest.mark.parametrize("name", WITH_SMALL)
def test_small_presets_evaluate_the_set_they_train_on(name):
    for variant in set(SMALL) & set(variants(name)):
        config = load(name, variant)
        config.data.dir = "" if config.data.kind in EMBEDDED else "sets"
        _, config = resolved(config)
        section = config.evals["dense" if variant == "photo_collages" else "knn"].data
        assert all(section[key] == config.data[key] for key in ("kind", "name", "size", "dir"))
        assert section.test_split != config.data.split


def test_fine_tuning_tests_after_every_epoch_and_keeps_the_best():
    for variant in variants("finetune"):
        config = load("finetune", variant)
        if variant.startswith(("vit", "semi", "transfer")) and config.data.name:
            steps = LENGTHS[config.data.name] // config.optim.batch_size
            assert (config.evals.every_steps, config.evals.best) == (steps, "classify"), variant
