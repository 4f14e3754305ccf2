"""What people do with the package: train a config, load what was learned."""

from pathlib import Path

import jax

from ssl_jax import config as config_lib
from ssl_jax import methods, settings
from ssl_jax.data import source
from ssl_jax.evals import report
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


def load(path: str | Path) -> Encoder:
    """The network that a run trained: `load(PATH)(images) -> Features`. No optimizer is built.

    Args:
      path: a run folder (its newest complete checkpoint) or one step's folder.

    Returns:
      An Encoder with the teacher's weights where the run has a teacher; on the first local device.

    Raises:
      InputError: no complete checkpoint there, or a damaged one.
    """
    config = saved_config(path)
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    with checkpoint.opened(path) as (saved, step):
        trees = saved.read(step, ("params", "teacher", "constants"), lambda shape: device)
    weights = trees["params"] if trees["teacher"] is None else trees["teacher"]
    return Encoder(config, weights, trees["constants"], step)


def saved_config(path: str | Path):
    """The resolved config inside a checkpoint; `path` is a run folder or one step's folder."""
    with checkpoint.opened(path) as (saved, step):
        config = config_lib.from_json(saved.meta(step)["config"])
    methods.import_modules(config.imports)
    return config
