"""The config: every key with default, meaning and unit; loading, overriding, checking, resolving, comparing, storing.

A config is a plain `ml_collections.ConfigDict`. `base()` holds everything that is common to all methods; a method adds
one section under its own name. Config files in `configs/` start from it and change values; the command line changes
more; `resolve` adds the section `run`, which is computed and never set by hand. This module imports nothing of the
package.
"""

import ast
import difflib
import importlib.util
import inspect
import json
import math
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict, FrozenConfigDict


class InputError(ValueError):
    """A user's mistake: one line that names the key, file or shape and says what would be right."""


# name -> (width, depth, heads) of the usual vision transformers; those of a "custom" model are set by hand.
MODEL_SIZES = {"ti": (192, 12, 3), "s": (384, 12, 6), "b": (768, 12, 12), "l": (1024, 24, 16), "h": (1280, 32, 16)}
DATA_KINDS = ("digit_scenes", "digits", "folder", "tfds")
EVAL_TASKS = ("knn", "linear", "dense")
# STELLAR's grid for a linear probe: {1, 2, 5} x {1e-5, 1e-4, 1e-3} and 1e-2.
_LINEAR_LRS = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
COMPUTED = "run"  # the section that resolve() writes

_CHOICES = {
    "data.kind": DATA_KINDS,
    "data.crop_on": ("host", "device"),
    "views.mask": ("none", "block", "random"),
    "model.size": (*MODEL_SIZES, "custom"),
    "model.position": ("learned", "sincos"),
    "model.position_resize": ("exact", "dino_offset"),
    "model.gelu": ("erf", "tanh"),
    "model.dtype": ("float32", "bfloat16"),
    "optim.clip_by": ("tensor", "global", "none"),
    "eval.image.kind": DATA_KINDS,
    "eval.dense.kind": DATA_KINDS,
    "eval.dense_vote": ("plain", "softmax"),
}


