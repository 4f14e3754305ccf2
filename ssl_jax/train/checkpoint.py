"""Orbax checkpoints of the TrainState, the data position and the resolved config, written
asynchronously and atomically.
"""

import contextlib
import hashlib
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import orbax.checkpoint as ocp

from ssl_jax import trees
from ssl_jax.config import InputError, absolute, free_on_resume, from_json, key
from ssl_jax.convert import backbones, own
from ssl_jax.models import lora
from ssl_jax.train import checksums, damage, disk
from ssl_jax.train.damage import Damaged as Damaged
from ssl_jax.train.state import TrainState

T = TypeVar("T")

_ITEMS = ("state", "meta")
_NETWORKS = ("params", "teacher")  # fields of the state
# Entries of `meta`: the checksum of each array, and the digest of all other entries.
_SUMS, _DIGEST = "checksums", "digest"


def defaults() -> dict:
    """The section `checkpoint` of the config."""
    return free_on_resume(
        dict(
            every_steps=key(1000, "steps between two checkpoints", "steps", above=0),
            keep=key(2, "number of newest checkpoints that are kept", "checkpoints", above=0),
            keep_every=key(
                0,
                "checkpoints at multiples of this step are kept permanently; 0 = none",
                "steps",
                least=0,
            ),
        )
    )


