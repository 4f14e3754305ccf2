"""Whether a config can work, and what it implies: `validate` refuses, `resolve` computes. Nothing
is allocated.
"""

import math

from ml_collections import ConfigDict, FrozenConfigDict

from ssl_jax.config import (
    COMPUTED,
    DATA_KINDS,
    EVAL_TASKS,
    MODEL_SIZES,
    InputError,
    _as_type,
    base,
    check_choice,
    flatten,
    unknown,
    wrong_type,
)

_CHOICES = {
    "data.kind": DATA_KINDS,
    "data.crop_on": ("host", "device"),
    "views.mask": ("none", "block", "random"),
    "model.size": (*MODEL_SIZES, "custom"),
    "model.position": ("learned", "sincos"),
    "model.position_resize": ("exact", "dino_offset"),
    "model.resize_kernel": ("keys-0.75", "antialias-0.5"),
    "model.gelu": ("erf", "tanh"),
    "model.dtype": ("float32", "bfloat16"),
    "optim.clip_by": ("tensor", "global", "none"),
    "eval.image.kind": DATA_KINDS,
    "eval.dense.kind": DATA_KINDS,
    "eval.dense_vote": ("plain", "softmax"),
}


def check_keys(config) -> None:
    """Every key of base() is there with its type, and nothing else but the method's own section.
    Raises InputError.
    """
    reference = base()
    known, got = flatten(reference), flatten(config)
    free = (config.get("method", ""), COMPUTED, "expected")
    for key, value in got.items():
        if key.split(".")[0] in free and "." in key:
            continue
        if key.split(".")[0] not in reference:
            raise InputError(
                unknown(
                    "config section" if "." in key else "config key", key.split(".")[0], reference
                )
            )
        if key not in known:
            raise InputError(unknown("config key", key, known))
        if _as_type(value, known[key]) is None:
            raise InputError(wrong_type(key, value, known[key]))
    missing = [key for key in known if key not in got]
    if missing:
        raise InputError(
            f"config lacks {', '.join(missing)}; start from ssl_jax.methods.base_config(NAME)"
        )


_POSITIVE = """
data.length views.global_count views.global_size views.local_size model.patch model.image_size
model.mlp_ratio model.init_std optim.batch_size optim.base_batch optim.lr optim.eps optim.chunks
mesh.fsdp checkpoint.every_steps checkpoint.keep log.every_steps eval.batch_size
eval.knn_temperature eval.linear_epochs eval.linear_batch eval.dense_k eval.dense_subsample
eval.dense_runs
""".split()
_NOT_NEGATIVE = """
seed data.size data.workers views.local_count model.width model.depth model.heads model.queries
optim.epochs optim.steps optim.final_lr optim.warmup_epochs optim.weight_decay
optim.final_weight_decay optim.clip mesh.data checkpoint.keep_every max_nonfinite eval.every_steps
eval.crop eval.train_examples eval.test_examples eval.linear_weight_decay eval.image.size
eval.dense.size
""".split()
_SHARE = """
data.max_unreadable views.flip views.jitter_prob views.gray_prob views.solarize_prob
views.mask_prob teacher.momentum teacher.final_momentum
""".split()


