"""`ssl-jax show`: prints a config with the origin of each value and its cost, or the rows of a
paper. Nothing is allocated.
"""

import argparse
import itertools
from collections.abc import Collection, Sequence

import jax
from ml_collections import ConfigDict

from ssl_jax import config as config_lib
from ssl_jax import evals, methods, papers, settings
from ssl_jax.cli import arguments, catalogue
from ssl_jax.cli.catalogue import WIDTH, wrapped
from ssl_jax.config import InputError, MissingFile
from ssl_jax.data import source
from ssl_jax.models import zoo
from ssl_jax.ops import numerics
from ssl_jax.train import optim, start, state, step

_ASSUMED_STEPS = 1000  # steps per epoch if the data cannot be opened


def run(options: argparse.Namespace) -> int:
    of_config = [*options.config, *options.row, *options.changes]
    if options.keys is not None:
        print(catalogue.keys(arguments.start(options).config if of_config else None, options.keys))
    elif options.paper is not None:
        if of_config:
            raise InputError(f"--paper cannot be combined with {of_config[0]}")
        print(lacking(options.paper) if options.missing else table(papers.load(options.paper)))
    elif options.missing:
        raise InputError("--missing needs --paper=NAME")
    elif not of_config:
        print(catalogue.overview())
    else:
        layers, row, config, given = arguments.start(options)
        layers |= {"command line": config}
        if config.init_model and config.init_from:
            layers |= {"init_from": start.shaped(config)}
        print(text(layers, given))
        if row:
            print("\n".join([f"{row.name}: {row.place}", *([row.note] if row.note else [])]))
    return 0


def text(layers: dict[str, ConfigDict], given: Collection[str] = ()) -> str:
    """The report on a config.

    Args:
      layers: {origin: config}, each changing the one before: "config file", ..., "command line".
      given: keys of the command line, see `evals.fit_to_data`.

    Raises:
      InputError: the config cannot work.
    """
    *_, config = layers.values()
    settings.validate(config, num_devices=None)
    missing = _missing(config)
    config, records, note = _with_data(config, given)
    resolved = settings.resolve(config, num_records=records, num_devices=_devices(config.mesh))
    default = settings.base_config(config.method)
    for name, section in evals.named(resolved).items():
        default.evals[name] = evals.new(section.type)
    origin = origins({"default": default} | layers, resolved)
    sections = {"data": resolved.data}
    sections |= {f"evals.{name}.data": entry.data for name, entry in evals.named(resolved).items()}
    unused = {f"{n}.{key}" for n, section in sections.items() for key in source.unused(section)}
    values = {k: v for k, v in config_lib.flatten(resolved).items() if k not in unused}
    width = max(map(len, values))
    rows = [f"{key:<{width}}  {value!r:<28} {origin[key]}" for key, value in sorted(values.items())]
    return "\n".join([*rows, "", *_costs(resolved), *note, *missing])