class Checkpoints:
    """The checkpoints of one run, in `folder`/<step>.

    A save is written under a temporary name and renamed when complete, so a kill at any moment
    leaves the last complete one intact. The newest `keep` are kept, and permanently those at
    multiples of `keep_every` steps (0 = none) and at the steps `preserved`. Reading a checkpoint
    verifies its checksums.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        keep: int = 2,
        keep_every: int = 0,
        preserved: tuple[int, ...] = (),
        create: bool = True,
    ):
        self.folder = _usable(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{self.folder} is a file; it must be the folder of the checkpoints")
        if not create and not self.folder.is_dir():
            raise InputError(
                f"no checkpoints in {self.folder.parent}: the folder {self.folder.name}/ is missing"
            )
        _quiet()
        with disk.readable_errors(self.folder):
            self._manager = ocp.CheckpointManager(
                self.folder,
                options=ocp.CheckpointManagerOptions(
                    preservation_policy=_preserved(keep, keep_every, preserved),
                    create=create,
                    cleanup_tmp_directories=create,
                ),
                item_names=_ITEMS,
            )

    def latest(self) -> int | None:
        """Step of the newest complete checkpoint, or None."""
        return self._manager.latest_step()

    def steps(self) -> list[int]:
        """Steps of all complete checkpoints, in order."""
        return sorted(self._manager.all_steps())

    def save(self, state: TrainState, meta: dict, *, whole: bool = False) -> None:
        """Saves `state` under its step, and up to twice more if its files are deleted meanwhile.
        Returns when the arrays are copied, while writing continues in the background.

        whole: whether to return only when everything is on disk.

        Raises:
          InputError: this or the previous save could not be written (for example, a full disk).
        """
        path = self.folder / str(int(state.step))
        for again in reversed(range(3)):
            try:
                return self._save(state, meta, whole)
            except InputError:
                raise
            except Exception as error:
                why = f"a checkpoint was not written: {damage.first_line(error)}"
                # Saving again would need all processes.
                if not again or jax.process_count() > 1:
                    raise InputError(f"{why} ({path})") from error
                print(f"  warning: {why}; were files deleted? Saving {path} again", flush=True)
                time.sleep(0.5)  # threads of the failed save may still write into its folder
                self._manager.reload()

    def _save(self, state, meta, whole):
        step = int(state.step)
        with disk.readable_errors(self.folder):
            self._manager.check_for_errors()
            if step != self._manager.latest_step():
                tree = state._asdict()
                meta = {**meta, _SUMS: checksums.by_array(tree)}
                args = ocp.args.Composite(
                    state=ocp.args.StandardSave(tree),
                    meta=ocp.args.JsonSave({**meta, _DIGEST: _digest(meta)}),
                )
                if not self._manager.save(step, args=args):
                    raise InputError(
                        f"checkpoint {self.folder / str(step)} was not written: a folder of that"
                        " name is in the way"
                    )
            if whole:
                self.wait()
                if jax.process_index() == 0 and not (self.folder / str(step)).is_dir():
                    raise damage.NotAsSaved(f"step {step} is missing")

    def meta(self, step: int) -> dict:
        """The saved `meta`: config, data position, versions, checksums. Raises Damaged, also for a
        changed entry."""
        with self._damage_named(step):
            meta = self._manager.restore(
                step, args=ocp.args.Composite(meta=ocp.args.JsonRestore())
            ).meta
            digest = meta.pop(_DIGEST, None)
            # Checkpoints of earlier versions have neither digest nor checksums.
            if (digest or _SUMS in meta) and digest != _digest(meta):
                raise damage.NotAsSaved("wrong checksum of its config or data position")
            return meta

    def restore(self, step: int, abstract: TrainState) -> TrainState:
        """Reads the state of `step` into the shapes and shardings of `abstract` (ShapeDtypeStructs)
        from a checkpoint of any mesh. Raises Damaged, or InputError if an intact checkpoint does
        not fit.
        """
        meta = self.meta(step)
        with self._damage_named(step, meta):
            damage.check_files(self.folder / str(step) / "state")
        args = ocp.args.Composite(state=ocp.args.StandardRestore(abstract._asdict()))
        try:
            tree = self._manager.restore(step, args=args).state
        except Exception as error:
            if damage.is_of_machine(error):
                with self._damage_named(step):
                    raise
            self.check(step)
            raise InputError(
                f"checkpoint {self.folder / str(step)} is intact, but of another network or"
                " version, and cannot be resumed; start a new run (another --workdir) from its"
                f" weights with --config.init_from={self.folder.parent}: {damage.first_line(error)}"
            ) from error
        with self._damage_named(step, meta):
            damage.compare(checksums.by_array(tree), meta.get(_SUMS))
        return TrainState(**tree)

    def check(self, step: int) -> int:
        """Reads the checkpoint of `step` into host memory; returns the number of arrays with a
        checksum. Raises Damaged."""
        try:
            device = jax.local_devices(backend="cpu")[0]
        except RuntimeError:  # JAX was configured without the CPU
            device = jax.local_devices()[0]
        on_host = jax.sharding.SingleDeviceSharding(device)
        self.read(step, TrainState._fields, lambda shape: on_host)
        return len(self.meta(step).get(_SUMS, ()))

    def set_aside(self, step: int) -> Path:
        """Moves the checkpoint of `step` into the folder of damaged ones; returns its new path."""
        target = aside(self.folder) / str(step)
        count = 1
        while target.exists():
            count += 1
            target = target.with_name(f"{step}-{count}")
        with disk.readable_errors(self.folder):
            target.parent.mkdir(exist_ok=True)
            try:
                (self.folder / str(step)).rename(target)
            except FileNotFoundError:  # another process has moved it
                target = target.parent
        self._manager.reload()
        return target

    def read(
        self,
        step: int,
        fields: tuple[str, ...],
        sharding_of: Callable[[tuple[int, ...]], jax.sharding.Sharding],
    ) -> dict:
        """Reads some fields of the saved TrainState, {"params": tree, ...}; the other fields need
        not fit this version. Every process reads by itself.

        sharding_of: shape -> sharding of an array. Raises Damaged.
        """
        folder = self.folder / str(step) / "state"
        meta = self.meta(step)
        alone = ocp.options.MultiprocessingOptions(
            primary_host=jax.process_index(),
            active_processes={jax.process_index()},
            barrier_sync_key_prefix=f"process{jax.process_index()}",
        )
        with self._damage_named(step, meta):
            damage.check_files(folder)
            handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
            with ocp.Checkpointer(handler, multiprocessing_options=alone) as reader:
                tree = reader.metadata(folder).item_metadata.tree
                targets = jax.tree.map(
                    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding_of(x.shape)),
                    {name: tree.get(name) for name in fields},
                )
                arguments = jax.tree.map(
                    lambda x: ocp.ArrayRestoreArgs(
                        sharding=x.sharding, global_shape=x.shape, dtype=x.dtype
                    ),
                    targets,
                )
                tree = reader.restore(
                    folder,
                    args=ocp.args.PyTreeRestore(
                        item=targets, restore_args=arguments, partial_restore=True
                    ),
                )
            damage.compare(checksums.by_array(tree), meta.get(_SUMS))
        return {name: _stacked(x) if name in _NETWORKS else x for name, x in tree.items()}

    def wait(self) -> None:
        """Blocks until everything is on disk. Raises InputError if a save failed."""
        with disk.readable_errors(self.folder):
            self._manager.wait_until_finished()
            self._manager.check_for_errors()

    def close(self) -> None:
        self._manager.close()

    @contextlib.contextmanager
    def _damage_named(self, step: int, meta: dict | None = None):
        """Names the checkpoint in errors of the block; meta: that of the checkpoint, if read."""
        path = self.folder / str(step)
        with damage.named(path, meta and meta.get("versions")):
            self._check_parts(path, step)
            yield

    def _check_parts(self, path, step):
        if not path.is_dir():
            complete = list(self._manager.all_steps())
            if step in complete:
                raise Damaged(f"checkpoint {path} is gone: another process moved it")
            raise InputError(
                f"no checkpoint of step {step} in {self.folder}; complete ones: {complete}"
            )
        missing = [item for item in _ITEMS if not (path / item).is_dir()]
        if missing:
            raise Damaged(f"checkpoint {path} lacks {' and '.join(missing)}")


def _stacked(tree):
    """A network's weights with stacked blocks; earlier versions stored each block separately."""
    return tree and trees.nest(trees.stacked(trees.flatten(tree)))