def validate(config, num_devices: int | None) -> None:
    """Refuses a config that cannot work, before anything is allocated.

    Checks everything but the method's own section (`method.check(config)` does that). Works on
    resolved and unresolved configs.

    Args:
      num_devices: that the run will have; None: nothing will be trained, and the mesh is not looked
        at.

    Raises:
      InputError: names the key, what it is, and what would be right.
    """
    if not config.get("method"):
        raise InputError(
            'method is ""; a config file must set it, see ssl_jax.methods.base_config(NAME)'
        )
    if config.method not in config:
        raise InputError(
            f'config has no section "{config.method}" for its method; '
            f'start from ssl_jax.methods.base_config("{config.method}")'
        )
    check_keys(config)
    if config.init_only and not config.init_from:
        raise InputError(
            f'init_only is "{config.init_only}" but init_from is ""; set init_from to the weights'
            " to start from"
        )
    flat = flatten(config)
    for key, choices in _CHOICES.items():
        check_choice(key, flat[key], choices)
    _check_ranges(flat)
    _check_views(config)
    _check_model(config)
    _check_optim(config)
    if num_devices is not None:
        _check_devices(config, num_devices)
    _check_data("data", config.data, config.data.dir)
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
        ("global_scale", 0, 1),
        ("local_scale", 0, 1),
        ("mask_ratio", 0, 1),
        ("blur_radius", 0, math.inf),
    ):
        value = v[name]
        if len(value) != 2 or not low <= value[0] <= value[1] <= high:
            raise InputError(
                f"views.{name} is {value}; it must be (low, high) with {low} <= low <= high <="
                f" {high}"
            )
    for name in ("global_scale", "local_scale"):
        if v[name][0] <= 0:
            raise InputError(f"views.{name} is {v[name]}; a crop needs an area above 0")
    for name, length, top in (("jitter", 4, math.inf), ("blur_prob", 3, 1)):
        if len(v[name]) != length or not all(0 <= x <= top for x in v[name]):
            raise InputError(
                f"views.{name} is {v[name]}; it must be {length} numbers between 0 and {top}"
            )
    if v.jitter[3] > 0.5:
        raise InputError(
            f"views.jitter is {v.jitter}; the hue (last) is in turns and must be at most 0.5"
        )
    for name in ("global_size", *(("local_size",) if v.local_count else ())):
        _check_multiple(f"views.{name}", v[name], patch, "model.patch")


def _check_multiple(key: str, value: int, unit: int, why: str) -> None:
    if value % unit:
        below, above = value - value % unit, value - value % unit + unit
        raise InputError(
            f"{key} is {value}, not a multiple of {unit} ({why}); use"
            f" {f'{below} or ' if below else ''}{above}"
        )


def model_shape(model) -> tuple[int, int, int]:
    """(width, depth, heads) of a model section, from its size or set by hand. Raises InputError on
    a contradiction.
    """
    given = (model.width, model.depth, model.heads)
    if model.size == "custom":
        for name, value in zip(("width", "depth", "heads"), given, strict=True):
            if value < 1:
                raise InputError(
                    f'model.{name} is {value}; model.size="custom" needs width, depth and heads'
                    " above 0"
                )
        return given
    for name, value, fixed in zip(
        ("width", "depth", "heads"), given, MODEL_SIZES[model.size], strict=True
    ):
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
            f"optim.warmup_epochs is {o.warmup_epochs}, longer than the run; use at most"
            f" optim.epochs = {o.epochs}"
        )
    if o.clip_by != "none" and not o.clip > 0:
        raise InputError(
            f'optim.clip is {o.clip}; it must be above 0 (optim.clip_by="none" switches clipping'
            " off)"
        )


def _check_devices(config, num_devices: int) -> None:
    s, o = config.mesh, config.optim
    data = mesh_shape(s.data, s.fsdp, num_devices)[0]
    devices = data * s.fsdp
    _check_multiple("optim.batch_size", o.batch_size, devices, "number of devices")
    _check_multiple(
        "optim.batch_size",
        o.batch_size,
        devices * o.chunks,
        f"{devices} devices x optim.chunks {o.chunks}",
    )


