"""What people do with the package: train a config, load what was learned."""

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict, FrozenConfigDict

from ssl_jax import config as config_lib
from ssl_jax import convert, evals, methods, settings
from ssl_jax.config import InputError, unknown
from ssl_jax.convert import card, hub, own, peft, places, programs
from ssl_jax.data import base, source
from ssl_jax.features import embedding
from ssl_jax.methods import encoder
from ssl_jax.methods.encoder import Encoder
from ssl_jax.models import lora, zoo
from ssl_jax.report.evaluation import Evaluation
from ssl_jax.runtime import distributed
from ssl_jax.train import checkpoint, extension, loop, profile, setup, start
from ssl_jax.views import workers

EXPORTS = (*hub.TARGETS, "safetensors", "npz", *programs.TARGETS)


def prepare(config: ConfigDict, records: Any = None, given: Collection[str] = ()) -> setup.Run:
    """Checks the whole config and plans the run; raises InputError before anything is allocated.

    Of the evaluations of the training set, those that it cannot carry are left out, which is said;
    see `evals.fit_to_data`.

    Args:
      records: a source of your own (protocol of data.source, for example data.arrays.ArraySource)
        instead of the one that `config.data` names; evaluations go on with what the config names.
      given: keys that were set by hand; an evaluation that they ask for is never left out.
    """
    return _prepared(start.shaped(config), records, given)


def _prepared(config: ConfigDict, records: Any, given: Collection[str]) -> setup.Run:
    """`prepare`, of a config whose section `model` is final."""
    definition = methods.get(config.method)
    settings.validate(config, num_devices=jax.device_count())
    definition.check(config)
    config = settings.with_absolute_paths(config)
    records = None if records is None else base.adopt(records)
    opened = source.make_source(config.data) if records is None else None
    if opened is not None and (opened.has_masks or opened.has_boxes):
        records = source.make_source(config.data, truth=False)
    records = opened if records is None else records
    config, notes = evals.fit_to_data(config, opened, given)
    for note in notes if distributed.is_first() else ():
        print(note, flush=True)
    config = settings.resolve(config, num_records=len(records), num_devices=jax.device_count())
    return setup.plan(config, records, settings.keys(config.method), masked=opened)


def train(
    config: ConfigDict,
    workdir: str | Path,
    records: Any = None,
    given: Collection[str] = (),
    steps: profile.Steps | None = None,
    extend: int | None = None,
) -> int:
    """Trains to the end of the plan, continuing whatever `workdir` holds; evaluates and draws.

    records, given: as in `prepare`. steps: some that are traced, into the run's folder `profile`.
    extend: lengthens the run in `workdir` to so many steps in all; see docs/resuming.md.

    Returns loop.EXIT_DONE or loop.EXIT_PREEMPTED. Raises InputError for a config, data set,
    checkpoint or disk that cannot work; nothing is written before those checks.
    """
    workers.end_in_worker()
    before = extension.recorded(Path(workdir))
    config = start.shaped(config, None if before is None else before.model)
    config = extension.planned(config, workdir, extend)
    run = _prepared(config, records, given)._replace(traced=steps)
    return loop.train(run, workdir, Evaluation(run.config))


def load(
    path: str | Path, *, family: str | None = None, heads: int | None = None, trust: bool = False
) -> Encoder:
    """The network of a run or of published weights: `load(PATH)(images) -> Features`.

    No optimizer is built; arrays are put on the first local device.

    Args:
      path: a run directory (its newest complete checkpoint), one step's folder; a file that `save`
        wrote, or "zoo/NAME", one of the networks that come with the package; or published weights:
        a .safetensors, .npz or (with torch) .pth file, or a folder of timm's or transformers', such
        as `export` writes.
      family: of published weights whose names several families share: "dino", "mae" or "timm", with
        LayerScale "dinov2" or "timm".
      heads: attention heads of published weights; None: width / 64, as in all usual sizes.
      trust: import the modules that the network's config names (a method from outside the package),
        which runs them. Those that are imported already need no trust.

    Returns:
      An Encoder with the teacher's weights where there is a teacher.

    Raises:
      InputError: nothing of that kind there, damaged or unknown weights, or modules to import.
    """
    place = places.find(path)
    if place.saved:
        return _restored(place.saved, place.path, trust)
    if not place.is_run:
        shape, params, report = convert.load_vit(place.path, family=family, heads=heads)
        known = hub.describe(place.path)
        name = f"{known.method} as {report.title}" if known.method else report.title
        return encoder.published(shape, jax.tree.map(jnp.asarray, params), name, known.image)
    config = saved_config(place.path, trust)
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    fields = ("params", "teacher", "constants")

    def weights(saved, step):
        trees = saved.read(step, fields, lambda shape: device)
        params, teacher, constants = (trees[name] for name in fields)
        encoder = Encoder(config, lora.network(params, teacher, config.model), constants, step)
        encoder.adapters = lora.adapters(params if teacher is None else teacher)
        return encoder

    return checkpoint.newest(place.path, weights)


