"""`ssl-jax show`: a config with the origin of each value and its cost, or the rows of a paper;
nothing is allocated.
"""

import re
import textwrap

import jax
from absl import flags

from ssl_jax import config as config_lib
from ssl_jax import methods, papers, settings
from ssl_jax.cli import arguments
from ssl_jax.config import InputError, MissingFile
from ssl_jax.data import source
from ssl_jax.models import zoo
from ssl_jax.train import optim, state, step

HELP = """ssl-jax show --config=NAME[:VARIANT] [--config.KEY=VALUE ...]
ssl-jax show --row=PAPER/ROW [--config.KEY=VALUE ...]
ssl-jax show --paper=PAPER

With --config or --row: the resolved config with the origin of each value, parameters, FLOPs per
image and the paper's numbers. With --paper: the rows of its tables, the paper's numbers and ours.

  --config=NAME[:VARIANT]   a config that comes with the package (sop:vits16, quickstart), or a
                            file of yours (configs/mine.py:large)
  --row=PAPER/ROW           one row that --paper=PAPER lists
  --paper=PAPER             as a rule a method: sop, cribo, ...
  --config.KEY=VALUE        changes one key

Examples:
  ssl-jax show --config=sop:vits16 --config.optim.batch_size=512
  ssl-jax show --paper=stellar
  ssl-jax show --row=sop/table10/K1024

Exit codes: 0 done; 2 bad input; 1 unexpected error.
"""

_ASSUMED_STEPS = 1000  # of an epoch, where the data are not here


def run(argv: list[str]) -> int:
    """Runs the command; returns the exit code."""
    if any(re.match("--?paper(=|$)", argument) for argument in argv):
        print(table(papers.load(_paper(argv))))
        return 0
    layers, row, rest = arguments.start(argv)
    *_, config = layers.values()
    _, config = arguments.parse(rest, config)
    print(text(layers | {"command line": config}))
    if row:
        print("\n".join([f"{row.name}: {row.place}", *([row.note] if row.note else [])]))
    return 0


def _paper(argv: list[str]) -> str:
    values = flags.FlagValues()
    flags.DEFINE_string("paper", "", "", flag_values=values)
    extra = values(argv)[1:]
    if extra:
        raise InputError(f'unexpected argument "{extra[0]}"; --paper takes one name, nothing else')
    if not values.paper:
        raise InputError(f"--paper needs a name, one of {', '.join(papers.names())}")
    return values.paper


def text(layers) -> str:
    """The report on a config.

    Args:
      layers: {origin: config}, each changing the one before: "config file", ..., "command line".

    Raises:
      InputError: it cannot work.
    """
    *_, config = layers.values()
    settings.validate(config, num_devices=jax.device_count())
    missing = _missing(config)
    records, note = _num_records(config)
    resolved = settings.resolve(config, num_records=records, num_devices=jax.device_count())
    origin = origins({"default": settings.base_config(config.method)} | layers, resolved)
    values = config_lib.flatten(resolved)
    width = max(map(len, values))
    rows = [f"{key:<{width}}  {value!r:<28} {origin[key]}" for key, value in sorted(values.items())]
    return "\n".join([*rows, "", *_costs(resolved), *note, *missing])


def origins(layers, resolved) -> dict[str, str]:
    """Where each value of `resolved` comes from: the last layer that changed it, or "computed".

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
    """What to say about a file that training needs and that is not here. Raises InputError for
    everything else that is wrong.
    """
    try:
        methods.get(config.method).check(config)
    except MissingFile as error:
        return [f"cannot be trained here: {error}"]
    return []


def _num_records(config) -> tuple[int, list[str]]:
    """Number of training images, and what to say about it: a recipe can be looked at on a machine
    without the data.
    """
    try:
        return len(source.make_source(config.data)), []
    except InputError as error:
        return config.optim.batch_size * _ASSUMED_STEPS, [
            f"steps assume {_ASSUMED_STEPS} an epoch, the data cannot be opened: {error}"
        ]


def _costs(config) -> list[str]:
    """Lines on parameters, FLOPs and expected numbers."""
    method, size = methods.make(config), config.model.image_size
    params, _ = jax.eval_shape(method.init, jax.random.key(0))
    forward = zoo.forward_flops(zoo.vit_config(config.model), size, size)
    rows = {f"parameters, {name}": f"{zoo.count(tree):,}" for name, tree in params.items()}
    rows["parameters, all"] = f"{zoo.count(params):,}"
    rows[f"forward, one {size} px image"] = f"{forward / 1e9:,.4g} GFLOP"
    try:
        image = step.flops_per_image(config, _abstract_state(method))
    except MissingFile:
        pass  # named below; without its weights a frozen network cannot be counted
    else:
        batch = config.optim.batch_size
        rows["training step, per image"] = f"{image / 1e9:,.4g} GFLOP"
        rows[f"training step, batch of {batch}"] = f"{image * batch / 1e12:,.4g} TFLOP"
    rows |= {f"expected {name}": number for name, number in sorted(config.expected.items())}
    return [f"{name:<32} {value}" for name, value in rows.items()]


def _abstract_state(method):
    """Shapes of what the step's loss reads; no optimizer is made."""
    none = optim.Optimizer(init=lambda params: None, update=None)
    return jax.eval_shape(lambda c: state.create(method, none, 0, c), method.constants())


def table(rows) -> str:
    """The rows of a paper as aligned text: one line per score, then the notes."""
    marks = {
        note: f"[{number}]"
        for number, note in enumerate(dict.fromkeys(row.note for row in rows if row.note), 1)
    }
    lines = [("row", "place", "score", "paper's", "ours", "note")]
    for row in rows:
        start = (row.name, row.place, marks.get(row.note, ""))
        for score in row.expected | row.ours or ["-"]:
            numbers = (score, row.expected.get(score, "-"), row.ours.get(score, "-"))
            lines.append((*start[:2], *numbers, start[2]))
            start = ("", "", "")
    widths = [max(map(len, column)) for column in zip(*lines)]
    written = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines
    ]
    rule = "-" * max(map(len, written))
    notes = [
        textwrap.fill(f"{mark} {note}", 100, subsequent_indent=" " * (len(mark) + 1))
        for note, mark in marks.items()
    ]
    return "\n".join([written[0], rule, *written[1:], *([""] if notes else []), *notes])
