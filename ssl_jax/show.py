"""`ssl-jax show`: the resolved config with the origin of each value, parameter count and FLOPs, without allocating anything."""

import jax

from ssl_jax import config as config_lib
from ssl_jax import methods, step, validate
from ssl_jax.config import InputError
from ssl_jax.data import source
from ssl_jax.models import zoo

_ASSUMED_STEPS = 1000  # of an epoch, where the data are not here


def text(file_config, final_config) -> str:
    """The report for a config file's config and the same after the command line. Raises InputError if it cannot work."""
    method = methods.get(final_config.method)
    validate.validate(final_config, num_devices=jax.device_count())
    method.check(final_config)
    records, note = _num_records(final_config)
    resolved = validate.resolve(final_config, num_records=records, num_devices=jax.device_count())
    origin = origins(methods.base_config(final_config.method), file_config, final_config, resolved)
    values = config_lib.flatten(resolved)
    width = max(map(len, values))
    rows = [f"{key:<{width}}  {value!r:<28} {origin[key]}" for key, value in sorted(values.items())]
    return "\n".join([*rows, "", *_costs(method, resolved), *note])


def _num_records(config) -> tuple[int, list[str]]:
    """Number of training images, and what to say about it: a recipe can be looked at on a machine without the data."""
    try:
        return len(source.make_source(config.data)), []
    except InputError as error:
        return config.optim.batch_size * _ASSUMED_STEPS, [f"steps assume {_ASSUMED_STEPS} an epoch, the data cannot be opened: {error}"]


def _costs(method, config) -> list[str]:
    """Lines on parameters, FLOPs and expected numbers."""
    params, _ = jax.eval_shape(lambda: method.init(jax.random.key(0), config))
    size = config.model.image_size
    image = step.flops_per_image(method, config)
    rows = {f"parameters, {name}": f"{zoo.count(tree):,}" for name, tree in params.items()}
    rows["parameters, all"] = f"{zoo.count(params):,}"
    rows[f"forward, one {size} px image"] = f"{zoo.forward_flops(zoo.vit_config(config.model), size, size) / 1e9:,.4g} GFLOP"
    rows["training step, per image"] = f"{image / 1e9:,.4g} GFLOP"
    rows[f"training step, batch of {config.optim.batch_size}"] = f"{image * config.optim.batch_size / 1e12:,.4g} TFLOP"
    rows |= {f"expected {name}": number for name, number in sorted(config.expected.items())}
    return [f"{name:<32} {value}" for name, value in rows.items()]


def origins(default, file, final, resolved) -> dict[str, str]:
    """Where each value of `resolved` comes from: "default", "config file", "command line" or "computed".

    Args:
      default: methods.base_config(NAME). file: config.load(PATH). final: the same after the command line.
      resolved: validate.resolve(final, ...).
    """
    default, file, final = (config_lib.flatten(c) for c in (default, file, final))
    missing = object()

    def origin(key, value):
        if value != final.get(key, missing):
            return "computed"
        if value != file.get(key, missing):
            return "command line"
        return "default" if value == default.get(key, missing) else "config file"

    return {key: origin(key, value) for key, value in config_lib.flatten(resolved).items()}