def _digest(meta):
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _preserved(keep, keep_every, steps):
    """Orbax's policy for the checkpoints to keep."""
    policy = ocp.checkpoint_managers
    periodic = (policy.EveryNSteps(keep_every),) if keep_every else ()
    return policy.AnyPreservationPolicy(
        [policy.LatestN(keep), policy.CustomSteps(steps), *periodic]
    )


def _usable(path: str | Path) -> Path:
    """The absolute path of a checkpoints folder. Raises InputError for a name under which
    TensorStore would write nothing, or to another place."""
    full = absolute(path)
    if "\\" in str(full) or str(full) != os.fsencode(full).decode(errors="replace"):
        raise InputError(f"{str(full)!r}: checkpoints need a name in UTF-8, without a backslash")
    return full


def locate(path: str | Path) -> tuple[Path, int | None]:
    """Splits a user's path (run directory, its checkpoints folder, or one step's folder) into
    (checkpoints folder, step or None). The name of a run directory may be a number.
    """
    path = absolute(path)
    if not path.is_dir():
        raise InputError(f"no such checkpoint or run directory: {path}")
    if path.name.isdecimal() and not (path / "checkpoints").is_dir():
        return path.parent, int(path.name)
    return (path, None) if path.name == "checkpoints" else (path / "checkpoints", None)


def aside(folder: Path) -> Path:
    """The folder that damaged checkpoints of a checkpoints folder are moved to."""
    return folder.with_name("damaged")


def newest(path: str | Path, work: Callable[[Checkpoints, int], T]) -> T:
    """Calls work(checkpoints, step) for the newest intact checkpoint of a run directory, or for
    the checkpoint at `path`, and changes no file. Prints a warning for each damaged one.

    Raises InputError if there is no complete checkpoint, Damaged if none is intact.
    """
    folder, step = locate(path)
    saved = Checkpoints(folder, create=False)
    try:
        steps = saved.steps() if step is None else [step]
        if not steps:
            raise InputError(f"{folder} holds no complete checkpoint")
        for tried, step in enumerate(reversed(steps), 1):
            try:
                return work(saved, step)
            except Damaged as error:
                if tried == len(steps):
                    raise
                print(f"warning: {error}; using an older one", file=sys.stderr, flush=True)
        raise AssertionError("unreachable")
    finally:
        saved.close()


def evaluated(path: str | Path) -> own.Saved:
    """The network of a run directory that evaluations use (the teacher if there is one), in host
    memory. Raises as `newest` does."""
    on_device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    def network(saved, step):
        trees = saved.read(step, _NETWORKS, lambda shape: on_device)
        text = saved.meta(step)["config"]
        model = from_json(text).model
        params = lora.network(trees["params"], trees["teacher"], model)
        return own.Saved(text, params, None, {"step": step})

    return newest(path, network)


backbones.register_runs(evaluated)


def abstract(state: TrainState, shardings: Any) -> TrainState:
    """ShapeDtypeStructs with shardings of a (possibly abstract) state, to restore into."""
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, shardings
    )


def _quiet():
    """Silences Orbax's output, except raised errors. Orbax logs every save; and when one file
    cannot be written or read, its threads print hundreds of tracebacks (the other arrays report to
    a closed event loop) around the error that reaches the caller."""
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings(
        "ignore",
        message="coroutine '(async_serialize|_read_array_index).*was never awaited",
        category=RuntimeWarning,
    )
    if not hasattr(sys.unraisablehook, "drops_late_reports"):
        sys.unraisablehook = _without_late_reports(sys.unraisablehook)


def _without_late_reports(hook):
    def filtered(unraisable):
        text = str(unraisable.exc_value)
        if not text.startswith(("Event loop is closed", "Encountered error while reading array")):
            hook(unraisable)

    marked: Any = filtered
    marked.drops_late_reports = True
    return marked
