"""Orbax checkpoints: the whole TrainState, the data position and the resolved config, written
asynchronously and atomically.
"""

import contextlib
import errno
import logging
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from ssl_jax.config import InputError, free_on_resume, key
from ssl_jax.train.state import TrainState

_ITEMS = ("state", "meta")
# Bytes of a checkpoint beside its arrays: names, shardings, config, blocks of the disk that are not
# full.
_OVERHEAD = 2**20


def defaults() -> dict:
    """The section `checkpoint` of the config."""
    return free_on_resume(
        dict(
            every_steps=key(1000, "steps from one checkpoint to the next", "steps", above=0),
            keep=key(2, "newest checkpoints kept", "checkpoints", above=0),
            keep_every=key(
                0, "checkpoints at multiples of this are kept for good; 0 = none", "steps", least=0
            ),
        )
    )


class Checkpoints:
    """The checkpoints of one run, in `folder`/<step>.

    A save is written beside its final name and renamed when complete, so a kill at any moment
    leaves the last complete one to be found. At most `keep` newest are kept, and those at multiples
    of `keep_every` steps (0 = none) for good.
    """

    def __init__(
        self, folder: str | Path, *, keep: int = 2, keep_every: int = 0, create: bool = True
    ):
        self.folder = Path(folder).absolute()
        if not create and not self.folder.is_dir():
            raise InputError(
                f"no checkpoints in {self.folder.parent}: the folder {self.folder.name}/ is missing"
            )
        _quiet()
        with _readable_errors(self.folder):
            self._manager = ocp.CheckpointManager(
                self.folder,
                options=ocp.CheckpointManagerOptions(
                    max_to_keep=keep,
                    keep_period=keep_every or None,
                    create=create,
                    cleanup_tmp_directories=create,
                ),
                item_names=_ITEMS,
            )

    def latest(self) -> int | None:
        """Step of the newest complete checkpoint, or None."""
        return self._manager.latest_step()

    def save(self, state: TrainState, meta: dict) -> None:
        """Starts saving `state` under its step. Returns when the arrays are copied; writing goes on
        in the background.

        Raises InputError if this or the previous save could not be written (for example a full
        disk).
        """
        step = int(state.step)
        if step == self._manager.latest_step():
            return
        with _readable_errors(self.folder):
            self._manager.check_for_errors()
            args = ocp.args.Composite(
                state=ocp.args.StandardSave(state._asdict()), meta=ocp.args.JsonSave(meta)
            )
            if not self._manager.save(step, args=args):
                raise InputError(
                    f"checkpoint {self.folder / str(step)} was not written: a folder of that name"
                    " is in the way"
                )

    def meta(self, step: int) -> dict:
        """The `meta` that was saved: config, data position, versions."""
        with self._damage_named(step):
            return self._manager.restore(
                step, args=ocp.args.Composite(meta=ocp.args.JsonRestore())
            ).meta

    def restore(self, step: int, abstract: TrainState) -> TrainState:
        """Reads the state of `step` onto the shapes and shardings of `abstract`
        (ShapeDtypeStructs), whatever mesh wrote it.
        """
        with self._damage_named(step):
            _check_files(self.folder / str(step) / "state")
            args = ocp.args.Composite(state=ocp.args.StandardRestore(abstract._asdict()))
            return TrainState(**self._manager.restore(step, args=args).state)

    def read(
        self,
        step: int,
        fields: tuple[str, ...],
        sharding_of: Callable[[tuple[int, ...]], jax.sharding.Sharding],
    ) -> dict:
        """Reads fields of the saved TrainState, {"params": tree, ...}, whatever the others are.

        sharding_of: of an array's shape.
        """
        folder = self.folder / str(step) / "state"
        with self._damage_named(step):
            _check_files(folder)
            with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
                tree = reader.metadata(folder).item_metadata.tree
                wanted = jax.tree.map(
                    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding_of(x.shape)),
                    {name: tree.get(name) for name in fields},
                )
                arguments = jax.tree.map(
                    lambda x: ocp.ArrayRestoreArgs(
                        sharding=x.sharding, global_shape=x.shape, dtype=x.dtype
                    ),
                    wanted,
                )
                return reader.restore(
                    folder,
                    args=ocp.args.PyTreeRestore(
                        item=wanted, restore_args=arguments, partial_restore=True
                    ),
                )

    def wait(self) -> None:
        """Blocks until everything is on disk. Raises InputError if a save failed."""
        with _readable_errors(self.folder):
            self._manager.wait_until_finished()
            self._manager.check_for_errors()

    def close(self) -> None:
        self._manager.close()

    @contextlib.contextmanager
    def _damage_named(self, step: int):
        path = self.folder / str(step)
        if not path.is_dir():
            raise InputError(
                f"no checkpoint of step {step} in {self.folder}; complete ones:"
                f" {list(self._manager.all_steps())}"
            )
        missing = [item for item in _ITEMS if not (path / item).is_dir()]
        if missing:
            raise InputError(
                f"checkpoint {path} lacks {missing}; move that folder away to go on from the one"
                " before"
            )
        try:
            yield
        except Exception as error:
            reason = (
                f"{type(error).__name__}:"
                f" {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            )
            raise InputError(
                f"checkpoint {path} cannot be read; move that folder away to go on from the one"
                f" before ({reason[:300]})"
            ) from error


def _check_files(folder: Path) -> None:
    """Raises an error that names a file or array if something of the saved arrays is missing or cut
    short; reads a byte of each piece.

    Orbax reads all arrays at once, and when one fails the others fill stderr with tracebacks around
    the line that matters.
    """
    import tensorstore  # what Orbax stores arrays with

    store = tensorstore.KvStore.open(
        {"driver": "ocdbt", "base": {"driver": "file", "path": f"{folder}/"}}
    ).result()
    pieces = {key: store.read(key, byte_range=slice(-1, None)) for key in store.list().result()}
    missing = [key.decode() for key, read in pieces.items() if not read.result().value]
    if missing or not pieces:
        raise FileNotFoundError(f"no data of {missing[0] if missing else 'any array'} in {folder}")


def locate(path: str | Path) -> tuple[Path, int | None]:
    """Splits what a user gives (run folder, its checkpoints folder, or one step's folder) into
    (checkpoints folder, step or None).
    """
    path = Path(path).absolute()
    if not path.is_dir():
        raise InputError(f"no such checkpoint or run folder: {path}")
    if path.name.isdigit():
        return path.parent, int(path.name)
    return (path, None) if path.name == "checkpoints" else (path / "checkpoints", None)


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator[tuple[Checkpoints, int]]:
    """(Checkpoints, step) of a run folder, or of one step's folder; nothing there is changed.

    Raises InputError if there is no complete checkpoint.
    """
    folder, step = locate(path)
    saved = Checkpoints(folder, create=False)
    try:
        step = saved.latest() if step is None else step
        if step is None:
            raise InputError(f"{folder} holds no complete checkpoint")
        yield saved, step
    finally:
        saved.close()


def abstract(state: TrainState, shardings: Any) -> TrainState:
    """ShapeDtypeStructs of a (possibly abstract) state, carrying shardings, to restore onto."""
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, shardings
    )


