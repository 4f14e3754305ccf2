"""What people do with the package: train a config, load what was learned."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict, FrozenConfigDict

from ssl_jax import config as config_lib
from ssl_jax import convert, methods, settings
from ssl_jax.config import InputError, unknown
from ssl_jax.convert import own
from ssl_jax.data import source
from ssl_jax.evals import report
from ssl_jax.methods import encoder
from ssl_jax.methods.encoder import Encoder
from ssl_jax.train import checkpoint, loop

_ZOO = Path(__file__).resolve().parent.parent / "zoo"


def prepare(config: ConfigDict, records: Any = None) -> loop.Run:
    """Checks the whole config and plans the run; raises InputError before anything is allocated.

    records: a source of your own (protocol of data.source, for example data.arrays.ArraySource)
    instead of the one that `config.data` names.
    """
    definition = methods.get(config.method)
    settings.validate(config, num_devices=jax.device_count())
    definition.check(config)
    records = source.make_source(config.data) if records is None else records
    config = settings.resolve(config, num_records=len(records), num_devices=jax.device_count())
    return loop.plan(config, records, settings.keys(config.method))


def train(config: ConfigDict, workdir: str | Path, records: Any = None) -> int:
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
      path: a run folder (its newest complete checkpoint), one step's folder; a file that `save`
        wrote, or "zoo/NAME", one of the networks that come with a checkout; or published weights: a
        .safetensors, .npz or (with torch) .pth file, or a Hugging Face folder.
      family: of published weights whose names several families share: "dino", "mae" or "timm".
      heads: attention heads of published weights; None: width / 64, as in all usual sizes.

    Returns:
      An Encoder with the teacher's weights where there is a teacher.

    Raises:
      InputError: nothing of that kind there, or damaged or unknown weights.
    """
    place = _in_zoo(path) or Path(path).expanduser()
    if place.is_file() and (network := own.read(place)) is not None:
        return _restored(network)
    if place.is_file() or (place.is_dir() and convert.weight_file(place) is not None):
        shape, params, report = convert.load_vit(place, family=family, heads=heads)
        return encoder.published(shape, jax.tree.map(jnp.asarray, params), report.title)
    config = saved_config(place)
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    with checkpoint.opened(place) as (saved, step):
        trees = saved.read(step, ("params", "teacher", "constants"), lambda shape: device)
    weights = trees["params"] if trees["teacher"] is None else trees["teacher"]
    return Encoder(config, weights, trees["constants"], step)


def save(encoder: Encoder, path: str | Path, *, dtype: str = "float32", **notes: Any) -> None:
    """Writes a network to one .safetensors file, from which `load` makes an equal Encoder.

    Args:
      encoder: of a run; published weights already are a file.
      dtype: of the stored weights; "bfloat16" halves the file and moves features by about 1 %.
      notes: what else people should know, as JSON: scores, command, licence.

    Raises InputError for a name that does not end in .safetensors.
    """
    notes = {"step": encoder.step, **notes}
    config = config_lib.to_json(encoder.config)
    own.write(path, own.Saved(config, encoder.params, encoder.constants, notes), dtype=dtype)


def _restored(network: own.Saved) -> Encoder:
    """The Encoder that was saved, with weights in float32."""

    def wide(array):
        floating = jnp.issubdtype(array.dtype, jnp.floating)
        return array.astype(jnp.float32) if floating else array

    config = _completed(network.config)
    params, constants = jax.tree.map(wide, (network.params, network.constants))
    return Encoder(config, params, constants, network.notes.get("step"))


def _in_zoo(path: str | Path) -> Path | None:
    """The file of "zoo/NAME", unless the working directory has something of that name; None for any
    other path. Raises InputError naming the networks there are."""
    path = Path(path)
    if path.parts[:1] != ("zoo",) or len(path.parts) != 2 or path.exists():
        return None
    file = _ZOO / f"{path.name.removesuffix('.safetensors')}.safetensors"
    if not file.is_file():
        names = [f"zoo/{other.stem}" for other in sorted(_ZOO.glob("*.safetensors"))]
        raise InputError(
            unknown("network", str(path), names)
            if names
            else f"no {path}: {_ZOO} holds no network; the zoo comes with a checkout"
        )
    return file


def saved_config(path: str | Path) -> FrozenConfigDict:
    """The resolved config inside a checkpoint, see `settings.completed`; `path` is a run folder or
    one step's folder."""
    with checkpoint.opened(path) as (saved, step):
        text = saved.meta(step)["config"]
    return _completed(text)


def _completed(text: str) -> FrozenConfigDict:
    stored = config_lib.from_json(text)
    methods.import_modules(stored.imports)
    return FrozenConfigDict(settings.completed(stored))
