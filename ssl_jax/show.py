"""`ssl-jax show`: the resolved config with the origin of each value, parameter count and FLOPs, without allocating anything."""

import jax

from ssl_jax import config as config_lib
from ssl_jax import methods, step
from ssl_jax.config import InputError
from ssl_jax.data import source
from ssl_jax.models import zoo


def text(file_config, final_config) -> str:
    """The report for a config file's config and the same with the command line's overrides. Raises InputError if it cannot work."""
    method = methods.get(final_config.method)
    config_lib.validate(final_config, num_devices=jax.device_count())
    method.check(final_config)
    try:
        records, note = len(source.make_source(final_config.data)), ""
    except InputError as error:
        # The recipe can be looked at on a machine without the data.
        records, note = final_config.optim.batch_size * 1000, f"\nnot resolved for lack of data ({error}); steps below assume 1000 an epoch"
    resolved = config_lib.resolve(final_config, num_records=records, num_devices=jax.device_count())
    origins = config_lib.origins(methods.base_config(final_config.method), file_config, final_config, resolved)
    values = config_lib.flatten(resolved)
    width = max(map(len, values))
    lines = [f"{key:<{width}}  {value!r:<28} {origins[key]}" for key, value in sorted(values.items())]
    params, _ = jax.eval_shape(lambda: method.init(jax.random.key(0), resolved))
    vit = zoo.vit_config(resolved.model)
    size = resolved.model.image_size
    lines += [
        "",
        *(f"{'parameters, ' + name:<28} {zoo.count(tree) / 1e6:10.3f} M" for name, tree in params.items()),
        f"{'parameters, all':<28} {zoo.count(params) / 1e6:10.3f} M",
        f"{f'forward, one {size} px image':<28} {zoo.forward_flops(vit, size, size) / 1e9:10.3f} GFLOP",
        f"{'training step, per image':<28} {step.flops_per_image(method, resolved) / 1e9:10.3f} GFLOP",
        f"{'training step':<28} {step.flops_per_image(method, resolved) * resolved.optim.batch_size / 1e9:10.1f} GFLOP",
    ]
    for name, number in sorted(resolved.expected.items()):
        lines.append(f"{'expected ' + name:<28} {number}")
    return "\n".join(lines) + note
