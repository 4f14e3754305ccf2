"""What people do with the package: train a config, load what was learned."""

from pathlib import Path

import jax
import jax.numpy as jnp

from ssl_jax import config as config_lib
from ssl_jax import convert, methods, settings
from ssl_jax.data import source
from ssl_jax.evals import report
from ssl_jax.methods import encoder
from ssl_jax.methods.encoder import Encoder
from ssl_jax.train import checkpoint, loop


def prepare(config, records=None) -> loop.Run:
    """Checks the whole config and plans the run; raises InputError before anything is allocated.

    records: a source of your own (data.source protocol, for example ArraySource) instead of the one
    that `config.data` names.
    """
    definition = methods.get(config.method)
    settings.validate(config, num_devices=jax.device_count())
    definition.check(config)
    records = source.make_source(config.data) if records is None else records
    config = settings.resolve(config, num_records=len(records), num_devices=jax.device_count())
    return loop.plan(config, records, settings.keys(config.method))


def train(config, workdir: str | Path, records=None) -> int:
    """Trains to the end of the plan, continuing whatever `workdir` holds; evaluates and draws.

    records: as in `prepare`.

    Returns loop.EXIT_DONE or loop.EXIT_PREEMPTED. Raises InputError for a config, data set,
    checkpoint or disk that cannot work; nothing is written before those checks.
    """
    run = prepare(config, records)
    return loop.train(run, workdir, report.Evaluation(run.config))


def load(path: str | Path, *, family: str | None = None, heads: int | None = None) -> Encoder:
    """The network of a run or of published weights: `load(PATH)(images) -> Features`.

    No optimizer is built; arrays are put on the first local device.

    Args:
      path: a run folder (its newest complete checkpoint), one step's folder, or published weights:
        a .safetensors, .npz or (with torch) .pth file, or a Hugging Face folder.
      family: of published weights whose names several families share: "dino", "mae" or "timm".
      heads: attention heads of published weights; None: width / 64, as in all usual sizes.

    Returns:
      An Encoder with the teacher's weights where there is a teacher.

    Raises:
      InputError: nothing of that kind there, or damaged or unknown weights.
    """
    place = Path(path).expanduser()
    if place.is_file() or (place.is_dir() and convert.weight_file(place) is not None):
        shape, params, report = convert.load_vit(place, family=family, heads=heads)
        return encoder.published(shape, jax.tree.map(jnp.asarray, params), report.title)
    config = saved_config(place)
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    with checkpoint.opened(place) as (saved, step):
        trees = saved.read(step, ("params", "teacher", "constants"), lambda shape: device)
    weights = trees["params"] if trees["teacher"] is None else trees["teacher"]
    return Encoder(config, weights, trees["constants"], step)


def saved_config(path: str | Path):
    """The resolved config inside a checkpoint; `path` is a run folder or one step's folder."""
    with checkpoint.opened(path) as (saved, step):
        config = config_lib.from_json(saved.meta(step)["config"])
    methods.import_modules(config.imports)
    return config
