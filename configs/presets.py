"""Data, network and view settings that the method configs share. Not a config by itself.

The full-size presets (ViT on ImageNet) are the papers'. The small ones are ours: one network an
eighth of ViT-S and crops, batch and schedule scaled down with the images.
"""

import ast
from typing import NamedTuple

from ssl_jax import config as config_lib
from ssl_jax.config import InputError

FULL = {"vits16": "s", "vitb16": "b", "vitl16": "l"}  # variant -> model.size
EPOCHS = {"vits16": 800, "vitb16": 400, "vitl16": 250}  # as SOP, iBOT and DINO train them
SMALL = ("cifar10", "imagenette96", "digits", "digit_scenes")
VARIANTS = (*FULL, *SMALL)


class Row(NamedTuple):
    """One row of a paper's table as a config: `ssl-jax show --table METHOD` lists them.

    paper: where it stands, "table 5, tau = .06". arg: of get_config; no two rows have the same.
    expected: score -> number and unit or data set, as text. note: what the reader must know (what
    is not published, what differs). ours: score -> number that a run of this config reached, as
    text.
    """

    paper: str
    arg: str
    expected: dict[str, str]
    note: str = ""
    ours: dict[str, str] = {}


def parse(arg: str, default: str) -> tuple[str, tuple[str, ...]]:
    """Splits "vits16,lam_pos=0.0,no_cycle" into the variant and the words after it; the variant is
    `default` for an empty `arg`.
    """
    variant, *words = [word.strip() for word in arg.split(",")] if arg else [default]
    return variant, tuple(words)


def override(config, words, aliases: dict) -> None:
    """Applies ablation words to a config.

    Args:
      words: "name" or "name=value", from `parse`; "optim.lr=1e-3" sets any key by its full name.
      aliases: name -> dotted key ("lam_pos": "cribo.position_weight", takes a value), or name ->
        {dotted key: value} (takes none).

    Raises:
      InputError: an unknown word, a value that is missing, not wanted or of the wrong type.
    """
    config.update_from_flattened_dict(_changes(config_lib.flatten(config), words, aliases))


def override_row(
    config,
    variant: str,
    words,
    aliases: dict,
    table: tuple[Row, ...],
    *,
    first: tuple[str, ...] = (),
) -> None:
    """`override`, and `config.expected` of the row of `table` that is this config, however its
    words are spelt or ordered.

    Args:
      variant: that `config` is, before any word. first: words that go before those of every config
        and row.
    """
    flat = config_lib.flatten(config)
    wanted = _changes(flat, (*first, *words), aliases)
    config.update_from_flattened_dict(wanted)
    rows = {row.arg: row for row in table if parse(row.arg, variant)[0] == variant}
    same = (
        row
        for row in rows.values()
        if _changes(flat, (*first, *parse(row.arg, variant)[1]), aliases) == wanted
    )
    found = rows.get(",".join((variant, *words))) or next(same, None)
    config.expected = found.expected if found else {}


def _changes(flat: dict, words, aliases: dict) -> dict:
    """What `words` make different in the flat config `flat`: {dotted key: value}."""
    changed = {}
    for word in words:
        name, has_value, text = word.partition("=")
        target = aliases.get(name, name if "." in name else None)
        if target is None:
            raise InputError(config_lib.unknown("ablation", name, aliases))
        if isinstance(target, dict) == bool(has_value):
            raise InputError(
                f'ablation "{word}": {name} takes'
                f" {'no value' if has_value else f'a value, as in {name}=...'}"
            )
        for key, value in (target if isinstance(target, dict) else {target: _value(text)}).items():
            if key not in flat:
                raise InputError(
                    f'ablation "{word}": {config_lib.unknown("config key", key, flat)}'
                )
            value = float(value) if isinstance(flat[key], float) and type(value) is int else value
            if type(value) is not type(flat[key]):
                raise InputError(
                    f'ablation "{word}": {key} is {value!r}; it must be like {flat[key]!r}'
                )
            changed[key] = value
    return {key: value for key, value in changed.items() if value != flat[key]}


def _value(text: str):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text  # a bare word is a string


def apply(config, name: str) -> None:
    """Writes the part of variant `name` that does not depend on the method. Raises InputError if it
    is none of VARIANTS.
    """
    if name not in VARIANTS:
        raise InputError(config_lib.unknown("variant", name, VARIANTS))
    if name in FULL:
        _imagenet(config, name)
    else:
        {
            "cifar10": _cifar10,
            "imagenette96": _imagenette96,
            "digits": _digits,
            "digit_scenes": _digit_scenes,
        }[name](config)


def small_dino(config) -> None:
    """DINO's head for ten classes; the teacher temperature rises within the first epochs."""
    config.dino.update(
        dict(head_hidden=512, head_bottleneck=128, prototypes=1024, teacher_temperature_epochs=5.0)
    )


def small_sop(config) -> None:
    """SOP's (or SOVE's) head and memories for small sets: a class memory of 64 batches, as in the
    paper; temperatures as in SOP's code.
    """
    config[config.method].update(
        dict(
            head_hidden=512,
            head_out=128,
            teacher_temperature=0.04,
            final_teacher_temperature=0.04,
            teacher_temperature_epochs=0.0,
            cls=dict(anchors=512, members=9, tasks=2, memory=8192),
            patch=dict(anchors=128, members=1, tasks=1, memory=2048),
        )
    )