def check_space(folder: Path, state: TrainState, copies: int) -> None:
    """Refuses a run whose checkpoints cannot fit on the disk of `folder`. Raises InputError."""
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(jax.eval_shape(_raw_keys, state)))
    size += _OVERHEAD
    needed, free = size * copies, shutil.disk_usage(folder).free
    if free < needed:
        raise InputError(
            f"{folder} has {free / 2**20:.1f} MiB free; {copies} checkpoints of {size / 2**20:.1f}"
            f" MiB need {needed / 2**20:.1f} MiB: free some space, choose another --workdir or"
            " lower checkpoint.keep"
        )


def _raw_keys(state):
    def is_key(x):
        return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)

    return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, state)


@contextlib.contextmanager
def full_disk_named(folder: Path) -> Iterator[None]:
    """Turns a write that failed for want of space, of a log for example, into one line: an
    InputError that names the folder.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(_no_space(folder)) from error
        raise


def _no_space(folder):
    return (
        f"no space left on the disk of {folder}; the last complete checkpoint is intact, free space"
        " and start again"
    )


@contextlib.contextmanager
def _readable_errors(folder: Path):
    """Turns a full or unwritable disk, which may surface wrapped and at a later call, into one
    line.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        chain: BaseException | None = error
        texts = []
        while chain is not None:
            texts.append(f"{getattr(chain, 'errno', '')} {chain}")
            chain = chain.__cause__ or chain.__context__
        text = " ".join(texts)
        if (
            "No space left" in text
            or "quota exceeded" in text
            or "RESOURCE_EXHAUSTED" in text
            or str(errno.ENOSPC) + " " in text
        ):
            raise InputError(_no_space(folder)) from error
        if "Permission denied" in text or "Read-only" in text:
            raise InputError(f"cannot write to {folder}: permission denied") from error
        raise


def _quiet():
    """Leaves only what is raised. Orbax logs every save, and a file that cannot be written makes
    its threads print hundreds of tracebacks (arrays still under way report to an event loop that is
    closed by then) around the one error that reaches the caller."""
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings(
        "ignore", message="coroutine 'async_serialize.*was never awaited", category=RuntimeWarning
    )
    if not hasattr(sys.unraisablehook, "drops_late_reports"):
        sys.unraisablehook = _without_late_reports(sys.unraisablehook)


def _without_late_reports(hook):
    def filtered(unraisable):
        if not (
            isinstance(unraisable.exc_value, RuntimeError)
            and "Event loop is closed" in str(unraisable.exc_value)
        ):
            hook(unraisable)

    filtered.drops_late_reports = True
    return filtered