def _devices(mesh: ConfigDict) -> int:
    """The number of devices of this machine that form the mesh, or else of those that it needs."""
    needed = max(1, mesh.data) * max(1, mesh.fsdp)
    return needed * max(1, jax.device_count() // needed)


def origins(layers: dict[str, ConfigDict], resolved: ConfigDict) -> dict[str, str]:
    """The origin of each value of `resolved`: the last layer that changed it, or "computed".

    Args:
      layers: {origin: config}, each changing the one before. resolved: settings.resolve of the
        last.
    """
    flat = [(name, config_lib.flatten(config)) for name, config in layers.items()]
    absent = object()

    def origin(key, value):
        if value != flat[-1][1].get(key, absent):
            return "computed"
        for (name, config), (_, before) in zip(flat[:0:-1], flat[-2::-1]):
            if config.get(key, absent) != before.get(key, absent):
                return name
        return flat[0][0]

    return {key: origin(key, value) for key, value in config_lib.flatten(resolved).items()}


def _missing(config) -> list[str]:
    """A line about a file that training needs and that is missing. Raises InputError for all other
    faults.
    """
    try:
        methods.get(config.method).check(config)
    except MissingFile as error:
        return [f"this config cannot be trained here: {error}"]
    return []


def _with_data(config, given) -> tuple[ConfigDict, int, list[str]]:
    """(config with evaluations adapted to the training set, number of training images, notes). If
    the data are not on this machine, a number is assumed.
    """
    try:
        records = source.make_source(config.data)
    except InputError as error:
        return (
            config,
            config.optim.batch_size * _ASSUMED_STEPS,
            [f"assuming {_ASSUMED_STEPS} steps per epoch, as the data cannot be opened: {error}"],
        )
    config, notes = evals.fit_to_data(config, records, given)
    return config, len(records), notes


def _costs(config) -> list[str]:
    """Lines on parameters, FLOPs and expected scores."""
    method, size = methods.make(config), config.model.image_size
    params, _ = jax.eval_shape(method.init, numerics.key(0))
    forward = zoo.forward_flops(zoo.vit_config(config.model), size, size)
    rows = {f"parameters, {name}": f"{zoo.count(tree):,}" for name, tree in params.items()}
    rows["parameters, total"] = f"{zoo.count(params):,}"
    rows[f"forward, one {size} px image"] = f"{forward / 1e9:,.4g} GFLOP"
    image, batch = step.flops_per_image(config, _abstract_state(method)), config.optim.batch_size
    rows["training step, per image"] = f"{image / 1e9:,.4g} GFLOP"
    rows[f"training step, batch of {batch}"] = f"{image * batch / 1e12:,.4g} TFLOP"
    rows |= {f"expected {name}": number for name, number in sorted(config.expected.items())}
    return [f"{name:<32} {value}" for name, value in rows.items()]


def _abstract_state(method):
    """Shapes of the train state without optimizer state, which the FLOP count does not need."""
    none = optim.Optimizer(init=lambda params: None, update=lambda *_: ({}, None, {}))
    constants = methods.shapes_of_constants(method)
    return jax.eval_shape(lambda c: state.create(method, none, 0, c), constants)


def table(rows: Sequence[papers.Row]) -> str:
    """The rows of a paper as aligned text: name, place and scores of each, then all notes."""
    marks = {
        note: f"[{number}]"
        for number, note in enumerate(dict.fromkeys(row.note for row in rows if row.note), 1)
    }
    titles = ("score", "paper's", "ours")
    scores = {
        row.name: [
            (score, row.expected.get(score, "-"), row.ours.get(score, "-"))
            for score in row.expected | row.ours
        ]
        for row in rows
    }
    lines = [titles, *itertools.chain(*scores.values())]
    widths = _fit([max(map(len, column)) for column in zip(*lines)])
    written = ["row: place [note]", *_in_columns(titles, widths)]
    written.append("-" * (sum(widths) + 2 * len(widths)))
    for row in rows:
        written += wrapped(f"{row.name}: {row.place} {marks.get(row.note, '')}")
        for line in scores[row.name]:
            written += _in_columns(line, widths)
    if marks:
        written.append("")
    for note, mark in marks.items():
        written += wrapped(f"{mark} {note}", " " * (len(mark) + 1))
    return "\n".join(written)


def lacking(paper: str) -> str:
    """Numbers of a paper that no config reproduces: place, reason and scores."""
    lines = []
    for entry in papers.missing(paper):
        lines += wrapped(f"{entry.place}: {entry.why}")
        lines += [f"    {score}  {number}" for score, number in entry.expected.items()]
    return "\n".join(lines) or f"every number of {paper} that we know of has a row"


def _fit(widths: list[int]) -> list[int]:
    """Reduces the widest columns until a line fits."""
    widths = list(widths)
    while sum(widths) + 2 * len(widths) > WIDTH:
        widths[widths.index(max(widths))] -= 1
    return widths


def _in_columns(cells, widths) -> list[str]:
    """Lines with the cells side by side, each wrapped to its width and preceded by two blanks."""
    columns = [wrapped(cell, "", width) for cell, width in zip(cells, widths, strict=True)]
    lines = itertools.zip_longest(*columns, fillvalue="")
    return [
        "".join(f"  {part:<{width}}" for part, width in zip(line, widths)).rstrip()
        for line in lines
    ]