def ablation(**changes) -> dict:
    """The papers' setting for ablations, as a word for `override`: 300 epochs, two global views of
    scale .14 to 1, none local.
    """
    return {
        "optim.epochs": 300.0,
        "views.local_count": 0,
        "views.global_scale": (0.14, 1.0),
        **changes,
    }


def sop_words(method: str) -> dict:
    """Ablation words of SOP and SOVE, whose sections have the same keys."""

    def own(changes):
        return {f"{method}.{key}": value for key, value in changes.items()}

    return {
        "ablation": ablation(**{"teacher.momentum": 0.994, f"{method}.cls.tasks": 2}),
        "epochs": "optim.epochs",
        "momentum": "teacher.momentum",  # at the start
        **{key: f"{method}.cls.{key}" for key in ("anchors", "members", "tasks", "memory")},
        **{
            f"patch_{key}": f"{method}.patch.{key}"
            for key in ("anchors", "members", "tasks", "memory")
        },
        "onehot": own({"contributions": "onehot"}),
        "smoothed": own({"contributions": "smoothed"}),
        "pseudo_code": own(
            {"contributions": "smoothed", "pool": "self", "cls.members": 8}
        ),  # SOP, appendix A.1
        "fixed_anchors": own({"anchors": "fixed"}),
        "mean_token": own({"global_token": "mean"}),
        "no_patch": own({"patch.weight": 0.0}) | {"views.mask": "none"},
        "no_cls": own({"cls.weight": 0.0}),
        "random_masks": {"views.mask": "random", "views.mask_ratio": (0.7, 0.7)},
        "ibot_masks": {
            "views.mask_ratio": (0.1, 0.5),
            "views.mask_prob": 0.5,
        },  # iBOT's multi-crop recipe
        "constant_temperature": own({"final_teacher_temperature": 0.04}),  # SOP's code
    }


def _imagenet(config, name: str) -> None:
    config.data.update(
        dict(kind="tfds", name="imagenet2012", split="train", crop_on="host", workers=16)
    )
    # scan and remat change no number; bf16 is the papers' mixed precision.
    config.model.update(
        dict(
            size=FULL[name],
            patch=16,
            image_size=224,
            drop_path=0.1,
            scan=True,
            remat=True,
            dtype="bfloat16",
        )
    )
    config.optim.update(dict(batch_size=1024, epochs=EPOCHS[name], warmup_epochs=10.0))
    # Evaluation protocol of the papers: short side 256, central 224.
    config.eval.update(dict(tasks=("knn",), crop=224))
    config.eval.image.update(
        dict(kind="tfds", name="imagenet2012", split="train", test_split="validation", size=256)
    )


def _cifar10(config) -> None:
    _small(config, patch=4, image_size=32, local_size=16)
    config.views.update(dict(global_scale=(0.3, 1.0), local_scale=(0.1, 0.3)))
    config.data.update(dict(kind="tfds", name="cifar10", split="train"))
    config.eval.image.update(dict(kind="tfds", name="cifar10", split="train", test_split="test"))


def _imagenette96(config) -> None:
    _small(config, patch=12, image_size=96, local_size=48)
    config.views.update(dict(global_scale=(0.25, 1.0), local_scale=(0.05, 0.25)))
    # `size` changes nothing for the 96 px set, and makes the ones that TFDS knows
    # (data.name=imagenette/160px-v2) fit.
    config.data.update(dict(kind="tfds", name="imagenette96", split="train", size=96))
    config.eval.image.update(
        dict(kind="tfds", name="imagenette96", split="train", test_split="validation", size=96)
    )


def _digits(config) -> None:
    _small(config, patch=8, image_size=40, local_size=24)
    # A mirrored digit is another sign, so no flips.
    config.views.update(dict(global_scale=(0.3, 1.0), local_scale=(0.1, 0.3), flip=0.0))
    config.data.update(dict(kind="digits", split="train", length=16384, size=64))
    config.optim.epochs = 20
    config.eval.update(dict(train_examples=5000, test_examples=2000))
    config.eval.image.update(dict(kind="digits", size=64))


def _digit_scenes(config) -> None:
    _digits(config)
    config.data.kind = "digit_scenes"
    # Patches are scored on scenes, whole images on `digits`, which have one label each.
    config.eval.tasks = ("knn", "linear", "dense")
    config.eval.dense.update(dict(kind="digit_scenes", size=64))


def _small(config, *, patch: int, image_size: int, local_size: int) -> None:
    """An eighth of ViT-S on images that fit in memory, which are cropped on the device."""
    config.model.update(
        dict(size="custom", width=192, depth=6, heads=6, patch=patch, image_size=image_size)
    )
    # The papers' .02 is 1 / sqrt(width) at a width of 2500; at 192 it leaves almost constant
    # outputs and uniform targets.
    config.model.init_std = config.model.width**-0.5
    config.views.update(
        dict(
            global_size=image_size, local_size=local_size, local_count=4, blur_prob=(0.0, 0.0, 0.0)
        )
    )
    config.data.update(dict(crop_on="device", cache=True))
    config.optim.update(
        dict(batch_size=128, epochs=100, lr=2e-3, warmup_epochs=2.0, final_weight_decay=0.2)
    )
    config.teacher.momentum = 0.99
    config.eval.update(dict(tasks=("knn", "linear"), every_steps=2000))
