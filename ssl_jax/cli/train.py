"""`ssl-jax train`: pretrains, or continues a run."""

from ssl_jax.cli import arguments
from ssl_jax.config import InputError

HELP = """ssl-jax train --config=NAME[:VARIANT] --workdir=FOLDER [--config.KEY=VALUE ...]
ssl-jax train --row=PAPER/ROW --workdir=FOLDER [--config.KEY=VALUE ...]

Pretrains. The same command continues a run that was stopped or killed.

  --config=NAME[:VARIANT]   a config that comes with the package (sop:vits16, quickstart), or a
                            file of yours (configs/mine.py:large)
  --row=PAPER/ROW           a row of a paper's table (ssl-jax show --paper=PAPER lists them)
  --workdir=FOLDER          checkpoints, metrics and pictures go there
  --config.KEY=VALUE        changes one key (ssl-jax show --config=NAME lists them)
  --import=MODULE           imports a module first, which may register a method of yours
  --config.init_from=PATH   starts a new run from published weights or another run's
  --distributed             several processes, which find each other under SLURM, on TPU pods, GKE

Examples:
  ssl-jax train --config=quickstart --workdir=runs/quickstart
  ssl-jax train --config=sop:vits16 --config.data.dir=/data/tfds --config.optim.lr=1e-3 \\
      --workdir=runs/a
  ssl-jax train --row=sop/table10/K1024 --config.data.dir=/data/tfds --workdir=runs/k1024
  ssl-jax train --import=mine.method --config=mine/config.py --workdir=runs/mine

Exit codes: 0 done; 2 bad input; 75 saved after SIGTERM, SIGINT or SIGUSR1, start again to continue;
1 unexpected error.
"""


def run(argv: list[str]) -> int:
    """Runs the command; returns the exit code."""
    layers, _, rest = arguments.start(argv)
    *_, config = layers.values()
    values, config = arguments.parse(rest, config, workdir=None, distributed=False)
    if not values.workdir:
        raise InputError("--workdir=FOLDER is missing: where checkpoints, metrics and pictures go")
    if values.distributed:
        import jax

        jax.distributed.initialize()  # finds its peers under SLURM, on TPU pods and GKE
    from ssl_jax import api

    return api.train(config, values.workdir)
