"""The config: every key with default, meaning and unit; loading, storing, comparing.

A config is a plain `ml_collections.ConfigDict`. `base()` holds everything that is common to all
methods; a method adds one section under its own name. Config files in `configs/` start from it and
change values; the command line changes more; `validate.resolve` adds the section `run`, which is
computed and never set by hand. This module imports nothing of the package.
"""

import dataclasses
import difflib
import importlib.util
import inspect
import json
import math
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict, FrozenConfigDict


class InputError(ValueError):
    """A user's mistake: one line that names the key, file or shape and says what would be right."""


class MissingFile(InputError):
    """A file that the user must fetch is not there. The config may be right: it can be shown, but
    not trained.
    """


# name -> (width, depth, heads) of the usual vision transformers; those of a "custom" model are set
# by hand.
MODEL_SIZES = {
    "ti": (192, 12, 3),
    "s": (384, 12, 6),
    "b": (768, 12, 12),
    "l": (1024, 24, 16),
    "h": (1280, 32, 16),
}
DATA_KINDS = ("digit_scenes", "digits", "folder", "tfds")
EVAL_TASKS = ("knn", "linear", "dense", "rank")
# STELLAR's grid for a linear probe: {1, 2, 5} x {1e-5, 1e-4, 1e-3} and 1e-2.
_LINEAR_LRS = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
COMPUTED = "run"  # the section that validate.resolve() writes


def base() -> ConfigDict:
    """All keys that belong to no method, with defaults as papers use for ViT-S/16. No key can be
    added to a section.
    """
    c = ConfigDict()
    c.method = ""  # name of the method; its settings are the section of that name
    c.seed = 0  # of parameters, data order, crops, masks and every other draw
    # weights to start from: a file, a run or one checkpoint of it; "" = random. Never read when a
    # run is resumed
    c.init_from = ""
    # of these weights take only what lies below this path of the parameters ("backbone"); "" = all
    # that match
    c.init_only = ""

    c.data = _data_section()
    c.data.cache = False  # keep decoded images in memory (uint8; for sets that fit)
    c.data.max_unreadable = (
        0.01  # share of records that may be unreadable before the run stops, 0 to 1
    )
    c.data.crop_on = (  # where crops are cut: "host", or "device" (small images, all of one size)
        "host"
    )
    c.data.workers = 0  # loader processes; 0 = in the main process. Changes no sample

    c.views = v = ConfigDict()
    v.global_count = 2  # large crops per image
    v.global_size = 224  # pixels, square
    v.global_scale = (0.25, 1.0)  # area of the crop / area of the image, drawn uniformly between
    v.local_count = 10  # small crops per image; 0 = none
    v.local_size = 96  # pixels, square
    v.local_scale = (0.05, 0.25)  # area share of a small crop
    v.flip = 0.5  # probability of a horizontal flip
    v.jitter = (
        0.4,
        0.4,
        0.2,
        0.1,
    )  # brightness, contrast, saturation (factors 1 +- x), hue (+- x turns)
    v.jitter_prob = 0.8  # probability of colour jitter
    v.gray_prob = 0.2  # probability of grayscale
    v.blur_prob = (
        1.0,
        0.1,
        0.5,
    )  # probability of Gaussian blur: first global view, further global views, local views
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
    m.image_size = (
        224  # pixels: native grid of the position codes; other image sizes are interpolated
    )
    m.mlp_ratio = 4.0  # hidden width of the MLP / token width
    m.cls = True  # class token
    m.queries = 0  # extra learned query tokens
    m.position = "learned"  # position codes: "learned" or "sincos" (fixed)
    # resizing of position codes: "exact", or "dino_offset" (DINO-family weights)
    m.position_resize = "exact"
    # its cubic kernel: "keys-0.75" (torch, plain), or "antialias-0.5" (timm weights)
    m.resize_kernel = "keys-0.75"
    m.drop_path = (
        0.0  # highest stochastic-depth rate (last block), linear over blocks; student only
    )
    m.init_std = 0.02  # standard deviation of the truncated normal initialiser
    m.position_std = 0.0  # the same for learned position codes alone; 0 = init_std
    m.gelu = "erf"  # "erf" (exact) or "tanh" (approximate, faster)
    m.scan = (
        False  # one compiled block, scanned: compiles 10 x faster on accelerators; same numbers
    )
    m.remat = (
        False  # recompute activations of a block in the backward pass: less memory, same numbers
    )
    m.dtype = "float32"  # of the computation; parameters, losses and softmax are always float32

    c.optim = o = ConfigDict()
    o.name = "adamw"  # update rule: "adamw", "lars", "lion", "muon" or "sgd"
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
    o.chunks = (
        1  # encode the batch in so many pieces to save memory (the gradient is the same); 1 = off
    )

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

    c.max_nonfinite = (
        20  # stop after so many steps in a row with a non-finite loss or gradient; 0 = never
    )

    c.eval = e = ConfigDict()
    e.every_steps = 0  # 0 = only at the end
    e.tasks = (
        "knn",
        "linear",
        "dense",
    )  # any of "knn", "linear" (need labels), "dense" (needs masks), "rank"
    e.image = (
        _data_section()
    )  # images, for knn and linear with labels; its `split` is the training part
    e.image.kind = "digits"  # knn and linear need a set with labels
    e.image.test_split = "test"  # part of the set that is scored
    e.dense = _data_section()  # images with masks; its `split` is the memory
    e.dense.test_split = "test"  # part of the set that is scored
    e.train_examples = 0  # use the first so many of the training part; 0 = all
    e.test_examples = 0  # the same of the test part
    e.batch_size = 64  # images per forward pass
    e.crop = (
        0  # pixels: square centre crop; 0 = none. Images are always cut to a multiple of the patch
    )
    e.knn_k = (10, 20, 100, 200)  # neighbours; each is reported
    e.knn_temperature = 0.07  # votes weigh exp(cosine / temperature)
    e.linear_epochs = 30  # of the probe
    e.linear_batch = 256  # features per step
    e.linear_lrs = (
        _LINEAR_LRS  # learning rates tried in one run; the best on a held-out 10 % counts
    )
    e.linear_weight_decay = 1e-4  # of the probe's AdamW
    e.dense_k = 50  # nearest patches that vote
    e.dense_vote = "plain"  # "plain", or "softmax" (votes weigh exp(cosine / 0.1))
    e.dense_subsample = 1  # keep one training image in this many
    e.dense_runs = 1  # draws of that subsample, averaged

    c.expected = (
        ConfigDict()
    )  # name of a score -> expected number and where it comes from; shown, never used

    for section in c.values():
        if isinstance(section, ConfigDict) and section is not c.expected:
            section.lock()
    return c