def base() -> ConfigDict:
    """All keys that belong to no method, with defaults as papers use for ViT-S/16. No key can be added to a section."""
    c = ConfigDict()
    c.method = ""  # name of the method; its settings are the section of that name
    c.seed = 0  # of parameters, data order, crops, masks and every other draw

    c.data = _data_section()
    c.data.cache = False  # keep decoded images in memory (uint8; for sets that fit)
    c.data.max_unreadable = 0.01  # share of records that may be unreadable before the run stops, 0 to 1
    c.data.crop_on = "host"  # where crops are cut: "host", or "device" (small images, all of one size)
    c.data.workers = 0  # loader processes; 0 = in the main process. Changes no sample

    c.views = v = ConfigDict()
    v.global_count = 2  # large crops per image
    v.global_size = 224  # pixels, square
    v.global_scale = (0.25, 1.0)  # area of the crop / area of the image, drawn uniformly between
    v.local_count = 10  # small crops per image; 0 = none
    v.local_size = 96  # pixels, square
    v.local_scale = (0.05, 0.25)  # area share of a small crop
    v.flip = 0.5  # probability of a horizontal flip
    v.jitter = (0.4, 0.4, 0.2, 0.1)  # brightness, contrast, saturation (factors 1 +- x), hue (+- x turns)
    v.jitter_prob = 0.8  # probability of colour jitter
    v.gray_prob = 0.2  # probability of grayscale
    v.blur_prob = (1.0, 0.1, 0.5)  # probability of Gaussian blur: first global view, further global views, local views
    v.blur_radius = (0.1, 2.0)  # standard deviation of the blur, pixels, drawn uniformly between
    v.solarize_prob = 0.2  # probability of solarisation, second global view only
    v.mask = "none"  # masked patches of the global views: "none", "block" or "random"
    v.mask_ratio = (0.3, 0.3)  # share of masked patches, drawn uniformly between
    v.mask_prob = 1.0  # probability that a view is masked at all

    c.model = m = ConfigDict()
    m.size = "s"  # "ti", "s", "b", "l", "h", or "custom" for the next three keys set by hand
    m.width = 0  # token width; 0 = from the size
    m.depth = 0  # number of blocks; 0 = from the size
    m.heads = 0  # attention heads; 0 = from the size
    m.patch = 16  # pixels, square
    m.image_size = 224  # pixels: native grid of the position codes; other image sizes are interpolated
    m.mlp_ratio = 4.0  # hidden width of the MLP / token width
    m.cls = True  # class token
    m.queries = 0  # extra learned query tokens
    m.position = "learned"  # position codes: "learned" or "sincos" (fixed)
    m.position_resize = "exact"  # resizing of position codes: "exact", or "dino_offset" (DINO-family weights)
    m.drop_path = 0.0  # highest stochastic-depth rate (last block), linear over blocks; student only
    m.init_std = 0.02  # standard deviation of the truncated normal initialiser
    m.gelu = "erf"  # "erf" (exact) or "tanh" (approximate, faster)
    m.scan = False  # one compiled block, scanned: compiles 10 x faster on accelerators; same numbers
    m.remat = False  # recompute activations of a block in the backward pass: less memory, same numbers
    m.dtype = "float32"  # of the computation; parameters, losses and softmax are always float32

    c.optim = o = ConfigDict()
    o.batch_size = 1024  # images per step, over all devices and processes
    o.epochs = 100.0  # length of the run
    o.steps = 0  # length of the run in steps; 0 = epochs * steps per epoch
    o.lr = 5e-4  # peak learning rate for a batch of base_batch; scaled by batch_size / base_batch
    o.base_batch = 256  # images
    o.final_lr = 1e-6  # end of the cosine, not scaled
    o.warmup_epochs = 10.0  # linear warm-up of the learning rate from 0
    o.weight_decay = 0.04  # decoupled (AdamW), at step 0
    o.final_weight_decay = 0.4  # end of its cosine
    o.beta1 = 0.9  # decay of the first moment
    o.beta2 = 0.999  # decay of the second moment
    o.eps = 1e-8  # added to the root of the second moment
    o.clip = 3.0  # largest L2 norm of a gradient
    o.clip_by = "tensor"  # whose norm: each "tensor" (DINO family), the "global" one, or "none"
    o.chunks = 1  # encode the batch in so many pieces to save memory (the gradient is the same); 1 = off

    c.teacher = t = ConfigDict()
    t.momentum = 0.996  # of the moving average, at step 0
    t.final_momentum = 1.0  # end of its cosine

    c.mesh = s = ConfigDict()
    s.data = 0  # devices along the batch only; 0 = all devices / fsdp
    s.fsdp = 1  # devices along which parameters and moments are cut as well

    c.checkpoint = k = ConfigDict()
    k.every_steps = 1000  # steps between two
    k.keep = 2  # newest ones kept
    k.keep_every = 0  # steps: multiples of this are kept for good; 0 = none

    c.log = g = ConfigDict()
    g.every_steps = 10  # steps between two rows of metrics
    g.tensorboard = False  # also write TensorBoard files (needs tensorboardX)
    g.wandb = ""  # Weights & Biases project; empty = off

    c.max_nonfinite = 20  # stop after so many steps in a row with a non-finite loss or gradient; 0 = never

    c.eval = e = ConfigDict()
    e.every_steps = 0  # 0 = only at the end
    e.tasks = EVAL_TASKS  # any of "knn", "linear" (need labels), "dense" (needs masks)
    e.image = _data_section()  # images with labels, for knn and linear; its `split` is the training part
    e.image.kind = "digits"  # must have labels
    e.image.test_split = "test"  # part of the set that is scored
    e.dense = _data_section()  # images with masks; its `split` is the memory
    e.dense.test_split = "test"  # part of the set that is scored
    e.train_examples = 0  # use the first so many of the training part; 0 = all
    e.test_examples = 0  # the same of the test part
    e.batch_size = 64  # images per forward pass
    e.crop = 0  # pixels: square centre crop; 0 = none. Images are always cut to a multiple of the patch
    e.knn_k = (10, 20, 100, 200)  # neighbours; each is reported
    e.knn_temperature = 0.07  # votes weigh exp(cosine / temperature)
    e.linear_epochs = 30  # of the probe
    e.linear_batch = 256  # features per step
    e.linear_lrs = _LINEAR_LRS  # learning rates tried in one run; the best on a held-out 10 % counts
    e.linear_weight_decay = 1e-4  # of the probe's AdamW
    e.dense_k = 50  # nearest patches that vote
    e.dense_vote = "plain"  # "plain", or "softmax" (votes weigh exp(cosine / 0.1))
    e.dense_subsample = 1  # keep one training image in this many
    e.dense_runs = 1  # draws of that subsample, averaged

    c.expected = ConfigDict()  # name of a score -> expected number and where it comes from; shown, never used

    for section in c.values():
        if isinstance(section, ConfigDict) and section is not c.expected:
            section.lock()
    return c


