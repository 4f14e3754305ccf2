"""Every variant and every table row of every config file can work: loaded, checked, resolved; small
ones laid out on eight devices.

Nothing is compiled, and no data or memory is needed. A new config file is found by itself.
"""

import ast
import functools
import pathlib

import jax
import pytest

from ssl_jax import config as config_lib
from ssl_jax import methods, settings, show
from ssl_jax.config import InputError
from ssl_jax.models import zoo
from ssl_jax.train import loop, step
from ssl_jax.views import recipe

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMALL = ("cifar10", "imagenette96", "digits", "digit_scenes")


def functions(path):
    return {
        node.name
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }


FILES = sorted(
    path.stem for path in (ROOT / "configs").glob("*.py") if "get_config" in functions(path)
)


@functools.cache
def names(file: str) -> dict:
    """What a config file defines."""
    return vars(config_lib.read_module(ROOT / "configs" / f"{file}.py"))


def variants(file: str) -> tuple[str, ...]:
    """A file without variants has the one that no argument asks for."""
    return names(file).get("VARIANTS") or names(file).get("METHODS") or ("",)


WITH_VARIANTS = [file for file in FILES if variants(file) != ("",)]
WITH_TABLE = [file for file in FILES if "TABLE" in names(file)]
WITH_SMALL = [file for file in FILES if set(SMALL) & set(variants(file))]
VIT = [
    file for file in ("dino", "ibot", "massl", "sop", "sove") if file in FILES
]  # a plain ViT under "backbone"

