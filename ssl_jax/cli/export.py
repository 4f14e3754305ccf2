"""`ssl-jax export`: a network for other libraries."""

import itertools
import os
import shlex
from typing import Any

from absl import flags

from ssl_jax.cli import arguments
from ssl_jax.config import InputError, local

HELP = """ssl-jax export NETWORK --to=timm|hf|safetensors|npz --out=PATH [--family=NAME] [--heads=N]
             [--trust]

Exports the encoder of a network to another library.

  NETWORK        a run directory, one of its checkpoints, a file of ssl_jax.save, zoo/NAME, or
                 published weights (a file, or a folder of timm's or transformers')
  --to=timm      a folder for timm.create_model("local-dir:PATH", pretrained=True)
  --to=hf        a folder for transformers.AutoModel.from_pretrained("PATH")
  --to=safetensors, --to=npz
                 one file: all parameters under the names of ssl_jax, and the config
  --out=PATH     the folder or file; a folder must be new, empty or an earlier export
  --family=NAME  layout of published weights, where several fit: dino, dinov2, mae, timm
  --heads=N      attention heads of published weights, where it is not width / 64
  --import=MODULE, --trust
                 import a module that registers the method of the network; or allow whatever its
                 config asks for, if you trust its author (SECURITY.md)

A folder holds model.safetensors, config.json and README.md (data, method, scores, command). The
command prints where the other library computes something else, for example at other image sizes,
and rejects a network that it cannot compute. ssl_jax.load, ssl-jax eval and --config.init_from read
all four formats.

Examples:
  ssl-jax export runs/a --to timm --out exported/a
  ssl-jax export runs/a/checkpoints/1000 --to hf --out exported/a_hf
  ssl-jax export zoo/sop_quickstart --to npz --out sop.npz

See docs/export.md for timm, transformers, and detectors on COCO.

Exit codes: 0 done; 2 bad input; 1 unexpected error.
"""

_LOAD = {
    "timm": 'timm.create_model("local-dir:{}", pretrained=True)',
    "hf": 'transformers.AutoModel.from_pretrained("{}")',
}


def run(argv: list[str]) -> int:
    """Runs the command; returns the exit code."""
    from ssl_jax import api
    from ssl_jax.config import unknown

    arguments.check_network(argv, "--to=timm", "--out=exported/a")
    values = flags.FlagValues()
    for name in ("to", "out", "family", "heads"):
        flags.DEFINE_string(name, None, "", flag_values=values)
    trust, rest = arguments.trusted(argv[2:])
    if extra := values([argv[0], *rest])[1:]:
        raise InputError(f'unexpected argument "{extra[0]}"; see ssl-jax export --help')
    if values.to not in api.EXPORTS:
        raise InputError(
            unknown("--to", values.to, api.EXPORTS)
            if values.to
            else f"export needs --to=FORMAT, one of {', '.join(api.EXPORTS)}"
        )
    if not values.out:
        kind = "FOLDER" if values.to in _LOAD else f"FILE.{values.to}"
        raise InputError(f"export needs --out={kind}")
    heads = arguments.number(values.heads, "heads")
    encoder = api.load(argv[1], family=values.family, heads=heads, trust=trust)
    out = local(values.out)
    remarks = api.export(encoder, out, to=values.to, about=about(argv[1], encoder))
    print(f"{encoder} -> {out}")
    for remark in remarks:
        print(f"  {remark}")
    print(_LOAD.get(values.to, 'ssl_jax.load("{}")').format(out))
    return os.EX_OK


def about(path: str, encoder: Any) -> Any:
    """What is known of a network (convert.card.About): from its run's folder, or the notes in its
    file."""
    from ssl_jax import api
    from ssl_jax.convert import card, own
    from ssl_jax.report import folders

    config = encoder.config.to_dict()
    known = card.About(config["method"], _data(config), encoder.step)
    place = api.place_of(path)
    if place.is_file():
        stored = own.read(place)
        notes = stored.notes if stored else {}
        return known._replace(results=_rows(notes), command=_line(notes.get("command")))
    folder = place.parent.parent if place.parent.name == "checkpoints" else place
    if not (folder / "checkpoints").is_dir():
        return known
    (run,) = folders.read([folder])
    # results.json is of the last step.
    results = run.results if encoder.step == run.total_steps else {}
    return known._replace(results=results, command=_command(run.environment.get("command", [])))


def _data(config: dict) -> str:
    """In words, without the folders of this machine."""
    from ssl_jax.data import source

    data, views, optim = (config.get(name, {}) for name in ("data", "views", "optim"))
    if not data:
        return ""
    name = source.title(data.get("kind", ""), data.get("name", ""))
    size, steps = views.get("global_size"), config.get("run", {}).get("total_steps")
    images = f"{steps} steps of {optim.get('batch_size')} images" if steps else ""
    return ", ".join(filter(None, (name, f"crops of {size} px" if size else "", images)))


def _command(words: list[str]) -> str:
    """The command that trained, without its work folder."""
    if not words:
        return ""
    kept = [word for word in words[1:] if not word.lstrip("-").startswith("workdir=")]
    return shlex.join(["ssl-jax", *kept])


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def _rows(notes: dict) -> dict[str, dict[str, float]]:
    """{row: scores} of the notes in a file, as `export` writes them or launch/zoo.py."""
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