def _data_section() -> ConfigDict:
    """Keys that name a set of images; the same for training and evaluation."""
    d = ConfigDict()
    d.kind = "digit_scenes"  # "digit_scenes", "digits" (both embedded, no download), "folder" or "tfds"
    d.name = ""  # name of a TFDS set
    d.dir = ""  # folder of images, or TFDS data directory
    d.split = "train"  # part of the set; TFDS slices such as "train[:10%]" work
    d.length = 10000  # number of generated images (embedded sets)
    d.size = 0  # pixels: shorter side resized to this, then a square centre crop; 0 = as stored
    return d


# --- names


def unknown(kind: str, name: str, options: Collection[str]) -> str:
    """Message for a name that does not exist: the nearest one that does, and all of them if they are few."""
    nearest = _nearest(str(name), options)
    hint = f'; did you mean "{nearest}"?' if nearest else ""
    listed = f" (known: {', '.join(sorted(options))})" if len(options) <= 12 else ""
    return f'unknown {kind} "{name}"{hint}{listed}'


def check_choice(key: str, value, choices: Collection[str]) -> None:
    """Raises InputError, naming the nearest choice, if `value` is none of `choices`."""
    if value not in choices:
        nearest = _nearest(str(value), choices)
        hint = f'; did you mean "{nearest}"?' if nearest else ""
        raise InputError(f'{key} is "{value}"; it must be one of {", ".join(choices)}{hint}')


def _nearest(name: str, options) -> str | None:
    """The most similar option: by whole name, else by the last part of dotted names."""
    close = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
    if not close:
        last = {o.rsplit(".", 1)[-1]: o for o in options}
        close = [last[c] for c in difflib.get_close_matches(name.rsplit(".", 1)[-1], list(last), n=1, cutoff=0.7)]
    return close[0] if close else None


def flatten(config: Mapping) -> dict[str, Any]:
    """{dotted key: value} of every leaf; an empty section has none."""
    flat = {}
    for key, value in config.items():
        if isinstance(value, (ConfigDict, Mapping)):
            flat |= {f"{key}.{inner}": leaf for inner, leaf in flatten(value).items()}
        else:
            flat[key] = value
    return flat


# --- loading


def load(path_with_arg: str, overrides: Mapping[str, str] | None = None) -> ConfigDict:
    """Runs `get_config` of a config file and applies overrides.

    Args:
      path_with_arg: "configs/sop.py:vits16" calls get_config("vits16"), "configs/sop.py" calls get_config().
      overrides: {"optim.lr": "1e-3"}; see `apply_overrides`.

    Returns:
      A locked config.

    Raises:
      InputError: no such file, no get_config in it, a key that does not exist, a value of the wrong type.
    """
    path, _, arg = path_with_arg.partition(":")
    get_config = _get_config(Path(path))
    parameters = inspect.signature(get_config).parameters
    if arg and not parameters:
        raise InputError(f'{path}: get_config() has no variants, but ":{arg}" was given')
    if not arg and any(p.default is p.empty for p in parameters.values()):
        raise InputError(f"{path} needs a variant: --config={path}:NAME")
    try:
        config = get_config(arg) if arg else get_config()
    except (AttributeError, KeyError, TypeError) as error:  # how ml_collections reports an unknown key or a wrong type
        raise InputError(f"{path_with_arg}: {_reason(error)}") from error
    if not isinstance(config, ConfigDict):
        raise InputError(f"{path}: get_config must return an ml_collections.ConfigDict, got {type(config).__name__}")
    check_keys(config)
    return apply_overrides(config, overrides or {})


