"""`ssl-jax export`: exports a network to other libraries, or as a program."""

import argparse
import itertools
import os
import shlex
from pathlib import Path
from typing import Any

from ssl_jax.cli import notes
from ssl_jax.config import InputError, local

_LOAD = {
    "timm": 'timm.create_model("local-dir:{}", pretrained=True)',
    "hf": 'transformers.AutoModel.from_pretrained("{}")',
    "adapters": 'peft.PeftModel.from_pretrained(model, "{}")',
}
_OF_MACHINE = ("--workdir", "--coordinator", "--num-processes", "--process-id")


def run(options: argparse.Namespace) -> int:
    from ssl_jax import api
    from ssl_jax.convert import programs

    choices = dict(family=options.family, heads=options.heads, trust=options.trust)
    encoder = api.load(options.network, **choices)
    notes.tell(encoder)
    out = local(options.out)
    facts = about(options.network, encoder)
    special = dict(size=options.size, adapters=options.adapters)
    remarks = api.export(encoder, out, to=options.to, about=facts, **special)
    print(f"{encoder} -> {out}")
    for remark in remarks:
        print(f"  {remark}")
    if options.to in programs.TARGETS:
        print(f"\n{programs.example(out, options.to)}", end="")
    else:
        to = "adapters" if options.adapters else options.to
        print(_LOAD.get(to, 'ssl_jax.load("{}")').format(out))
    return os.EX_OK


def about(path: str, encoder: Any) -> Any:
    """Facts about a network (convert.card.About), from its run directory or the notes in its
    file."""
    from ssl_jax.convert import card, places
    from ssl_jax.report import folders

    config = encoder.config.to_dict()
    facts = card.About(config["method"], _data(config), encoder.step)
    place = places.find(path)
    if not place.is_run:
        stored = place.saved()
        notes = stored.notes if stored else {}
        return facts._replace(results=_rows(notes), command=_line(notes.get("command")))
    folder = place.path.parent.parent if place.path.parent.name == "checkpoints" else place.path
    if not (folder / "checkpoints").is_dir():
        return facts
    (run,) = folders.read([folder])
    # results.json holds scores of the last step.
    results = run.results if encoder.step == run.total_steps else {}
    return facts._replace(results=results, command=_command(run.environment.get("command", [])))


def _data(config: dict) -> str:
    """Describes the training data, without paths of this machine."""
    from ssl_jax.data import source

    data, views, optim = (config.get(name, {}) for name in ("data", "views", "optim"))
    if not data:
        return ""
    name = source.title(data.get("kind", ""), data.get("name", ""))
    size, steps = views.get("global_size"), config.get("run", {}).get("total_steps")
    images = f"{steps} steps of {optim.get('batch_size')} images" if steps else ""
    return ", ".join(filter(None, (name, f"crops of {size} px" if size else "", images)))


def _command(words: list[str]) -> str:
    """The training command without --workdir and machines; of absolute paths only the last part."""
    kept = []
    rest = iter(words[1:])
    for word in rest:
        flag, equals, _ = word.partition("=")
        if flag in _OF_MACHINE:
            if not equals:  # its value is the next word
                next(rest, None)
            continue
        front, equals, value = word.rpartition("=")
        name = Path(value).name if value.startswith(("/", "~", "..")) else value
        kept.append(front + equals + name)
    return shlex.join(["ssl-jax", *kept]) if words else ""


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def _rows(notes: dict) -> dict[str, dict[str, float]]:
    """{row: scores} of the notes in a file written by `export` or experiments/zoo.py."""
    scores = notes.get("scores") or {}
    rows = {
        "untrained network": notes.get("untrained"),
        "raw pixels": notes.get("raw"),
        "trained": scores,
    }
    if all(isinstance(value, dict) for value in scores.values()):
        rows = scores
    numbers = itertools.chain.from_iterable(row.values() for row in rows.values() if row)
    if strange := [x for x in numbers if not isinstance(x, int | float)]:
        raise InputError(f"the notes of the network hold the score {strange[0]!r}; give a number")
    return {row: values for row, values in rows.items() if values}