def _data_section() -> ConfigDict:
    """Keys that name a set of images; the same for training and evaluation."""
    d = ConfigDict()
    d.kind = (  # "digit_scenes", "digits" (both embedded, no download), "folder" or "tfds"
        "digit_scenes"
    )
    d.name = ""  # name of a TFDS set
    d.dir = ""  # folder of images, or TFDS data directory
    d.split = "train"  # part of the set; TFDS slices such as "train[:10%]" work
    d.length = 10000  # number of generated images (embedded sets)
    d.size = 0  # pixels: shorter side resized to this, then a square centre crop; 0 = as stored
    return d


# --- keys


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of a config, declared where it is used: default, meaning, and what is allowed.

    default: also gives the type; an integer may stand for a float, a list for a tuple.
    meaning: a phrase for people; unit: of the value, as "pixels" or "images".
    above, least, below, most: range of a number, or of every element of a tuple.
    choices: the values allowed. length: of a tuple; 0 = any. ordered: (low, high) with low <= high.
    free: may differ when a run is continued, because it changes where or how something is
      computed, shown or stored, and not what.
    """

    default: Any
    meaning: str
    unit: str = ""
    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None
    choices: tuple = ()
    length: int = 0
    ordered: bool = False
    free: bool = False

    def check(self, name: str, value) -> None:
        """Refuses a value that this key, called `name`, cannot have. Raises InputError."""
        if _as_type(value, self.default) is None:
            raise InputError(wrong_type(name, value, self.default))
        check_choice(name, value, self.choices or (value,))
        numbers = value if isinstance(value, tuple | list) else (value,)
        if self.length and len(numbers) != self.length:
            raise InputError(f"{name} is {value}; it must be {self.length} numbers")
        for number in numbers:
            if isinstance(number, float) and not math.isfinite(number):
                raise InputError(f"{name} is {value}; it must be finite")
            if not self._holds(number):
                raise InputError(f"{name} is {value}; it must be {self.range()}")
        if self.ordered and list(numbers) != sorted(numbers):
            raise InputError(f"{name} is {value}; it must be (low, high) with low <= high")

    def _holds(self, number) -> bool:
        return (
            (self.above is None or number > self.above)
            and (self.least is None or number >= self.least)
            and (self.below is None or number < self.below)
            and (self.most is None or number <= self.most)
        )

    def range(self) -> str:
        """The allowed range in words: "above 0", "at least 1 and below 5"; "" without one."""
        limits = {
            "above": self.above,
            "at least": self.least,
            "below": self.below,
            "at most": self.most,
        }
        return " and ".join(f"{word} {x:g}" for word, x in limits.items() if x is not None)


def key(default, meaning: str, **limits) -> Key:
    """Declares a key of a section: `lr=key(5e-4, "peak learning rate", above=0)`; see `Key`."""
    return Key(default, meaning, **limits)


def with_defaults(keys: dict, changes: dict) -> dict:
    """The declared section `keys` with other defaults, {"cls.anchors": 8192}."""
    changed = dict(keys)
    for name, default in changes.items():
        head, _, rest = name.partition(".")
        old = changed[head]
        new = (
            with_defaults(old, {rest: default})
            if rest
            else dataclasses.replace(old, default=default)
        )
        changed[head] = new
    return changed


def build(keys: Mapping) -> ConfigDict:
    """A locked ConfigDict with the defaults of a (nested) dict of Keys."""
    values = {
        name: build(entry) if isinstance(entry, Mapping) else entry.default
        for name, entry in keys.items()
    }
    return ConfigDict(values).lock()


def check_choice(name: str, value, choices: Collection) -> None:
    """Raises InputError, naming the nearest choice, if `value` is none of `choices`."""
    if value not in choices:
        close = nearest(str(value), [str(choice) for choice in choices])
        hint = f'; did you mean "{close}"?' if close else ""
        listed = ", ".join(map(str, choices))
        raise InputError(f'{name} is "{value}"; it must be one of {listed}{hint}')


def _as_type(value, current):
    """`value` as the type of `current` without loss (int -> float, list -> tuple), or None if it
    has another type.
    """
    if isinstance(current, tuple):
        if not isinstance(value, (tuple, list)):
            return None
        # Elements follow the first element of the default; an empty default says nothing about
        # them.
        items = tuple(_as_type(v, current[0]) if current else v for v in value)
        return None if None in items else items
    if isinstance(current, bool) or isinstance(value, bool):
        return value if isinstance(value, bool) and isinstance(current, bool) else None
    if isinstance(current, float):
        return float(value) if isinstance(value, (int, float)) else None
    return value if isinstance(value, type(current)) else None


def wrong_type(key: str, value, current) -> str:
    """Message for a value that cannot stand where `current` stands."""
    return f"{key} is {value!r}; it must be {_wanted(current)}, for example {current!r}"


def _wanted(current) -> str:
    if isinstance(current, tuple):
        return f"a tuple of {_wanted(current[0]).split()[-1]}s" if current else "a tuple"
    return {bool: "true or false", int: "an integer", float: "a number", str: "a string"}.get(
        type(current), type(current).__name__
    )


# --- names


def unknown(kind: str, name: str, options: Collection[str]) -> str:
    """Message for a name that does not exist: the nearest one that does, and all of them if they
    are few.
    """
    close = nearest(str(name), options)
    hint = f'; did you mean "{close}"?' if close else ""
    listed = f" (known: {', '.join(sorted(options))})" if len(options) <= 12 else ""
    return f'unknown {kind} "{name}"{hint}{listed}'


def nearest(name: str, options) -> str | None:
    """The most similar option: by whole name, else by the last part of dotted names."""
    close = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
    if not close:
        last = {o.rsplit(".", 1)[-1]: o for o in options}
        close = [
            last[c]
            for c in difflib.get_close_matches(name.rsplit(".", 1)[-1], list(last), n=1, cutoff=0.7)
        ]
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


def load(path_with_arg: str) -> ConfigDict:
    """Runs `get_config` of a config file.

    Args:
      path_with_arg: "configs/sop.py:vits16" calls get_config("vits16"), "configs/sop.py" calls
        get_config().

    Returns:
      A locked config, not validated yet.

    Raises:
      InputError: no such file, no get_config in it, a key that does not exist, a value of the wrong
      type.
    """
    path, _, arg = path_with_arg.partition(":")
    get_config = read_module(Path(path)).get_config
    parameters = inspect.signature(get_config).parameters
    if arg and not parameters:
        raise InputError(f'{path}: get_config() has no variants, but ":{arg}" was given')
    if not arg and any(p.default is p.empty for p in parameters.values()):
        raise InputError(f"{path} needs a variant: --config={path}:NAME")
    try:
        config = get_config(arg) if arg else get_config()
    except (
        AttributeError,
        KeyError,
        TypeError,
    ) as error:  # how ml_collections reports an unknown key or a wrong type
        raise InputError(f"{path_with_arg}: {_reason(error)}") from error
    if not isinstance(config, ConfigDict):
        raise InputError(
            f"{path}: get_config must return an ml_collections.ConfigDict, got"
            f" {type(config).__name__}"
        )
    return config.lock()


def read_module(path: Path):
    """The module of a config file, run anew; it has a get_config and may import other modules of
    its folder as `configs.NAME`.

    Raises:
      InputError: no such file, no get_config in it.
    """
    if not path.is_file():
        siblings = (
            [str(p) for p in sorted(path.parent.glob("*.py"))] if path.parent.is_dir() else []
        )
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
    return module


def _reason(error: Exception) -> str:
    """One line from an error of ml_collections about an unknown key (which lists its section) or a
    wrong type.
    """
    text = " ".join(str(error.args[0] if error.args else error).split())
    key = re.search(r'Key "(.+?)" does not exist', text)
    if key is None:
        return f"{type(error).__name__}: {text}".replace(" (reference)", "")
    present = re.findall(r"'(\w+)\\?': ", text)
    return unknown("config key", key[1], present if nearest(key[1], present) else flatten(base()))


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
    """Dotted keys whose values differ, or that only one of two configs (or flat dicts) has;
    sorted.
    """
    old, new, absent = flatten(old), flatten(new), object()
    return [key for key in sorted(old | new) if old.get(key, absent) != new.get(key, absent)]


# Keys (or sections) that may differ when a run is continued: they change where and how it is
# computed, watched and stored, not what. (model.size is only a name for width, depth and heads; of
# the computed section, the number of records cannot be told from the keys.)
_FREE_ON_RESUME = (
    "data.dir",
    "data.cache",
    "data.workers",
    "data.max_unreadable",
    "model.size",
    "model.scan",
    "model.remat",
    "optim.chunks",
    "mesh",
    "checkpoint",
    "log",
    "max_nonfinite",
    "eval",
    "expected",
    COMPUTED,
)


def fingerprint(config) -> dict[str, Any]:
    """{dotted key: value} of everything in a resolved config that must agree for a run to be
    continued.
    """

    def fixed(key):
        return key == f"{COMPUTED}.num_records" or not any(
            key == free or key.startswith(free + ".") for free in _FREE_ON_RESUME
        )

    return {key: value for key, value in flatten(config).items() if fixed(key)}


def compare_for_resume(saved, current) -> list[str]:
    """Why `saved` cannot be continued with `current` (both resolved): "KEY is OLD there, NEW here";
    [] if it can.
    """
    old, new = fingerprint(saved), fingerprint(current)

    def said(values, key):
        return repr(values[key]) if key in values else "absent"

    return [f"{key} is {said(old, key)} there, {said(new, key)} here" for key in changed(old, new)]
