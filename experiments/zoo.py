"""Puts networks of finished runs into zoo/, where ssl_jax.load("zoo/NAME") finds them, and lists
them in zoo/README.md.

    python -m experiments zoo quickstart=runs/quickstart sop_photos=runs/compare/sop-0

Weights are stored in bfloat16, with config, scores, seed and the command in the file.
"""

import argparse
import hashlib
import json
from pathlib import Path

from ml_collections import ConfigDict, FrozenConfigDict

import ssl_jax
from experiments import runs, tables
from experiments.tables import ROOT
from ssl_jax import config as config_lib
from ssl_jax import evals, settings
from ssl_jax.convert import own
from ssl_jax.data import source
from ssl_jax.methods.encoder import Encoder

ZOO = ROOT / "zoo"
_SCORES = ("knn", "linear", "dense")


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("networks", nargs="*", help="NAME=RUN_FOLDER; none: only the list anew")
    parser.add_argument("--command", default="", help="that made the runs, if the same for all")
    args = parser.parse_args(argv)
    for network in args.networks:
        name, _, folder = network.partition("=")
        if not name or not Path(folder, "results.json").is_file():
            parser.error(f"{network}: give NAME=FOLDER of a run that has its results.json")
        print(keep(ZOO / f"{name}.safetensors", Path(folder), args.command))
    tables.fill(ZOO / "README.md", "networks", tables.markdown(table()))
    return 0


def keep(file: Path, folder: Path, command: str = "") -> Path:
    """Writes the network of a finished run."""
    encoder, result = ssl_jax.load(folder), runs.read(folder)
    config = without_places(encoder.config)
    ssl_jax.save(
        Encoder(FrozenConfigDict(config), encoder.params, encoder.constants, encoder.step),
        file,
        dtype="bfloat16",
        scores=result["trained"],
        untrained=result["untrained"],
        raw=result["raw"],
        seed=config.seed,
        minutes=round(result["minutes"], 1),
        command=command,
        made=tables.provenance(folder),
    )
    return file


def without_places(config) -> ConfigDict:
    """The config without files and folders of the machine that trained it."""
    config = ConfigDict(config.to_dict())
    declared = settings.keys(config.method) | evals.keys(config)
    paths = {name for name, key in declared.items() if key.path} | {"init_from"}
    config.update_from_flattened_dict(dict.fromkeys(paths & config_lib.flatten(config).keys(), ""))
    return config


def table() -> list[list[str]]:
    """Rows of cells: of each file its name, method, images, network, scores, size and hash."""
    titles = [evals.TYPES[score].heading for score in _SCORES]
    rows = [
        ["name", "method", "trained on", "network", *titles, "seed", "MB", "sha256, first half"]
    ]
    for file in sorted(ZOO.glob("*.safetensors")):
        stored = own.read(file)
        assert stored is not None
        config, notes = json.loads(stored.config), stored.notes
        model, data = config["model"], config["data"]
        scores = runs.as_today(notes["scores"])
        rows.append(
            [
                f"`zoo/{file.stem}`",
                config["method"],
                f"{source.title(data['kind'], data['name'])}, {config['views']['global_size']} px",
                f"{model['width']} wide, {model['depth']} blocks, patch {model['patch']}",
                *(f"{scores[score]:.1f}" if score in scores else "-" for score in _SCORES),
                str(config["seed"]),
                f"{file.stat().st_size / 1e6:.2f}",
                f"`{hashlib.sha256(file.read_bytes()).hexdigest()[:32]}`",
            ]
        )
    return rows
