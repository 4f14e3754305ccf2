"""`ssl-jax show`: the resolved config with the origin of each value, parameter count and FLOPs, or
the papers' numbers of all configs of a method; nothing is allocated.
"""

import ast
import textwrap
from pathlib import Path

import jax

from ssl_jax import config as config_lib
from ssl_jax import methods, settings
from ssl_jax.config import InputError, MissingFile
from ssl_jax.data import source
from ssl_jax.models import zoo

_ASSUMED_STEPS = 1000  # of an epoch, where the data are not here


def text(file_config, final_config) -> str:
    """The report for a config file's config and the same after the command line. Raises InputError
    if it cannot work.
    """
    method = methods.get(final_config.method)
    settings.validate(final_config, num_devices=jax.device_count())
    missing = _missing(method, final_config)
    records, note = _num_records(final_config)
    resolved = settings.resolve(final_config, num_records=records, num_devices=jax.device_count())
    origin = origins(settings.base_config(final_config.method), file_config, final_config, resolved)
    values = config_lib.flatten(resolved)
    width = max(map(len, values))
    rows = [f"{key:<{width}}  {value!r:<28} {origin[key]}" for key, value in sorted(values.items())]
    return "\n".join([*rows, "", *_costs(methods.make(resolved), resolved), *note, *missing])


def _missing(method, config) -> list[str]:
    """What to say about a file that training needs and that is not here, for the same reason.
    Raises InputError for all else.
    """
    try:
        method.check(config)
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


def _costs(method, config) -> list[str]:
    """Lines on parameters, FLOPs and expected numbers."""
    params, _ = jax.eval_shape(lambda: method.init(jax.random.key(0)))
    size = config.model.image_size
    image = method.flops
    rows = {f"parameters, {name}": f"{zoo.count(tree):,}" for name, tree in params.items()}
    rows["parameters, all"] = f"{zoo.count(params):,}"
    rows[f"forward, one {size} px image"] = (
        f"{zoo.forward_flops(zoo.vit_config(config.model), size, size) / 1e9:,.4g} GFLOP"
    )
    rows["training step, per image"] = f"{image / 1e9:,.4g} GFLOP"
    rows[f"training step, batch of {config.optim.batch_size}"] = (
        f"{image * config.optim.batch_size / 1e12:,.4g} TFLOP"
    )
    rows |= {f"expected {name}": number for name, number in sorted(config.expected.items())}
    return [f"{name:<32} {value}" for name, value in rows.items()]


def origins(default, file, final, resolved) -> dict[str, str]:
    """Where each value of `resolved` comes from: "default", "config file", "command line" or
    "computed".

    Args:
      default: settings.base_config(NAME). file: config.load(PATH). final: the same after the
        command line.
      resolved: settings.resolve(final, ...).
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


def table(name: str, folder: Path) -> str:
    """What the TABLE of a config file says: for every row of a paper its place, the --config
    argument, the paper's numbers and ours.

    Args:
      name: of a config file with a TABLE of `presets.Row`, as a rule a method: "sop" for
        FOLDER/sop.py. folder: of the config files.

    Returns:
      Aligned text: one line per score, then the notes.

    Raises:
      InputError: no such folder, no config file with a TABLE of that name.
    """
    if not folder.is_dir():
        raise InputError(
            f'no folder "{folder}" of config files: run this in the checkout that holds configs/,'
            " or say --config=PATH/configs"
        )
    with_table = [path.stem for path in sorted(folder.glob("*.py")) if _assigns_table(path)]
    if name not in with_table:
        raise InputError(
            f"{config_lib.unknown('method', name, with_table)}; looked for config files with a"
            f" TABLE in {folder}"
        )
    path = folder / f"{name}.py"
    rows = config_lib.read_module(path).TABLE
    notes = {
        note: f"[{i + 1}]"
        for i, note in enumerate(dict.fromkeys(row.note for row in rows if row.note))
    }
    lines = [("row", "--config", "score", "paper's", "ours", "note")]
    for row in rows:
        ours = getattr(row, "ours", {})
        scores = [
            (score, row.expected.get(score, "-"), ours.get(score, "-"))
            for score in row.expected | ours
        ] or [("-", "-", "-")]
        for i, score in enumerate(scores):
            lines.append(
                (
                    *((row.paper, f"{path}:{row.arg}") if i == 0 else ("", "")),
                    *score,
                    notes.get(row.note, "") if i == 0 else "",
                )
            )
    widths = [max(map(len, column)) for column in zip(*lines)]
    written = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines
    ]
    rule = "-" * max(map(len, written))
    explained = [
        textwrap.fill(f"{mark} {note}", 120, subsequent_indent=" " * (len(mark) + 1))
        for note, mark in notes.items()
    ]
    return "\n".join([written[0], rule, *written[1:], *([""] if notes else []), *explained])


def _assigns_table(path: Path) -> bool:
    """Whether a Python file gives a value to TABLE at its top level (found without running it)."""
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except SyntaxError:
        return False
    targets = [
        t
        for node in body
        for t in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
    ]
    return any(isinstance(t, ast.Name) and t.id == "TABLE" for t in targets)
