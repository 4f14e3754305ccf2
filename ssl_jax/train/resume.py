"""Resumes a run from its newest intact checkpoint, after checking that it belongs to the config."""

from pathlib import Path

import jax
from ml_collections import ConfigDict

from ssl_jax import config as config_lib
from ssl_jax.config import InputError
from ssl_jax.runtime import stop
from ssl_jax.train import checkpoint, extension, log, schedule, state
from ssl_jax.train.console import Console
from ssl_jax.train.setup import Run


def open_checkpoints(workdir: Path, run: Run, *, create: bool) -> checkpoint.Checkpoints | None:
    """The checkpoints of a run directory; None if it has no folder of them, unless `create`."""
    folder = workdir / "checkpoints"
    if not create and not folder.exists():
        return None
    c = run.config.checkpoint
    return checkpoint.Checkpoints(
        folder, keep=c.keep, keep_every=c.keep_every, preserved=former_ends(run)
    )


def former_ends(run: Run) -> tuple[int, ...]:
    """The ends of the run before its extensions, in steps."""
    return schedule.ends(run.config.optim, run.config.run.steps_per_epoch)[:-1]


def restore(
    saved: checkpoint.Checkpoints, run: Run, console: Console
) -> tuple[state.TrainState | None, int]:
    """The state and data position of the newest intact checkpoint, after checking that it belongs
    to this config; (None, 0) without one. Damaged checkpoints are moved away.

    Raises InputError if all are damaged.
    """
    while (newest := saved.latest()) is not None:
        try:
            return restore_step(saved, newest, run, console)
        except checkpoint.Damaged as error:
            console.say(f"{error}; moved it to {saved.set_aside(newest)}")
            if jax.process_count() > 1:
                # Other processes may have restored their shards of it, and must not continue.
                console.say("run the same command again to resume from the checkpoint before it")
                raise stop.Interrupted from error
    if (damaged := checkpoint.aside(saved.folder)).is_dir():
        raise InputError(
            f"{saved.folder.parent} has no intact checkpoint to resume from; damaged ones are in"
            f" {damaged}. Copy an intact one to {saved.folder}, or start again in another --workdir"
        )
    return None, 0


def restore_step(
    saved: checkpoint.Checkpoints, step: int, run: Run, console: Console
) -> tuple[state.TrainState, int]:
    """The state of one step and its data position. Raises InputError if it does not belong to the
    run's config, Damaged if it is damaged."""
    meta = saved.meta(step)
    stored = config_lib.from_json(meta["config"])
    longer = extension.lengthened(stored, run.config, step)
    differing = config_lib.compare_for_resume(longer, run.config, run.keys)
    if differing:
        raise InputError(
            f"{saved.folder.parent} holds a run with other settings: {'; '.join(differing)}; use"
            " those settings, or another --workdir"
        )
    names, names_now = meta.get("images", ""), run.source.names_digest()
    if names and names_now and names != names_now:
        raise InputError(
            f"{saved.folder.parent} was trained on as many images with other names than"
            f" {run.source}; use those images, or another --workdir"
        )
    for name, now in flags().items():
        if (before := meta.get("flags", {}).get(name, now)) != now:
            raise InputError(
                f"{saved.folder.parent} holds a run with {name}={before:d}, but here it is {now:d},"
                f" which changes numbers; resume with {name}={before:d}"
            )
    current = saved.restore(step, run.abstract)
    console.say(f"resuming from step {step} ({saved.folder / str(step)})")
    if longer is not stored:
        end, after = stored.run.total_steps, run.config.run.total_steps
        console.say(
            f"extended from {end} to {after} steps: after step {end}, the cosines of learning"
            " rate, weight decay and teacher momentum start again, without a warm-up"
        )
    return current, meta["record"]


def flags() -> dict[str, bool]:
    """JAX's settings that change random draws or number types."""
    names = "JAX_THREEFRY_PARTITIONABLE", "JAX_ENABLE_X64"
    return {name: bool(getattr(jax.config, name.lower())) for name in names}


def meta(config: ConfigDict, at: int, images: str = "") -> dict:
    """Metadata of a checkpoint: config, data position, versions and flags.

    images: digest of the names of the images; "": unknown.
    """
    return {
        "images": images,
        "flags": flags(),
        "config": config_lib.to_json(config),
        "record": at * config.optim.batch_size,
        "versions": log.versions(),
    }
