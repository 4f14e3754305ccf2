"""`--extend`: continues a run past its end.

The key `optim.extended`, stored in the run's config.json and in each checkpoint, lists the later
ends of a run. An extended run thus equals a fresh one with that key; `train.schedule` defines the
schedules at each end.
"""

import os
from pathlib import Path

from ml_collections import ConfigDict, FrozenConfigDict

from ssl_jax import config as config_lib
from ssl_jax.config import InputError
from ssl_jax.train import schedule

# Files that `Evaluation.publish` writes at the end of a run. The scores are moved last: while they
# exist, `set_aside` is incomplete.
_RESULTS = ("pictures", "results.txt", "results.json")
_PLAN = ("epochs", "steps", "batch_size")  # keys of `optim` that set the first end


def planned(config: ConfigDict, workdir: str | Path, extend: int | None) -> ConfigDict:
    """The config with all ends of the run in `workdir`: its earlier extensions, and `extend`.

    config: not resolved, valid or not. extend: new total number of steps; None: no extension. An
    end of an earlier extension changes nothing, so that the same command resumes the run. A smaller
    one replaces the last end while no checkpoint lies beyond the end before that.

    Raises:
      InputError: with `extend`, if `workdir` holds no checkpoint, if the run already has that many
        steps, or if the config's plan differs from the run's.
    """
    workdir = Path(workdir)
    if extend is not None and not (done := saved_steps(workdir)):
        raise InputError(
            f"--extend={extend}: {workdir} holds no checkpoint; start the run without --extend"
        )
    run = recorded(workdir)
    if run is None:
        return config if extend is None else _with(config, (*config.optim.extended, extend))
    plan = run.optim
    before = tuple(plan.get("extended", ()))
    changed = next((name for name in _PLAN if config.optim[name] != plan[name]), None)
    if extend is None or extend in before:
        longer = changed is None and _extends(tuple(config.optim.extended), before)
        return _with(config, before) if longer else config
    if changed:
        raise InputError(
            f"--extend={extend}: optim.{changed} is {plan[changed]} in {workdir}, but"
            f" {config.optim[changed]} here; --extend changes only the total number of steps, so"
            f" keep optim.{changed}={plan[changed]}"
        )
    *former, total = schedule.ends(plan, run.run.steps_per_epoch)
    if former and max(done) <= former[-1] < extend < total:
        return _with(config, (*before[:-1], extend))
    if extend <= total:
        raise InputError(
            f"--extend is {extend}, but {workdir} is at step {max(done)} of {total}; --extend is"
            f" the total number of steps, so use more than {total}"
        )
    return _with(config, (*before, extend))


def lengthened(stored: FrozenConfigDict, config: ConfigDict, step: int) -> FrozenConfigDict:
    """The config of the checkpoint of a step with the later ends of `config`, if these extend its
    own, or those that it has reached."""
    before, after = tuple(stored.optim.get("extended", ())), tuple(config.optim.extended)
    if before == after:
        return stored
    former = schedule.ends(stored.optim, stored.run.steps_per_epoch)[:-1] if before else ()
    if former and step <= former[-1]:
        before = before[:-1]
    return FrozenConfigDict(_with(stored, after)) if _extends(before, after) else stored


def is_reported(workdir: Path, config: ConfigDict) -> bool:
    """Whether `workdir` holds final results of the same evaluations and number of steps."""
    run = recorded(workdir)
    return (
        run is not None
        and (workdir / _RESULTS[-1]).exists()
        and run.evals.to_dict() == config.evals.to_dict()
        and run.run.total_steps == config.run.total_steps
    )


def set_aside(workdir: Path, step: int) -> None:
    """Moves the results of the end at `step` into `workdir`/finished_at_STEP, unless there are none
    or that folder already has some. After a kill, the next call moves the rest.
    """
    folder, last = workdir / f"finished_at_{step}", _RESULTS[-1]
    if not (workdir / last).exists() or (folder / last).exists():
        return
    folder.mkdir(exist_ok=True)
    for name in _RESULTS:
        if (workdir / name).exists():
            os.replace(workdir / name, folder / name)


def saved_steps(workdir: Path) -> list[int]:
    """Steps of the complete checkpoints in a run directory."""
    folder = workdir / "checkpoints"
    names = os.listdir(folder) if folder.is_dir() else ()
    return [int(name) for name in names if name.isdecimal()]


def recorded(workdir: Path) -> FrozenConfigDict | None:
    """The last config of a run directory; None without a readable one, because all important keys
    are compared with the checkpoint's config anyway."""
    try:
        config = config_lib.from_json((workdir / "config.json").read_text(encoding="utf-8"))
        _ = [config.optim[name] for name in _PLAN], config.run.total_steps
    except (OSError, ValueError, KeyError, AttributeError):
        return None
    return config


def _extends(before: tuple, after: tuple) -> bool:
    """Whether `after` is `before` with further ends."""
    return before == after[: len(before)] and before != after


def _with(config, extended: tuple) -> ConfigDict:
    changed = ConfigDict(config.to_dict())  # ConfigDict(config) would share its sections
    changed.optim.extended = extended
    return changed