def mesh_shape(data: int, fsdp: int, num_devices: int) -> tuple[int, int]:
    """Devices along (data, fsdp); data = 0 takes all that are left. Raises InputError if they do
    not fit.
    """
    if fsdp < 1 or data < 0:
        raise InputError(
            f"mesh.data is {data} and mesh.fsdp is {fsdp}; use mesh.data >= 0 (0 = all devices) and"
            " mesh.fsdp >= 1"
        )
    if data == 0:
        if num_devices % fsdp:
            divisors = [d for d in range(1, num_devices + 1) if num_devices % d == 0]
            raise InputError(
                f"mesh.fsdp is {fsdp}, which does not divide {num_devices} devices; use one of"
                f" {divisors}"
            )
        data = num_devices // fsdp
    if data * fsdp > num_devices:
        raise InputError(
            f"mesh.data x mesh.fsdp is {data} x {fsdp} = {data * fsdp}, but there are {num_devices}"
            " devices; mesh.data=0 takes all"
        )
    return data, fsdp


def _check_data(key: str, section, folder: str) -> None:
    if section.kind == "folder" and not folder:
        raise InputError(
            f'{key}.dir is ""; {key}.kind="folder" needs the folder that holds the images'
        )
    if section.kind == "tfds" and not section.name:
        raise InputError(
            f'{key}.name is ""; {key}.kind="tfds" needs the name of a set, for example "cifar10"'
        )


def _check_eval(config) -> None:
    e = config.eval
    for task in e.tasks:
        if "," in task:  # --config.eval.tasks=knn,linear is one string
            raise InputError(
                f"eval.tasks is {e.tasks}; for several tasks write --config.eval.tasks=\"('knn',"
                " 'linear')\""
            )
        check_choice("eval.tasks", task, EVAL_TASKS)
    if {"knn", "linear", "rank"} & set(e.tasks):
        _check_data("eval.image", e.image, _folder(config, e.image))
    if {"knn", "linear"} & set(e.tasks) and e.image.kind == "digit_scenes":
        raise InputError(
            'eval.image.kind is "digit_scenes", which has no image labels; knn and linear need'
            ' them: use "digits"'
        )
    if "dense" in e.tasks:
        if e.dense.kind in ("digits", "folder"):
            raise InputError(
                f'eval.dense.kind is "{e.dense.kind}", which has no masks; the task "dense" needs'
                ' them: use "digit_scenes", a TFDS set with masks, or leave dense out of'
                " eval.tasks"
            )
        _check_data("eval.dense", e.dense, _folder(config, e.dense))
    if not e.knn_k or min(e.knn_k) < 1:
        raise InputError(f"eval.knn_k is {e.knn_k}; it must hold numbers of neighbours above 0")
    if not e.linear_lrs or min(e.linear_lrs) <= 0:
        raise InputError(f"eval.linear_lrs is {e.linear_lrs}; it must hold learning rates above 0")


def _folder(config, section) -> str:
    """Where a section of `eval` finds its images: with no `dir` of its own, where training does if
    the kind agrees.
    """
    return section.dir or (config.data.dir if section.kind == config.data.kind else "")


def resolve(config, *, num_records: int, num_devices: int) -> FrozenConfigDict:
    """Works out what the config implies: the model's shape, where evaluations find their images
    (`eval.*.dir` left empty is `data.dir` if the kind is the same) and the section `run`. Resolving
    again gives the same.

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
      InputError: the set is smaller than a batch, the warm-up is longer than the run, a
        contradiction in the model's size.
    """
    config = ConfigDict(config.to_dict())  # ConfigDict(config) would share its sections
    o = config.optim
    steps_per_epoch = num_records // o.batch_size
    if steps_per_epoch == 0:
        raise InputError(
            f"optim.batch_size is {o.batch_size}, but the set has only {num_records} images; use at"
            f" most {num_records}"
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
            f"optim.warmup_epochs is {o.warmup_epochs} = {warmup} steps, longer than the run of"
            f" {total} steps; use at most {math.floor(1000 * total / steps_per_epoch) / 1000:g}, or"
            " a longer run"
        )
    data, fsdp = mesh_shape(config.mesh.data, config.mesh.fsdp, num_devices)
    config.model.width, config.model.depth, config.model.heads = model_shape(config.model)
    for section in (config.eval.image, config.eval.dense):
        section.dir = _folder(config, section)
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
