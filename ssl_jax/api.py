"""The package's main functions: train a config, load, embed, save and export networks."""

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
from ssl_jax.convert.weights import brief
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

    Evaluations on the training set that it cannot support are left out, and a note is printed; see
    `evals.fit_to_data`.

    Args:
      records: a source of your own (protocol of data.source, for example data.arrays.ArraySource)
        instead of the one that `config.data` names; evaluations still use the config's.
      given: keys that the user set; an evaluation that they request is never left out.
    """
    return _prepared(start.shaped(config), records, given)


def _prepared(config: ConfigDict, records: Any, given: Collection[str]) -> setup.Run:
    """`prepare`, of a config whose section `model` is final."""
    methods.import_modules(config.get("imports", ()))
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
    """Trains to the end of the plan, resuming the run in `workdir` if there is one; then evaluates
    and draws pictures.

    records, given: as in `prepare`. steps: those to profile, into the run's folder `profile`.
    extend: extends the run in `workdir` to this total number of steps; see docs/resuming.md.

    Returns loop.EXIT_DONE or loop.EXIT_PREEMPTED. Raises InputError for a config, data set,
    checkpoint or disk that cannot work; nothing is written before those checks.
    """
    workers.end_in_worker()
    workdir = config_lib.absolute(workdir)
    before = extension.recorded(workdir) if extension.saved_steps(workdir) else None
    config = start.shaped(config, None if before is None else before.model)
    config = extension.planned(config, workdir, extend)
    run = _prepared(config, records, given)._replace(traced=steps)
    return loop.train(run, workdir, Evaluation(run.config))


def load(
    path: str | Path, *, family: str | None = None, heads: int | None = None, trust: bool = False
) -> Encoder:
    """Loads the network of a run or of published weights: `load(PATH)(images) -> Features`.

    No optimizer is built; arrays are placed on the first local device.

    Args:
      path: a run directory (its newest complete checkpoint) or the folder of one step; a file
        written by `save`; "zoo/NAME", a network that comes with the package; or published weights:
        a .safetensors, .npz or (with torch) .pth file, or a timm or transformers folder, such as
        `export` writes.
      family: of published weights whose names several families share: "dino", "mae" or "timm", with
        LayerScale "dinov2" or "timm".
      heads: attention heads of published weights; None: as its config.json says, or as in published
        networks of this width.
      trust: import the modules that the network's config names (a method from outside the package),
        which runs their code. Modules that are already imported need no trust.

    Returns:
      An Encoder with the teacher's weights if there is a teacher, else the student's.

    Raises:
      InputError: no network at `path`, damaged or unknown weights, modules that need trust, or
        family or heads for a network of this package, whose config states them.
    """
    place = places.find(path)
    network = place.saved()
    if (family or heads) and (network or place.is_run):
        given = f"family={family}" if family else f"heads={heads}"
        raise InputError(f"{path} is a network of this package and needs no {given}; leave it out")
    if network:
        return _restored(network, place.path, trust)
    if not place.is_run:
        shape, params, report = convert.load_vit(place.path, family=family, heads=heads)
        known = hub.describe(place.path)
        name = f"{known.method} as {report.title}" if known.method else report.title
        unused = (f"not used: {brief(report.left)}",) if report.left else ()
        notes = (*unused, *report.notes)
        return _published(place.path, shape, params, name, known.image, notes)
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
    """Computes vectors of images: `embed("runs/a", "/my/images")["image"]` is [N, d].

    Args:
      encoder: a network, or a path as for `load`.
      data: a folder of images; a mapping with keys of the config's section `data`
        (dict(kind="tfds", name="cifar10", dir=..., split="test", max_unreadable=0.05)); images
        [N, H, W, 3], uint8 or float32 in [0, 1]; or a source (see `data.source`), or any other
        object or list with records by index (see `data.base.adopt`).
      out: a .npz or .parquet file, which is written in parts and may be larger than memory; the
        same call resumes an interrupted one. None: everything is returned.
      size: pixels of the shorter side, before a square centre crop; 0: as stored, cropped to
        multiples of the patch. None: `size` of a mapping, unless 0; else, for a folder or a
        mapping, as in training; else 0.
      trust: see `load`.
      tokens: some of "image" (the method's image vector), "cls", "mean" (of the patch tokens),
        "patches" and "sparse" (STELLAR's tokens); default ("image",).
      layers: concatenates the tokens of this many last blocks. batch_size: images per forward pass,
        over all devices of this process; default 64, on a CPU 16. dtype: "float32" or "float16".

    Returns:
      {name: array} over the N readable images in order: each of `tokens`, float [N, d], [N, r, d]
      for sparse tokens, [N, h, w, d] for patches (if grids differ: [all patches, d], with the grids
      in "patches_shapes" [N, 2]); "names" [N]; "sizes" [N, 2], height and width in pixels; "labels"
      [N] (-1: none) and "class_names" if there are labels; "index" [N] in the source; "skipped",
      names of unreadable images; "about", JSON. With `out`: its path.

    Raises:
      InputError: no such data, a data set of several parts without naming one, more unreadable
        images than max_unreadable (1 %), tokens that the network lacks, or an existing file.
    """
    encoder = encoder if isinstance(encoder, Encoder) else load(encoder, trust=trust)
    plan = embedding.plan(encoder, embedding.opened(data, size, encoder), **options)
    return embedding.in_memory(plan) if out is None else embedding.to_file(plan, out)


def save(encoder: Encoder, path: str | Path, *, dtype: str = "float32", **notes: Any) -> None:
    """Writes a network to one file, from which `load` restores an equal Encoder.

    Args:
      path: ends in .safetensors or .npz; missing folders are made. An earlier file stays until the
        new one is complete.
      dtype: of the stored weights: "float32", "float16", or "bfloat16", which halves a .safetensors
        file and changes features by about 1 %.
      notes: further information for users, as JSON: scores, command, licence.

    Raises InputError for another name or dtype, and for a file of another origin.
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
    """Writes a network for other libraries: a folder with weights under their names, config.json
    and README.md; one file under our names; or a program that runs without this package.

    `load` restores the encoder, with the same image vector where that is an average of tokens, from
    all of them except programs and adapters.

    Args:
      path: a folder for "timm" and "hf", else a file; missing folders are made. An earlier export
        is replaced, but for a README.md that somebody changed.
      to: "timm" (`timm.create_model("local-dir:FOLDER", pretrained=True)`), "hf"
        (`transformers.AutoModel.from_pretrained(FOLDER)`), "safetensors", "npz", "stablehlo"
        (`jax.export`, for CPUs, CUDA and TPUs) or "onnx".
      size: side of a program's input images in pixels; None: model.image_size.
      about: data, scores and command for the README, the notes of the file or its metadata.
      adapters: write only the low-rank adapters, for PEFT; they apply to the weights that the run
        started from. Only for to="hf" and a run with `model.lora`.

    Returns:
      Remarks, one sentence each: where the library computes something else, which parts are
      missing, and whether a README.md was left; for a program its inputs, outputs and the largest
      difference to this network.

    Raises:
      InputError: an unknown kind; a folder or file that `export` did not write; a network that the
        library cannot compute, with the key of `model` at fault; a size for anything but a program.
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
        named = Path(base).name  # without the folders of this machine
        peft.write(path, encoder.shape, encoder.adapters["backbone"], alpha=alpha, base=named)
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
            return _published(file, shape, params["backbone"], stored.method, image)
        except (TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{file}: its config or weights lack {error}") from error
    return Encoder(_completed(network.config, trust), params, constants, network.notes.get("step"))


def _published(file: Path, shape, params, *facts) -> Encoder:
    """`encoder.published`; errors name the file."""
    try:
        return encoder.published(shape, jax.tree.map(jnp.asarray, params), *facts)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


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
