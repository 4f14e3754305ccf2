"""`ssl-jax eval`: scores a run beside its baselines."""

from ml_collections import FrozenConfigDict

from ssl_jax import config as config_lib
from ssl_jax import settings
from ssl_jax.cli import arguments
from ssl_jax.config import InputError

HELP = """ssl-jax eval CHECKPOINT [--task=NAME,...] [--config.evals.KEY=VALUE ...]

Scores a run folder, or one checkpoint of it, beside the untrained network and raw pixels.

  CHECKPOINT                runs/a, or runs/a/checkpoints/1000
  --task=NAME,...           evaluations of the run's config; default: those of its evals.tasks
  --config.evals.KEY=VALUE  changes one key of the section evals; all others belong to the run

Examples:
  ssl-jax eval runs/a
  ssl-jax eval runs/a/checkpoints/1000 --task=knn --config.evals.knn.k=(20,)

Exit codes: 0 done; 2 bad input; 1 unexpected error.
"""


def run(argv: list[str]) -> int:
    """Runs the command; returns the exit code."""
    from ssl_jax import api, evals
    from ssl_jax.cli import cache
    from ssl_jax.evals import report

    if len(argv) < 2 or argv[1].startswith("-"):
        raise InputError(
            "eval needs a CHECKPOINT first: a run folder or one step of it, for example runs/a or"
            " runs/a/checkpoints/1000"
        )
    if any(map(arguments.names_a_config, argv)):
        raise InputError(
            "--config=NAME and --row=ROW are for train and show; eval takes the config that the"
            " checkpoint holds"
        )
    saved = api.saved_config(argv[1])
    values, config = arguments.parse(argv[:1] + argv[2:], saved, task=[])
    for key in config_lib.changed(saved, config):
        if not key.startswith("evals."):
            raise InputError(
                f"{key} belongs to the checkpoint and cannot be changed; only keys of the section"
                " evals can"
            )
    tasks = tuple(evals.chosen(config, values.task or None))
    if not tasks:
        names = ", ".join(evals.named(config)) or "its config has none"
        raise InputError(f"evals.tasks names no evaluation of this run; give --task=NAME ({names})")
    config.evals.tasks = tasks
    cache.keep_programs()
    settings.validate(config, num_devices=None)
    encoder = api.load(argv[1])
    evaluation = report.Evaluation(FrozenConfigDict(config))
    results = evaluation.compare(encoder.params, encoder.constants)
    print(encoder)
    print(evaluation.table(results))
    for name, scores in results.items():
        print(f"{name}: " + "  ".join(f"{k} {v:.4g}" for k, v in scores.items()))
    return 0
