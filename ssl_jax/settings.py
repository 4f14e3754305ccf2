"""The complete config: joins the sections of all modules, checks whether a config can work, and
computes the values that it implies.

    config = settings.base_config("sop")         # every key of the package and of SOP
    settings.keys("sop")["optim.lr"].meaning     # how each of them is declared
    settings.validate(config, num_devices=8)     # refuses what cannot work; allocates nothing
    settings.resolve(config, num_records=1_281_167, num_devices=8).run.total_steps
"""

import functools
import itertools
import math
import operator
from collections.abc import Collection

from ml_collections import ConfigDict, FrozenConfigDict

from ssl_jax import config as config_lib
from ssl_jax import evals, methods
from ssl_jax.config import COMPUTED, OPEN, InputError, Key, key, unknown
from ssl_jax.data import source
from ssl_jax.methods import gram
from ssl_jax.models import zoo
from ssl_jax.runtime import sharding
from ssl_jax.train import checkpoint, log, optim_settings, schedule, start, trackers
from ssl_jax.views import loader
from ssl_jax.views import section as views

_LAST_STEP = 2**31 - 1  # steps are counted in 32 bits


def sections() -> dict:
    """The Keys that all methods have: {key or section: Key or dict of Keys}."""
    return dict(
        method=key("", "name of the method; the section of that name holds its settings", acts=""),
        seed=key(
            0,
            "seed of parameters, data order, crops, masks, all random draws",
            least=0,
            below=2**31,
        ),
        init_from=key(
            "",
            'weights to start from: a file, a run, or one of its checkpoints; "" = random. Not read'
            " again when a run is resumed",
            path=True,
            acts="",
        ),
        init_only=key(
            "",
            'load only the weights below this path of the parameters, as "backbone"; "" = all that'
            " match",
            acts="",
        ),
        init_model=key(
            False,
            "take the section model from the weights of init_from, which is required, except keys"
            " that affect training alone (drop_path, remat, dtype, queries, ...)",
        ),
        init_channels=start.CHANNELS,
        imports=key(
            (),
            "modules to import first, which register your own methods, evaluations or data;"
            " --import=MODULE adds one",
            element="my.module",
            free=True,
            acts="runs code when imported",
        ),
        max_nonfinite=key(
            20,
            "stop after this many consecutive steps with a non-finite loss or gradient; 0 = never",
            "steps",
            least=0,
            free=True,
        ),
        data=source.defaults() | loader.defaults(),
        views=views.defaults(),
        model=zoo.defaults(),
        optim=optim_settings.defaults(),
        teacher=schedule.defaults(),
        gram=gram.defaults(),
        mesh=sharding.defaults(),
        checkpoint=checkpoint.defaults(),
        log=log.defaults() | config_lib.free_on_resume(trackers.defaults()),
        evals=evals.defaults(),
    )


def keys(method: str = "") -> dict[str, Key]:
    """{dotted key: Key} of a complete config for a method; "" = only the keys that all methods
    have. `evals.keys(config)` has those of a config's evaluations.
    """
    return config_lib.flatten(sections() | _own_section(method))


def base_config(method: str) -> ConfigDict:
    """A complete config for a method: the package's defaults and the method's own section. It is
    locked, except for adding evaluations to the section `evals` (see `evals.section`) and entries
    to `expected`.
    """
    section = _own_section(method)
    config = config_lib.build(config_lib.with_defaults(sections(), {"method": method}) | section)
    with config.unlocked():
        config.expected = ConfigDict()
    for name in ("evals", "expected"):
        config[name].unlock()
    return config


def _own_section(method: str) -> dict:
    """{name: Keys} of the method's own section and further ones it uses; {} for the method ""."""
    names = (method, *methods.get(method).beside) if method else ()
    return {name: methods.get(name).defaults() for name in names}