@overload
def embed(
    encoder: Encoder | str | Path, data: Any, out: None = None, **options: Any
) -> dict[str, np.ndarray]: ...


@overload
def embed(encoder: Encoder | str | Path, data: Any, out: str | Path, **options: Any) -> Path: ...


def embed(
    encoder: Encoder | str | Path,
    data: Any,
    out: str | Path | None = None,
    *,
    size: int | None = None,
    trust: bool = False,
    **options: Any,
) -> dict[str, np.ndarray] | Path:
    """Vectors of images: `embed("runs/a", "/my/images")["image"]` is [N, d].

    Args:
      encoder: a network, or what `load` takes.
      data: a folder of images; a mapping with keys of the config's section `data`
        (dict(kind="tfds", name="cifar10", dir=..., split="test", max_unreadable=0.05)); images
        [N, H, W, 3], uint8 or float32 in [0, 1]; or a source (see `data.source`).
      out: a file, .npz or .parquet, which is written part after part and may be larger than memory;
        the same call goes on where it was stopped. None: everything is returned.
      size: pixels of the shorter side, before a square centre crop; 0: as stored, cut to multiples
        of the patch. None: as in training, for a folder or a mapping, else 0.
      trust: see `load`.
      tokens: some of "image" (what the method means by it), "cls", "mean" (of the patch tokens),
        "patches" and "sparse" (STELLAR's tokens); default ("image",).
      layers: of so many last blocks, side by side. batch_size: images of a forward pass, on all
        devices of this process together; 64, on a CPU 16. dtype: "float32" or "float16".

    Returns:
      {name: array} over the N readable images in their order: each of `tokens`, float [N, d],
      [N, r, d] for sparse tokens, [N, h, w, d] for patches ([all patches, d] beside
      "patches_shapes" [N, 2] where grids differ); "names" [N]; "sizes" [N, 2], height and width in
      pixels; "labels" [N] (-1: none) and "class_names" where there are any; "index" [N] in the
      source; "skipped", names of unreadable images; "about", JSON. With `out`: its path.

    Raises:
      InputError: no such data, several parts of which none is named, more unreadable images than
        max_unreadable (1 %), tokens that the network lacks, or a file that is there already.
    """
    encoder = encoder if isinstance(encoder, Encoder) else load(encoder, trust=trust)
    plan = embedding.plan(encoder, embedding.opened(data, size, encoder), **options)
    return embedding.in_memory(plan) if out is None else embedding.to_file(plan, out)


def save(encoder: Encoder, path: str | Path, *, dtype: str = "float32", **notes: Any) -> None:
    """Writes a network to one file, from which `load` makes an equal Encoder.

    Args:
      path: ends in .safetensors or .npz.
      dtype: of the stored weights; "bfloat16" halves a .safetensors file and moves features by
        about 1 %.
      notes: what else people should know, as JSON: scores, command, licence.

    Raises InputError for another name.
    """
    notes, params = {"step": encoder.step, **notes}, encoder.params
    if _is_published(encoder.config):  # no config says what the image is
        notes["image"], params = encoder.image_token, {"backbone": encoder.backbone}
    config = config_lib.to_json(encoder.config)
    own.write(path, own.Saved(config, params, encoder.constants, notes), dtype=dtype)