def _get_config(path: Path):
    """The function get_config of a Python file, which may import other modules of its folder as `configs.NAME`."""
    if not path.is_file():
        siblings = [str(p) for p in sorted(path.parent.glob("*.py"))] if path.parent.is_dir() else []
        raise InputError(unknown("config file", str(path), siblings))
    path = path.resolve()
    configs = next((p for p in path.parents if p.name == "configs"), path.parent / "x")
    spec = importlib.util.spec_from_file_location(f"_ssl_jax_config_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(configs.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(configs.parent))
    if not callable(getattr(module, "get_config", None)):
        raise InputError(f"{path} defines no get_config(arg)")
    return module.get_config


def _reason(error: Exception) -> str:
    """One line from an error of ml_collections about an unknown key (without its list of all) or a wrong type."""
    text = " ".join(str(error.args[0] if error.args else error).split())
    key = re.search(r'Key "(.+?)" does not exist', text)
    return unknown("config key", key[1], flatten(base())) if key else text.replace(" (reference)", "")


class CommandLine(NamedTuple):
    """What a command line says: the file's config, the final one, the overrides, and all other arguments."""

    file: ConfigDict
    config: ConfigDict
    overrides: dict[str, str]
    rest: list[str]


def parse_argv(argv: list[str], name: str = "config") -> CommandLine | None:
    """Reads --config=FILE:ARG and --config.KEY=VALUE: the syntax of ml_collections' config_flags, readable errors.

    `--config.KEY VALUE`, `--config.FLAG` and `--noconfig.FLAG` (booleans) work too. After a bare "--" nothing is read.
    Returns None if there is no --config. The result equals what config_flags makes of the same command line, but an
    unknown key or a wrong type gives an InputError, before absl parses anything.
    """
    ours, rest, i = [], [], 0
    while i < len(argv):
        if argv[i] == "--":
            rest += argv[i:]
            break
        flag, has_value, value = argv[i].partition("=")
        match = re.fullmatch(rf"--?(no)?{re.escape(name)}(?:\.(.+))?", flag)
        if match:
            ours.append(
                (
                    bool(match[1]),
                    match[2],
                    value if has_value else None,
                    argv[i + 1] if i + 1 < len(argv) else None,
                    len(rest),
                )
            )
        else:
            rest.append(argv[i])
        i += 1
    return _command_line(ours, rest, name) if ours else None


def _command_line(ours, rest, name) -> CommandLine:
    taken = []  # positions in `rest` of values given as a separate argument

    def separate(following, position):
        if following is None or following.startswith("-"):
            return None
        taken.append(position)
        return following

    path = None
    for _, key, value, following, position in ours:
        if key is None:
            path = value if value is not None else separate(following, position)
    if not path:
        raise InputError(
            f"--{name}=FILE is missing (for example configs/sop.py:vits16); --{name}.KEY=VALUE changes a key of it"
        )
    file = load(path)
    leaves, overrides = flatten(file), {}
    for negated, key, value, following, position in ours:
        if key is None:
            continue
        if negated and not isinstance(leaves.get(key, False), bool):
            raise InputError(f"--no{name}.{key}: {key} is no boolean")
        if value is None:
            boolean = isinstance(leaves.get(key), bool)
            value = str(not negated) if boolean or negated else separate(following, position)
        if value is None:
            raise InputError(f"--{name}.{key} has no value; write --{name}.{key}=VALUE")
        overrides[key] = value
    rest = [argument for i, argument in enumerate(rest) if i not in taken]
    return CommandLine(file, apply_overrides(file, overrides), overrides, rest)


def apply_overrides(config: ConfigDict, overrides: Mapping[str, Any]) -> ConfigDict:
    """A copy of `config` with dotted keys set from text (or values), parsed to the type the key has.

    Numbers, booleans (true/false/1/0), strings as they are, tuples as "(0.3, 1.0)" or "0.3,1.0" or "knn,linear".

    Raises:
      InputError: unknown key (names the nearest), a section instead of a key, a computed key, a value of the wrong
        type.
    """
    config, leaves = _copy(config), flatten(config)
    for key, value in overrides.items():
        if key == COMPUTED or key.startswith(COMPUTED + "."):
            raise InputError(f'"{key}" is computed from the other keys and cannot be set')
        if key not in leaves:
            inside = [k for k in leaves if k.startswith(key + ".")]
            if inside:
                raise InputError(f'"{key}" is a section; set one of its keys: {", ".join(inside)}')
            raise InputError(unknown("config key", key, leaves))
        section, _, last = key.rpartition(".")
        target = config
        for name in section.split(".") if section else ():
            target = target[name]
        target[last] = _parse(key, value, leaves[key])
    return config


def _copy(config) -> ConfigDict:
    """An independent, locked ConfigDict (ConfigDict(config) would share its sections)."""
    return ConfigDict(config.to_dict()).lock()


def _parse(key: str, value, current):
    """`value` as the type of `current`; text is parsed."""
    wanted = type(current)
    parsed = _from_text(value, current) if isinstance(value, str) and wanted is not str else value
    parsed = _as_type(parsed, current)
    if parsed is None:
        raise InputError(f"{key} is {value!r}; it must be {_wanted(current)}, for example {current!r}")
    return parsed


def _from_text(text: str, current):
    """Text as a Python literal, or else as it is (in comma-separated parts where a tuple is wanted)."""
    if isinstance(current, bool):
        return {"true": True, "1": True, "false": False, "0": False}.get(text.strip().lower(), text)
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        try:
            value = float(text)  # inf, nan
        except ValueError:
            value = text
    if not isinstance(current, tuple) or isinstance(value, (tuple, list)):
        return value
    if isinstance(value, str):
        return tuple(part.strip(" \"'") for part in value.strip("()[] ").split(",") if part.strip())
    return (value,)


def _as_type(value, current):
    """`value` as the type of `current` without loss (int -> float, list -> tuple), or None if it has another type."""
    if isinstance(current, tuple):
        if not isinstance(value, (tuple, list)):
            return None
        # Elements follow the first element of the default; an empty default says nothing about them.
        items = tuple(_as_type(v, current[0]) if current else v for v in value)
        return None if None in items else items
    if isinstance(current, bool) or isinstance(value, bool):
        return value if isinstance(value, bool) and isinstance(current, bool) else None
    if isinstance(current, float):
        return float(value) if isinstance(value, (int, float)) else None
    return value if isinstance(value, type(current)) else None


def _wanted(current) -> str:
    if isinstance(current, tuple):
        return f"a tuple of {_wanted(current[0]).split()[-1]}s" if current else "a tuple"
    return {bool: "true or false", int: "an integer", float: "a number", str: "a string"}.get(
        type(current), type(current).__name__
    )


# --- checking


def check_keys(config) -> None:
    """Every key of base() is there with its type, and nothing else but the method's own section. Raises InputError."""
    reference = base()
    known, got = flatten(reference), flatten(config)
    free = (config.get("method", ""), COMPUTED, "expected")
    for key, value in got.items():
        if key.split(".")[0] in free and "." in key:
            continue
        if key.split(".")[0] not in reference:
            raise InputError(unknown("config section" if "." in key else "config key", key.split(".")[0], reference))
        if key not in known:
            raise InputError(unknown("config key", key, known))
        if _as_type(value, known[key]) is None:
            raise InputError(f"{key} is {value!r}; it must be {_wanted(known[key])}, for example {known[key]!r}")
    missing = [key for key in known if key not in got]
    if missing:
        raise InputError(f"config lacks {', '.join(missing)}; start from ssl_jax.methods.base_config(NAME)")


_POSITIVE = """
data.length views.global_count views.global_size views.local_size model.patch model.image_size model.mlp_ratio
model.init_std optim.batch_size optim.base_batch optim.lr optim.eps optim.chunks mesh.fsdp checkpoint.every_steps
checkpoint.keep log.every_steps eval.batch_size eval.knn_temperature eval.linear_epochs eval.linear_batch eval.dense_k
eval.dense_subsample eval.dense_runs
""".split()
_NOT_NEGATIVE = """
seed data.size data.workers views.local_count model.width model.depth model.heads model.queries optim.epochs optim.steps
optim.final_lr optim.warmup_epochs optim.weight_decay optim.final_weight_decay optim.clip mesh.data
checkpoint.keep_every max_nonfinite eval.every_steps eval.crop eval.train_examples eval.test_examples
eval.linear_weight_decay eval.image.size eval.dense.size
""".split()
_SHARE = """
data.max_unreadable views.flip views.jitter_prob views.gray_prob views.solarize_prob views.mask_prob
teacher.momentum teacher.final_momentum
""".split()


def validate(config, num_devices: int) -> None:
    """Refuses a config that cannot work, before anything is allocated.

    Checks everything but the method's own section (`method.check(config)` does that). Works on resolved and unresolved
    configs.

    Raises:
      InputError: names the key, what it is, and what would be right.
    """
    if not config.get("method"):
        raise InputError('method is ""; a config file must set it, see ssl_jax.methods.base_config(NAME)')
    if config.method not in config:
        raise InputError(
            f'config has no section "{config.method}" for its method; '
            f'start from ssl_jax.methods.base_config("{config.method}")'
        )
    check_keys(config)
    flat = flatten(config)
    for key, choices in _CHOICES.items():
        check_choice(key, flat[key], choices)
    _check_ranges(flat)
    _check_views(config)
    _check_model(config)
    _check_optim(config)
    _check_devices(config, num_devices)
    _check_data("data", config.data)
    _check_eval(config)


def _check_ranges(flat) -> None:
    for key, value in flat.items():
        numbers = value if isinstance(value, tuple) else (value,)
        if not key.startswith(("expected.", COMPUTED + ".")) and any(
            isinstance(v, float) and not math.isfinite(v) for v in numbers
        ):
            raise InputError(f"{key} is {value}; it must be finite")
    for key in _POSITIVE:
        if not flat[key] > 0:
            raise InputError(f"{key} is {flat[key]}; it must be above 0")
    for key in _NOT_NEGATIVE:
        if not flat[key] >= 0:
            raise InputError(f"{key} is {flat[key]}; it must be 0 or more")
    for key in _SHARE:
        if not 0 <= flat[key] <= 1:
            raise InputError(f"{key} is {flat[key]}; it must lie between 0 and 1")
    for key in ("optim.beta1", "optim.beta2", "model.drop_path"):
        if not 0 <= flat[key] < 1:
            raise InputError(f"{key} is {flat[key]}; it must lie in [0, 1)")
    if flat["seed"] >= 2**31:
        raise InputError(f"seed is {flat['seed']}; it must be below 2**31")


def _check_views(config) -> None:
    v, patch = config.views, config.model.patch
    for name, low, high in (
        ("global_scale", 0, 1), ("local_scale", 0, 1), ("mask_ratio", 0, 1), ("blur_radius", 0, math.inf),
    ):  # fmt: skip
        value = v[name]
        if len(value) != 2 or not low <= value[0] <= value[1] <= high:
            raise InputError(f"views.{name} is {value}; it must be (low, high) with {low} <= low <= high <= {high}")
    for name in ("global_scale", "local_scale"):
        if v[name][0] <= 0:
            raise InputError(f"views.{name} is {v[name]}; a crop needs an area above 0")
    for name, length, top in (("jitter", 4, math.inf), ("blur_prob", 3, 1)):
        if len(v[name]) != length or not all(0 <= x <= top for x in v[name]):
            raise InputError(f"views.{name} is {v[name]}; it must be {length} numbers between 0 and {top}")
    if v.jitter[3] > 0.5:
        raise InputError(f"views.jitter is {v.jitter}; the hue (last) is in turns and must be at most 0.5")
    for name in ("global_size", *(("local_size",) if v.local_count else ())):
        _check_multiple(f"views.{name}", v[name], patch, "model.patch")


def _check_multiple(key: str, value: int, unit: int, why: str) -> None:
    if value % unit:
        below, above = value - value % unit, value - value % unit + unit
        raise InputError(
            f"{key} is {value}, not a multiple of {unit} ({why}); use {f'{below} or ' if below else ''}{above}"
        )


def model_shape(model) -> tuple[int, int, int]:
    """(width, depth, heads) of a model section, from its size or set by hand. Raises InputError on a contradiction."""
    given = (model.width, model.depth, model.heads)
    if model.size == "custom":
        for name, value in zip(("width", "depth", "heads"), given, strict=True):
            if value < 1:
                raise InputError(f'model.{name} is {value}; model.size="custom" needs width, depth and heads above 0')
        return given
    for name, value, fixed in zip(("width", "depth", "heads"), given, MODEL_SIZES[model.size], strict=True):
        if value not in (0, fixed):
            raise InputError(
                f'model.{name} is {value} but model.size "{model.size}" has {fixed}; '
                f'set model.size="custom" or model.{name}=0'
            )
    return MODEL_SIZES[model.size]


def _check_model(config) -> None:
    m = config.model
    width, _, heads = model_shape(m)
    _check_multiple("model.width", width, heads, "model.heads")
    if m.position == "sincos":
        _check_multiple("model.width", width, 4, 'model.position="sincos"')
    _check_multiple("model.image_size", m.image_size, m.patch, "model.patch")


def _check_optim(config) -> None:
    o = config.optim
    if not (o.epochs > 0 or o.steps > 0):
        raise InputError("optim.epochs and optim.steps are both 0; set one of them above 0")
    if not o.steps and o.warmup_epochs > o.epochs:
        raise InputError(
            f"optim.warmup_epochs is {o.warmup_epochs}, longer than the run; use at most optim.epochs = {o.epochs}"
        )
    if o.clip_by != "none" and not o.clip > 0:
        raise InputError(f'optim.clip is {o.clip}; it must be above 0 (optim.clip_by="none" switches clipping off)')


def _check_devices(config, num_devices: int) -> None:
    s, o = config.mesh, config.optim
    data = mesh_shape(s.data, s.fsdp, num_devices)[0]
    devices = data * s.fsdp
    _check_multiple("optim.batch_size", o.batch_size, devices, "number of devices")
    _check_multiple(
        "optim.batch_size", o.batch_size, devices * o.chunks, f"{devices} devices x optim.chunks {o.chunks}"
    )


def mesh_shape(data: int, fsdp: int, num_devices: int) -> tuple[int, int]:
    """Devices along (data, fsdp); data = 0 takes all that are left. Raises InputError if they do not fit."""
    if fsdp < 1 or data < 0:
        raise InputError(
            f"mesh.data is {data} and mesh.fsdp is {fsdp}; use mesh.data >= 0 (0 = all devices) and mesh.fsdp >= 1"
        )
    if data == 0:
        if num_devices % fsdp:
            divisors = [d for d in range(1, num_devices + 1) if num_devices % d == 0]
            raise InputError(f"mesh.fsdp is {fsdp}, which does not divide {num_devices} devices; use one of {divisors}")
        data = num_devices // fsdp
    if data * fsdp > num_devices:
        raise InputError(
            f"mesh.data x mesh.fsdp is {data} x {fsdp} = {data * fsdp}, but there are {num_devices} devices; "
            "mesh.data=0 takes all"
        )
    return data, fsdp


def _check_data(key: str, section) -> None:
    if section.kind == "folder" and not section.dir:
        raise InputError(f'{key}.dir is ""; {key}.kind="folder" needs the folder that holds the images')
    if section.kind == "tfds" and not section.name:
        raise InputError(f'{key}.name is ""; {key}.kind="tfds" needs the name of a set, for example "cifar10"')


def _check_eval(config) -> None:
    e = config.eval
    for task in e.tasks:
        check_choice("eval.tasks", task, EVAL_TASKS)
    if {"knn", "linear"} & set(e.tasks):
        _check_data("eval.image", e.image)
        if e.image.kind == "digit_scenes":
            raise InputError(
                'eval.image.kind is "digit_scenes", which has no image labels; knn and linear need them: use "digits"'
            )
    if "dense" in e.tasks:
        _check_data("eval.dense", e.dense)
        if e.dense.kind in ("digits", "folder"):
            raise InputError(
                f'eval.dense.kind is "{e.dense.kind}", which has no masks; the task "dense" needs them: '
                'use "digit_scenes", a TFDS set with masks, or leave dense out of eval.tasks'
            )
    if not e.knn_k or min(e.knn_k) < 1:
        raise InputError(f"eval.knn_k is {e.knn_k}; it must hold numbers of neighbours above 0")
    if not e.linear_lrs or min(e.linear_lrs) <= 0:
        raise InputError(f"eval.linear_lrs is {e.linear_lrs}; it must hold learning rates above 0")


# --- resolving


def resolve(config, *, num_records: int, num_devices: int) -> FrozenConfigDict:
    """Works out what the config implies: the model's shape and the section `run`. Resolving again gives the same.

    run.num_records       images in the training set
    run.steps_per_epoch   num_records // batch_size (the last partial batch is dropped)
    run.total_steps       optim.steps, or epochs * steps_per_epoch rounded
    run.epochs            total_steps / steps_per_epoch
    run.warmup_steps      warmup_epochs * steps_per_epoch rounded
    run.peak_lr           lr * batch_size / base_batch
    run.batch_per_device  images

    Returns:
      A frozen, hashable config.

    Raises:
      InputError: the set is smaller than a batch, the warm-up is longer than the run, a contradiction in the model's
        size.
    """
    config = _copy(config).unlock()
    o = config.optim
    steps_per_epoch = num_records // o.batch_size
    if steps_per_epoch == 0:
        raise InputError(
            f"optim.batch_size is {o.batch_size}, but the set has only {num_records} images; use at most {num_records}"
        )
    total = o.steps or round(o.epochs * steps_per_epoch)
    if total == 0:
        raise InputError(
            f"optim.epochs is {o.epochs}, less than one step of {steps_per_epoch} an epoch; "
            f"use at least {1 / steps_per_epoch:.3g}"
        )
    warmup = round(o.warmup_epochs * steps_per_epoch)
    if warmup > total:
        raise InputError(
            f"optim.warmup_epochs is {o.warmup_epochs} = {warmup} steps, longer than the run of {total} steps; "
            f"use at most {math.floor(1000 * total / steps_per_epoch) / 1000:g}, or a longer run"
        )
    data, fsdp = mesh_shape(config.mesh.data, config.mesh.fsdp, num_devices)
    config.model.width, config.model.depth, config.model.heads = model_shape(config.model)
    config[COMPUTED] = ConfigDict(
        dict(
            num_records=num_records,
            steps_per_epoch=steps_per_epoch,
            total_steps=total,
            epochs=total / steps_per_epoch,
            warmup_steps=warmup,
            peak_lr=o.lr * o.batch_size / o.base_batch,
            batch_per_device=o.batch_size // (data * fsdp),
        )
    )
    return FrozenConfigDict(config)


def origins(default, file, final, resolved) -> dict[str, str]:
    """Where each value of `resolved` comes from: "default", "config file", "command line" or "computed".

    Args:
      default: methods.base_config(NAME); file: load(path); final: load(path, overrides); resolved: resolve(final, ...).
    """
    default, file, final = flatten(default), flatten(file), flatten(final)
    missing = object()

    def origin(key, value):
        if value != final.get(key, missing):
            return "computed"
        if value != file.get(key, missing):
            return "command line"
        return "default" if value == default.get(key, missing) else "config file"

    return {key: origin(key, value) for key, value in flatten(resolved).items()}


# --- storing, comparing


def to_json(config) -> str:
    """The config as JSON text, keys sorted; `from_json` gives an equal config back."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True) + "\n"


def from_json(text: str) -> FrozenConfigDict:
    """A frozen config from the text of `to_json`. Raises InputError if it is no such text."""
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"stored config is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise InputError(f"stored config must be a JSON object, got {type(values).__name__}")
    return FrozenConfigDict(ConfigDict(_tuples(values)))


def _tuples(value):
    if isinstance(value, dict):
        return {k: _tuples(v) for k, v in value.items()}
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def changed(old: Mapping, new: Mapping) -> list[str]:
    """Dotted keys whose values differ, or that only one of two configs (or flat dicts) has; sorted."""
    old, new, absent = flatten(old), flatten(new), object()
    return [key for key in sorted(old | new) if old.get(key, absent) != new.get(key, absent)]


# Keys (or sections) that may differ when a run is continued: they change where and how it is computed, watched and
# stored, not what. (model.size is only a name for width, depth and heads; of the computed section, the number of
# records cannot be told from the keys.)
_FREE_ON_RESUME = (
    "data.dir", "data.cache", "data.workers", "data.max_unreadable", "model.size", "model.scan", "model.remat",
    "optim.chunks", "mesh", "checkpoint", "log", "max_nonfinite", "eval", "expected", COMPUTED,
)  # fmt: skip


def fingerprint(config) -> dict[str, Any]:
    """{dotted key: value} of everything in a resolved config that must agree for a run to be continued."""

    def fixed(key):
        return key == f"{COMPUTED}.num_records" or not any(
            key == free or key.startswith(free + ".") for free in _FREE_ON_RESUME
        )

    return {key: value for key, value in flatten(config).items() if fixed(key)}


def compare_for_resume(saved, current) -> list[str]:
    """Why `saved` cannot be continued with `current` (both resolved): "KEY is OLD there, NEW here"; [] if it can."""
    old, new = fingerprint(saved), fingerprint(current)
    said = lambda values, key: repr(values[key]) if key in values else "absent"  # noqa: E731
    return [f"{key} is {said(old, key)} there, {said(new, key)} here" for key in changed(old, new)]