def completed(stored: ConfigDict | FrozenConfigDict) -> ConfigDict:
    """A stored config with the keys of this version of the package: new keys have their defaults,
    removed ones are dropped. For commands that read a network; training resumes with the stored
    config.

    A value that a key of this version cannot have is replaced by the default if the key is free
    (`Key.free`), and refused otherwise. The method may be unknown, as for published weights.

    Raises InputError for a config that cannot be read; it may come from anybody.
    """
    method = stored.get("method", "")
    known = method in methods.METHODS
    config = base_config(method) if known else config_lib.build(sections())
    config.unlock()
    config.method = method
    for name, section in evals.named(stored).items():
        if name in evals.defaults():
            raise InputError(f"stored config: evals.{name} is a section; it must be a value")
        config.evals[name] = evals.new(section.get("type", ""))
    declared = keys(method if known else "") | evals.keys(config)
    for name, value in config_lib.flatten(stored).items():
        if name.split(".")[0] in OPEN:
            continue
        key = declared.get(name)
        if key is None or (key.free and not key.allows(value)):
            continue
        key.check(f"stored config: {name}", value)
        _put(config, name, value)
    for name in OPEN:
        if isinstance(stored.get(name), ConfigDict | FrozenConfigDict):
            config[name] = ConfigDict(stored[name].to_dict())
    return config


def check_stored(config: ConfigDict, parts: tuple[str, ...], given: Collection[str] = ()) -> None:
    """Raises InputError for values with effects (`Key.acts`) in a config that came with a network.

    parts: prefixes of the keys that will be used. given: keys that the user has set.
    """
    declared = keys() | evals.keys(config)
    for name, value in config_lib.flatten(config).items():
        if name.startswith(parts) and name in declared and name not in given:
            declared[name].check_stored(name, value)


def with_absolute_paths(config: ConfigDict) -> ConfigDict:
    """The config with absolute paths, for storage."""
    config = ConfigDict(config.to_dict())  # ConfigDict(config) would share its sections
    values = config_lib.flatten(config)
    for name, declared in (keys(config.method) | evals.keys(config)).items():
        if declared.path and (value := values[name]) and "://" not in value:
            place = config_lib.absolute(value)
            # Missing paths may be relative to something else; evals.cache is created later.
            if place.exists() or name == "evals.cache":
                _put(config, name, str(place))
    return config


def _put(config, name, value):
    *path, last = name.split(".")
    functools.reduce(operator.getitem, path, config)[last] = value


def check_evals(config: ConfigDict) -> None:
    """Raises InputError for evaluations that cannot work; `validate` checks a whole config."""
    values = config_lib.flatten(config)
    for name, declared in (keys() | evals.keys(config)).items():
        if name.startswith("evals."):
            declared.check(name, values[name])
    evals.check(config)


def validate(config: ConfigDict, num_devices: int | None) -> None:
    """Refuses a config that cannot work, before anything is allocated.

    Checks each key by its declaration, and combinations of keys of the general sections;
    `method.check(config)` checks combinations with the method's section. The config may be resolved
    or not.

    Args:
      num_devices: number of devices of the run; None = nothing will be trained, and the mesh is not
        checked.

    Raises:
      InputError: names the key, its value and the remedy.
    """
    if not config.get("method"):
        raise InputError(
            'method is ""; a config file must set it, see ssl_jax.settings.base_config(NAME)'
        )
    if config.method not in config:
        raise InputError(
            f'config has no section "{config.method}" for its method; '
            f'start from ssl_jax.settings.base_config("{config.method}")'
        )
    check_keys(config)
    if config.init_only and not (config.init_from or config.init_model):
        raise InputError(
            f'init_only is "{config.init_only}" but init_from is ""; set init_from to the weights'
            " to start from"
        )
    views.check(config)
    if config.data.cache == "device" and config.data.crop_on == "host":
        raise InputError(
            'data.cache is "device", where the images are cropped too; set data.crop_on="device"'
        )
    if config.data.area_crops and config.data.crop_on == "device":
        raise InputError('data.area_crops is for crops on the host; set data.crop_on="host"')
    zoo.check(config)
    optim_settings.check(config)
    gram.check(config)
    if num_devices is not None:
        sharding.check(config, num_devices)
    source.check("data", config.data, config.data.dir)
    evals.check(config)


