"""`ssl-jax eval`: scores a network and its baselines."""

import argparse
import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from ml_collections import ConfigDict, FrozenConfigDict

from ssl_jax import config as config_lib
from ssl_jax import settings
from ssl_jax.cli import arguments, notes
from ssl_jax.config import InputError, reading
from ssl_jax.runtime import writing

_EVERY = 30.0  # seconds between two lines of progress


def run(options: argparse.Namespace) -> int:
    from ssl_jax import api, evals
    from ssl_jax.cli import cache
    from ssl_jax.report.evaluation import Evaluation

    trust, out = options.trust, config_lib.local(options.out) if options.out else None
    if out:
        _check_out(out)
    encoder, stored = _opened(options, trust)
    added = _add(stored, options.add, options.changes)
    config = arguments.changed(stored, options.changes)
    for key in config_lib.changed(stored, config):
        if not key.startswith("evals.") and key != "data.max_unreadable":
            raise InputError(
                f"{key} belongs to the checkpoint and cannot be changed; eval can change only keys"
                " of the section evals, and data.max_unreadable"
            )
    evals.follow(config)
    tasks = tuple(evals.selected(config, [*options.task, *added] or None))
    config.evals.tasks = tasks
    cache.keep_programs()
    _check(config, () if trust else tasks, arguments.given(options.changes, config))
    evaluation = Evaluation(FrozenConfigDict(config))
    evaluation.open()  # refuses a wrong folder before the weights are read
    evaluation.network = encoder = encoder or api.load(options.network, trust=trust)
    print(encoder)
    notes.tell(encoder)
    network = encoder.params, encoder.constants

    def tell(name, scores):
        print(f"{name}: " + "  ".join(f"{k} {v:.4g}" for k, v in scores.items()), flush=True)

    with _shown():
        first = functools.partial(tell, evals.TRAINED) if config.evals.baselines else None
        results = evaluation.compare(*network, first=first)
        if out and out.suffix != ".json":
            evaluation.publish(results, *network, out)
        else:
            print(evaluation.table(results))
            if out:
                writing.replace({out: writing.as_json(results)})
    for row in results.items():
        tell(*row)
    return os.EX_OK


def _opened(options: argparse.Namespace, trust: bool):
    """(network, its config). The network of a run is None, because its evaluations are checked
    before its weights are read."""
    from ssl_jax import api
    from ssl_jax.convert import places

    choices = dict(family=options.family or None, heads=options.heads)
    place = places.find(options.network)
    if place.is_run and not any(choices.values()):  # else `load` refuses them
        return None, settings.completed(api.saved_config(place.path, trust))
    encoder = api.load(options.network, **choices, trust=trust)
    return encoder, settings.completed(encoder.config)


def _check(config: ConfigDict, foreign: Sequence[str], given: Collection[str]) -> None:
    """Raises InputError for evaluations that cannot work. Those in `foreign` come with the network:
    refuses settings of them that act (`Key.acts`), unless they are `given` by the user."""
    from ssl_jax import evals

    if not config.evals.tasks:
        names = ", ".join(evals.named(config)) or "its config has none"
        raise InputError(
            f"evals.tasks of this network is empty; choose --task=NAME ({names}) or --add=TYPE"
        )
    plain = [f"evals.{key}" for key in evals.defaults()] if foreign else []
    settings.check_stored(config, (*plain, *(f"evals.{name}." for name in foreign)), given)
    settings.check_evals(config)


@contextlib.contextmanager
def _shown():
    """Shows what is being evaluated, in a status line of a terminal or as lines of a log."""
    import rich.console
    from rich.markup import escape

    from ssl_jax.runtime import progress

    if sys.stdout.isatty():
        with rich.console.Console(stderr=True).status("evaluating") as status:
            with progress.shown_by(lambda text: status.update(escape(text or "evaluating"))):
                yield
        return
    now, began, done = ["evaluating"], time.monotonic(), threading.Event()

    def repeat():
        while not done.wait(_EVERY):
            minutes = (time.monotonic() - began) / 60
            print(f"{now[0] or 'evaluating'} ({minutes:.1f} min so far)", flush=True)

    threading.Thread(target=repeat, daemon=True).start()
    try:
        with progress.shown_by(lambda text: now.__setitem__(0, text)):
            yield
    finally:
        done.set()


def _check_out(out: Path) -> None:
    """Raises InputError if the output cannot be written, if it exists and was not written by an
    evaluation, or if it is a run directory, whose results are those of the run."""
    from ssl_jax import evals

    if out.suffix == ".json" and not out.parent.is_dir():
        raise InputError(f"--out is {out}, but the folder {out.parent} does not exist; create it")
    folder = out.parent if out.name == "results.json" else out
    if (folder / "checkpoints").exists():
        raise InputError(f"--out: {folder} is the directory of a run; choose another one")
    outputs = [out] if out.suffix == ".json" else [out / "results.json"]
    files = outputs if out.suffix == ".json" else [*outputs, out / "results.txt", out / "pictures"]
    writing.check(outputs[0])
    existing = [file for file in files if file.exists()]
    try:
        ours = evals.TRAINED in reading.parse_json(reading.read_bytes(outputs[0]))
    except (OSError, ValueError, TypeError):
        ours = False
    if existing and not ours:
        raise InputError(
            f"--out: {existing[0]} exists and was not written by eval; choose another name"
        )


def _add(config: ConfigDict, entries: Sequence[str], changes: Sequence[str]) -> list[str]:
    """Adds the evaluations of --add to the config; returns their names.

    changes: --config.KEY=VALUE of the command line. Raises InputError for a paper's protocol
    without a data set, because the score on the package's images would look like the paper's.
    """
    from ssl_jax import evals
    from ssl_jax.evals import registry

    names = []
    for entry in entries:
        type, _, protocol = entry.partition(":")
        name = f"{type}_{protocol}" if protocol else type
        if name in evals.named(config):
            raise InputError(
                f"--add={entry}: the config already has an evaluation {name}; run it with"
                f" --task={name}, and change its settings with --config.evals.{name}.KEY=VALUE"
            )
        if protocol:
            paper, key = registry.protocol(type, protocol), f"--config.evals.{name}.data."
            kinds = (f"{key}kind=", "--config.evals.all.data.kind=")
            has_kind = any(change.startswith(kinds) for change in changes)
            has_kind = has_kind or "kind" in paper.changes.get("data", {})
            if registry.get(type).needs in ("masks", "boxes") and not has_kind:
                raise InputError(
                    f"--add={entry} ({paper.source}) needs its data set: give {key}kind=KIND and"
                    f" {key}dir=FOLDER, and where they differ {key}split and {key}test_split"
                )
        config.evals[name] = evals.new(type, protocol=protocol)
        names.append(name)
    return names
