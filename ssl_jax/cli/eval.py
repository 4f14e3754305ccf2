"""`ssl-jax eval`: scores a network beside its baselines."""

import contextlib
import json
import os
from pathlib import Path

from ml_collections import ConfigDict, FrozenConfigDict

from ssl_jax import config as config_lib
from ssl_jax import settings
from ssl_jax.cli import arguments
from ssl_jax.config import InputError

HELP = """ssl-jax eval NETWORK [--task=NAME,...] [--add=TYPE[:PROTOCOL],...]
             [--config.evals.KEY=VALUE ...] [--out=PLACE] [--family=NAME]

Scores a network beside the untrained one and raw pixels.

  NETWORK                   a run folder, one checkpoint of it, a file that ssl_jax.save wrote,
                            zoo/NAME, or published weights (a file or a Hugging Face folder)
  --task=NAME,...           evaluations of its config; default: those of its evals.tasks, or those
                            that --add adds
  --add=TYPE[:PROTOCOL],... evaluations that its config does not have: of a type, with its defaults
                            or with a paper's settings; called TYPE or TYPE_PROTOCOL
  --config.evals.KEY=VALUE  changes one key of the section evals; all others belong to the network
  --out=FOLDER              also leave results.json, results.txt and pictures there
  --out=FILE.json           leave the scores alone there
  --family=NAME             of published weights whose names several families share

Types and protocols: {types}

Examples:
  ssl-jax eval runs/a
  ssl-jax eval runs/a/checkpoints/1000 --task=knn --config.evals.knn.k=(20,)
  ssl-jax eval runs/a --add=linear:sop_base --config.evals.linear_sop_base.data.dir=/data/imagenet
  ssl-jax eval zoo/sop_quickstart --add=logistic,dense --out=scores

Exit codes: 0 done; 2 bad input; 1 unexpected error.
"""


def help_text() -> str:
    """The text of --help."""
    from ssl_jax import evals

    def described(name, definition):
        return f"{name}:{'|'.join(definition.protocols)}" if definition.protocols else name

    types = [described(*entry) for entry in sorted(evals.TYPES.items())]
    lines, line = [], ""
    for entry in types:
        if len(line) + len(entry) > 75:
            lines.append(line.rstrip())
            line = ""
        line += entry + "  "
    return HELP.format(types="\n  ".join(["", *lines, line.rstrip()]))


def run(argv: list[str]) -> int:
    """Runs the command; returns the exit code."""
    from ssl_jax import api, convert, evals
    from ssl_jax.cli import cache
    from ssl_jax.evals import report

    if len(argv) < 2 or argv[1].startswith("-"):
        raise InputError(
            "eval needs a NETWORK first: a run folder, one step of it or a file of weights, for"
            " example runs/a, runs/a/checkpoints/1000 or zoo/sop_quickstart"
        )
    if any(map(arguments.names_a_config, argv)):
        raise InputError(
            "--config=NAME and --row=ROW are for train and show; eval takes the config that the"
            " checkpoint holds"
        )
    given, rest = arguments.early(argv[2:], "add", "out", "family")
    out = Path(given["out"]).expanduser() if given.get("out") else None
    if out and out.suffix == ".json" and not out.parent.is_dir():
        raise InputError(f"--out is {out}, but there is no folder {out.parent}")
    place = api.place_of(argv[1])
    if place.is_dir() and convert.weight_file(place) is None:
        # A run: what is wrong with its evaluations is said before its weights are read.
        encoder, stored = None, settings.completed(api.saved_config(place))
    else:
        encoder = api.load(argv[1], family=given.get("family") or None)
        stored = settings.completed(encoder.config)
    added = _add(stored, given.get("add", ""), rest)
    values, config = arguments.parse(argv[:1] + rest, stored, task=[])
    for key in config_lib.changed(stored, config):
        if not key.startswith("evals."):
            raise InputError(
                f"{key} belongs to the checkpoint and cannot be changed; only keys of the section"
                " evals can"
            )
    evals.follow(config)
    tasks = tuple(evals.chosen(config, values.task or added or None))
    if not tasks:
        names = ", ".join(evals.named(config)) or "its config has none"
        raise InputError(
            f"evals.tasks names no evaluation of this network; give --task=NAME ({names}) or"
            " --add=TYPE"
        )
    config.evals.tasks = tasks
    cache.keep_programs()
    settings.check_evals(config)
    evaluation = report.Evaluation(FrozenConfigDict(config))
    evaluation.open()  # a wrong folder shows here, before the weights are read
    evaluation.network = encoder = encoder or api.load(argv[1])
    print(encoder)
    with _shown_on_a_terminal():
        if out and out.suffix != ".json":
            out.mkdir(parents=True, exist_ok=True)
            results = evaluation.report(encoder.params, encoder.constants, out)
        else:
            results = evaluation.compare(encoder.params, encoder.constants)
            print(evaluation.table(results))
            if out:
                out.write_text(json.dumps(results, indent=2) + "\n")
    for name, scores in results.items():
        print(f"{name}: " + "  ".join(f"{k} {v:.4g}" for k, v in scores.items()))
    return os.EX_OK


@contextlib.contextmanager
def _shown_on_a_terminal():
    """A line that says what is being evaluated; elsewhere nothing."""
    import rich.console
    from rich.markup import escape

    from ssl_jax.train import progress

    with rich.console.Console(stderr=True).status("evaluating") as status:
        with progress.shown_by(lambda text: status.update(escape(text or "evaluating"))):
            yield


def _add(config: ConfigDict, wanted: str, arguments: list[str]) -> list[str]:
    """Adds the evaluations of --add to the config; returns their names.

    arguments: the others. Raises InputError for a paper's protocol whose images are nowhere said:
    those of this package would give a score that looks like the paper's.
    """
    from ssl_jax import evals
    from ssl_jax.evals import registry

    names = []
    for entry in filter(None, wanted.split(",")):
        type, _, protocol = entry.partition(":")
        name = f"{type}_{protocol}" if protocol else type
        if name in evals.named(config):
            raise InputError(
                f"--add={entry}: the config has an evaluation {name} already; choose it by"
                f" --task={name}, its settings by --config.evals.{name}.KEY=VALUE"
            )
        if protocol:
            paper, key = registry.protocol(type, protocol), f"--config.evals.{name}.data."
            said = "kind" in paper.changes.get("data", {})
            said = said or any(argument.startswith(f"{key}kind=") for argument in arguments)
            if registry.get(type).needs in ("masks", "boxes") and not said:
                raise InputError(
                    f"--add={entry} ({paper.source}) needs to know its images: {key}kind=KIND and"
                    f" {key}dir=FOLDER, maybe {key}split=TRAIN and {key}test_split=TEST"
                )
        config.evals[name] = evals.new(type, protocol=protocol)
        names.append(name)
    return names