def check_keys(config: ConfigDict) -> None:
    """Raises InputError unless the config has exactly the declared keys, with allowed values."""
    known = keys(config.method) | evals.keys(config)
    values = config_lib.flatten(config)
    values = {name: x for name, x in values.items() if name.split(".")[0] not in OPEN}
    top = {name.split(".")[0] for name in known} | set(OPEN)
    for name in values:
        first, _, rest = name.partition(".")
        if first not in top:
            raise InputError(unknown("config section" if rest else "config key", first, top))
        if name not in known:
            raise InputError(unknown("config key", name, known))
    missing = [name for name in known if name not in values]
    if missing:
        raise InputError(
            f"config lacks {', '.join(missing)}; start from ssl_jax.settings.base_config(NAME)"
        )
    for name, declared in known.items():
        declared.check(name, values[name])


def resolve(config: ConfigDict, *, num_records: int, num_devices: int) -> FrozenConfigDict:
    """Computes the implied values of a valid config: the model's shape, the data of evaluations
    (`evals.follow`; an empty `evals.NAME.data.dir` becomes `data.dir` if the kind is the same) and
    the section `run`. Resolving again changes nothing.

    run.num_records       images in the training set
    run.steps_per_epoch   num_records // batch_size (the last partial batch is dropped)
    run.total_steps       optim.steps, or epochs * steps_per_epoch rounded; for an extended run the
                          last of optim.extended
    run.epochs            total_steps / steps_per_epoch
    run.warmup_steps      warmup_epochs * steps_per_epoch rounded; at most optim.steps
    run.peak_lr           lr * batch_size / base_batch
    run.batch_per_device  images

    Returns:
      A frozen, hashable config.

    Raises:
      InputError: the set is smaller than a batch, the run is shorter than a step or longer than
        2**31 - 1 steps, the warm-up is longer than the run, optim.extended is not ascending, or the
        model's size is contradictory.
    """
    config = ConfigDict(config.to_dict())  # ConfigDict(config) would share its sections
    o = config.optim
    steps_per_epoch = num_records // o.batch_size
    if steps_per_epoch == 0:
        raise InputError(
            f"optim.batch_size is {o.batch_size}, but the set has only {num_records} images; use at"
            f" most {num_records}"
        )
    ends = schedule.ends(o, steps_per_epoch)
    total = ends[0]  # of the original run, before it was extended
    if total == 0:
        raise InputError(
            f"optim.epochs is {o.epochs}, less than one step (an epoch has {steps_per_epoch}); "
            f"use at least {1 / steps_per_epoch:.3g}"
        )
    if total > _LAST_STEP:
        raise InputError(
            f"optim.epochs is {o.epochs}, a run of {total} steps; use at most"
            f" {math.floor(_LAST_STEP / steps_per_epoch)}"
        )
    warmup = round(o.warmup_epochs * steps_per_epoch)
    if o.steps:
        warmup = min(warmup, total)  # so that any config can be tried for a few steps
    elif warmup > total:
        raise InputError(
            f"optim.warmup_epochs is {o.warmup_epochs} = {warmup} steps, longer than the run of"
            f" {total} steps; use at most {math.floor(1000 * total / steps_per_epoch) / 1000:g}, or"
            " a longer run"
        )
    if any(later <= end for end, later in itertools.pairwise(ends)):
        raise InputError(
            f"optim.extended is {o.extended}; it must be steps in ascending order, above the"
            f" {total} of the plan"
        )
    data, fsdp = sharding.mesh_shape(config.mesh.data, config.mesh.fsdp, num_devices)
    config.model.width, config.model.depth, config.model.heads = zoo.model_shape(config.model)
    config.model.stages = zoo.stages(config.model)
    evals.follow(config)
    for section in evals.named(config).values():
        section.data.dir = evals.folder(config, section)
    config[COMPUTED] = ConfigDict(
        dict(
            num_records=num_records,
            steps_per_epoch=steps_per_epoch,
            total_steps=ends[-1],
            epochs=ends[-1] / steps_per_epoch,
            warmup_steps=warmup,
            peak_lr=o.lr * o.batch_size / o.base_batch,
            batch_per_device=o.batch_size // (data * fsdp),
        )
    )
    return FrozenConfigDict(config)