def export(
    encoder: Encoder,
    path: str | Path,
    *,
    to: str,
    size: int | None = None,
    about: card.About | None = None,
    adapters: bool = False,
) -> list[str]:
    """Writes a network for other libraries: a folder of weights under their names with config.json
    and README.md, one file under our names, or a program that runs without this package.

    `load` gives an equal network back, but for a program.

    Args:
      path: a folder for "timm" and "hf", else a file.
      to: "timm" (`timm.create_model("local-dir:FOLDER", pretrained=True)`), "hf"
        (`transformers.AutoModel.from_pretrained(FOLDER)`), "safetensors", "npz", "stablehlo"
        (`jax.export`, for CPUs, CUDA and TPUs) or "onnx".
      size: pixels of a side of the images of a program; None: model.image_size.
      about: data, scores and command for the README, the notes of the file or its metadata.
      adapters: write low-rank adapters alone, for PEFT, to be added to the weights that the run
        started from. Only with to="hf", of a run with `model.lora`.

    Returns:
      Sentences: where the library computes something else, and what is not in it; of a program,
      inputs, outputs and the largest difference to this network.

    Raises:
      InputError: another kind; a folder or file of somebody else's; a network that the library
        cannot compute, with the key of `model` that it cannot have; a size without a program.
    """
    if to not in EXPORTS:
        raise InputError(unknown("kind of export", to, EXPORTS))
    if adapters:
        if to != "hf" or not encoder.adapters:
            raise InputError(
                f"adapters are exported to hf, of a run with model.lora; not {encoder} to {to}"
                " (a network that was saved has them added to its weights)"
            )
        base, alpha = encoder.config.init_from, encoder.config.model.lora_alpha
        peft.write(path, encoder.shape, encoder.adapters["backbone"], alpha=alpha, base=base)
        return [f"Without adapters: the network of {base}, which must be a model of transformers."]
    about = about or card.About(encoder.config.method, step=encoder.step)
    if to in programs.TARGETS:
        network = encoder.shape, encoder.backbone, encoder.image_token, encoder
        return programs.write(path, *network, to=to, size=size, about=about)
    if size is not None:
        raise InputError(f"size is {size}, but an export to {to} takes images of every size")
    if to in hub.TARGETS:
        token = encoder.image_token
        remarks = hub.write(path, encoder.shape, encoder.backbone, to=to, image=token, about=about)
        others = sorted(set(encoder.params) - {"backbone"}) if "backbone" in encoder.params else []
        if others:
            remarks = [*remarks, f"Not exported, as only the encoder is: {', '.join(others)}."]
        return remarks
    if Path(path).suffix != f".{to}":
        raise InputError(f"{path}: the name of a network exported to {to} must end in .{to}")
    noted = dict(scores=about.results, command=about.command, data=about.data, **about.notes)
    save(encoder, path, **{name: value for name, value in noted.items() if value})
    return []


def _restored(network: own.Saved, file: Path, trust: bool) -> Encoder:
    """The Encoder that was saved in a file, with weights in float32."""
    params, constants = own.wide((network.params, network.constants))
    stored, image = config_lib.from_json(network.config), network.notes.get("image", "")
    if _is_published(stored):
        try:
            shape = zoo.vit_config({"size": "custom", **stored.model})
            return encoder.published(shape, params["backbone"], stored.method, image)
        except (TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{file}: its config or weights lack {error}") from error
    return Encoder(_completed(network.config, trust), params, constants, network.notes.get("step"))


def _is_published(config: FrozenConfigDict) -> bool:
    """Whether it is that of `encoder.published`, which no run has had."""
    return "data" not in config


def saved_config(path: str | Path, trust: bool = False) -> FrozenConfigDict:
    """The resolved config inside a checkpoint, see `settings.completed`; `path` is a run directory
    or one step's folder. trust: see `load`."""
    text = checkpoint.newest(path, lambda saved, step: saved.meta(step).get("config", ""))
    return _completed(text, trust)


def _completed(text: str, trust: bool) -> FrozenConfigDict:
    stored, key = config_lib.from_json(text), settings.keys()["imports"]
    modules = stored.get("imports", ())
    key.check("stored config: imports", modules)
    modules = tuple(name for name in modules if name not in sys.modules)
    if not trust:
        key.check_stored("imports", modules)
    methods.import_modules(modules)
    if (method := stored.get("method", "")) not in methods.METHODS:
        raise InputError(
            f"{unknown('method', method, methods.METHODS)}; import the module that registers it"
            " first, --import=MODULE"
        )
    return FrozenConfigDict(settings.completed(stored))