LENGTHS = {
    "imagenet2012": 1_281_167,
    "cifar10": 50_000,
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


def load(file: str, variant: str):
    return config_lib.load(
        str(ROOT / "configs" / f"{file}.py") + (f":{variant}" if variant else "")
    )


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
    return loop.prepare(config, Records(config.data.name) if config.data.kind == "tfds" else None)


def resolved(config):
    """Checked and resolved as `loop.prepare` does, without laying anything out."""
    config = supplied(config)
    settings.validate(config, num_devices=8)
    method = methods.get(config.method)
    method.check(config)
    records = LENGTHS[config.data.name] if config.data.kind == "tfds" else config.data.length
    config = settings.resolve(config, num_records=records, num_devices=8)
    return method, config


@pytest.mark.parametrize("file", FILES)
def test_every_variant_can_work(file):
    for variant in variants(file):
        method, config = resolved(load(file, variant))
        views = method.views(config)
        hash(views)
        groups = dict(views.groups)
        assert groups["global"].size == config.model.image_size, (
            f"{variant}: global crops have the native size of the position codes"
        )
        assert "local" not in groups or groups["local"].size < groups["global"].size, variant
        assert config.run.warmup_steps < config.run.total_steps, variant
        assert config.checkpoint.every_steps <= config.run.total_steps, variant


@pytest.mark.parametrize("file", WITH_TABLE)
def test_every_row_of_a_table_can_work_and_carries_its_numbers(file):
    table, get_config = names(file)["TABLE"], names(file)["get_config"]
    assert table
    seen = {}
    for row in table:
        config = get_config(row.arg)
        assert config.expected.to_dict() == dict(row.expected), row.arg
        assert row.paper and all(
            isinstance(x, str) for x in (*row.expected, *row.expected.values(), *row.ours.values())
        ), row
        method, config = resolved(config)
        method.views(config)
        flat = {
            key: value
            for key, value in config_lib.flatten(config).items()
            if not key.startswith("expected")
        }
        seen.setdefault(str(flat), []).append(row)
    # What a row changes must change something: equal configs are one setting that the papers print
    # in two tables.
    for rows in seen.values():
        assert len({row.arg.split(",")[0] for row in rows}) == 1, [row.arg for row in rows]


@pytest.mark.parametrize("file", WITH_TABLE)
def test_published_variants_have_numbers_and_small_ones_have_none(file):
    args = {row.arg for row in names(file)["TABLE"]}
    assert not args & set(SMALL), "an expected number needs an origin"
    for variant in set(variants(file)) & set(SMALL):
        assert not load(file, variant).expected.to_dict()
    assert args & set(variants(file))


@pytest.mark.parametrize("file", WITH_VARIANTS)
def test_a_misspelt_variant_or_word_is_named(file):
    first = variants(file)[0]
    with pytest.raises(
        InputError, match=f'unknown (variant|method) "{first}x"; did you mean "{first}"'
    ):
        load(file, f"{first}x")
    for word, target in names(file).get("WORDS", {}).items():
        with pytest.raises(InputError, match=f'unknown ablation "{word}_"; did you mean "{word}"'):
            load(file, f"{first},{word}_")
        wrong = f"{word}=1" if isinstance(target, dict) else word
        with pytest.raises(
            InputError, match="takes no value" if isinstance(target, dict) else "takes a value"
        ):
            load(file, f"{first},{wrong}")
        break
    with pytest.raises(InputError, match='unknown config key "optim.lrr"; did you mean "optim.lr"'):
        load(file, f"{first},optim.lrr=1.0")
    with pytest.raises(InputError, match="optim.lr is 'fast'; it must be like"):
        load(file, f"{first},optim.lr=fast")
    assert load(file, f"{first},optim.lr=1").optim.lr == 1.0


@pytest.mark.parametrize("file", [file for file in WITH_TABLE if names(file).get("WORDS")])
def test_every_word_is_a_setting_of_its_method(file):
    """Whether or not a row of a table uses it: its keys exist and its values have their types."""
    default = load(file, variants(file)[0])
    flat = config_lib.flatten(default)
    for word, target in names(file)["WORDS"].items():
        if isinstance(target, dict):
            changed = load(file, f"{variants(file)[0]},{word}")
            assert all(
                config_lib.flatten(changed)[key] == value for key, value in target.items()
            ), word
        else:
            assert target in flat, word


def test_two_words_add_up():
    config = load("sop", "vits16,ablation,anchors=1024,onehot")
    assert (config.sop.cls.anchors, config.sop.contributions, config.optim.epochs) == (
        1024,
        "onehot",
        300.0,
    )
    assert config.views.local_count == 0 and config.expected.to_dict() == {}
    assert load("sop", "vits16,ablation,anchors=1024").expected.knn.startswith("69.5")


@pytest.mark.parametrize(
    ("file", "variant"),
    [(f, v) for f in WITH_SMALL for v in ("cifar10", "digit_scenes") if v in variants(f)],
)
def test_small_presets_are_laid_out(file, variant):
    run = prepared(load(file, variant))
    leaves = jax.tree.leaves(run.abstract)
    assert all(
        isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding is not None for leaf in leaves
    )


@pytest.mark.parametrize(
    ("file", "variant"), [("dino", "cifar10"), ("sop", "vits16"), ("massl", "digits")]
)
def test_a_step_fits_together_at_full_size(file, variant):
    run = prepared(load(file, variant))
    c, side = run.config, {"cifar10": 32, "digits": 64}.get(variant, 0)
    batch = recipe.abstract_batch(
        run.method.views(c), c.optim.batch_size, (side, side), c.data.crop_on
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
@pytest.mark.parametrize("file", VIT)
def test_full_size_presets_have_the_papers_networks(file, variant, encoder):
    """Millions of parameters of ViT-S/B/L at patch 16, without a classifier."""
    method, config = resolved(load(file, variant))
    params, _ = jax.eval_shape(lambda: method.init(jax.random.key(0), config))
    assert zoo.count(params["backbone"]) / 1e6 == pytest.approx(encoder, abs=0.06)
    assert config.run.peak_lr == pytest.approx(
        (5e-4 if variant == "vits16" else 7.5e-4) * 4
    )  # batch 1024
    assert config.eval.crop == 224 and config.eval.image.size == 256


def carry(file: str, variant: str):
    method, config = resolved(load(file, variant))
    return jax.eval_shape(lambda: method.init(jax.random.key(0), config))[1]


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


@pytest.mark.parametrize("file", WITH_SMALL)
def test_small_presets_evaluate_the_set_they_train_on(file):
    for variant in set(SMALL) & set(variants(file)):
        config = load(file, variant)
        config.data.dir = "sets"
        _, config = resolved(config)
        section = config.eval["dense" if variant == "digit_scenes" else "image"]
        assert all(section[key] == config.data[key] for key in ("kind", "name", "size"))
        assert section.dir == "sets" and section.test_split != config.data.split


def test_a_full_size_preset_is_shown_without_its_data():
    config = load("sop", "vits16")
    config.data.dir = "nowhere"
    report = show.text(load("sop", "vits16"), config)
    assert "expected knn                     75.3 (paper, table 1)" in report
    assert report.splitlines()[-1].startswith(
        "steps assume 1000 an epoch, the data cannot be opened: data.dir: nowhere"
    )


@pytest.mark.parametrize("name", sorted(methods.METHODS))
def test_a_misspelt_key_of_a_method_is_no_new_key(name):
    with pytest.raises((AttributeError, KeyError)):
        settings.base_config(name)[name].update(dict(misspelt=1))


@pytest.mark.parametrize("name", sorted(methods.METHODS))
def test_every_method_has_a_config_file_with_a_table(name):
    assert name in WITH_TABLE and set(SMALL) <= set(variants(name))


@pytest.mark.parametrize(
    ("file", "spelling", "row"),
    [
        ("cribo", "vits16_coco,lam_pos=0", "vits16_coco,lam_pos=0.0"),
        (
            "cribo",
            "vits16_coco,lam_pos=2.0",
            "vits16_coco",
        ),  # the default, a row of its own in table 4
        ("sop", "vits16,anchors=1024,ablation", "vits16,ablation,anchors=1024"),
        ("flsl", "vits16,ablation,code", "vits16,ablation"),
    ],
)
def test_a_row_is_found_however_its_words_are_spelt(file, spelling, row):
    (expected,) = [dict(r.expected) for r in names(file)["TABLE"] if r.arg == row]
    assert load(file, spelling).expected.to_dict() == expected
    assert not load(file, f"{spelling},optim.lr=0.123").expected.to_dict()
