"""Where the weights are that a path names: a run directory, a network that `api.save` wrote, or
published weights."""

from pathlib import Path
from typing import NamedTuple

from ssl_jax.config import InputError, MissingFile, local, unknown
from ssl_jax.convert import own, read

_PACKAGE = Path(__file__).resolve().parent.parent
ZOO = _PACKAGE / "zoo" if (_PACKAGE / "zoo").is_dir() else _PACKAGE.parent / "zoo"


class Place(NamedTuple):
    """path: the file or folder. file: its weight file; None for a run directory, and for one step's
    folder."""

    path: Path
    file: Path | None

    @property
    def is_run(self) -> bool:
        return self.file is None

    def saved(self) -> own.Saved | None:
        """Reads the network in the file if `api.save` wrote it; None for runs and published
        weights. Raises InputError for a damaged one."""
        return own.read(self.file) if self.file else None


def find(path: str | Path) -> Place:
    """Finds the weights that `path` names, see `resolve`.

    Raises InputError as `resolve`, and for a file that cannot hold weights; MissingFile if nothing
    is there.
    """
    place = resolve(path)
    if not place.exists():
        known = str(path) in {network.stem for network in ZOO.glob("*.safetensors")}
        hint = f"; did you mean zoo/{path}?" if known else ""
        raise MissingFile(f"no such file or folder: {path}{hint}")
    return Place(place, read.weight_file(place))


def resolve(path: str | Path) -> Path:
    """The file or folder that `path` means, with "~" and "zoo/NAME" resolved; the latter is a
    network that comes with the package, unless the working directory has something of that name.

    Raises InputError for a network that the zoo lacks (names those it has), an address on the
    network, and a text that no file can be called.
    """
    place = local(path)
    parts = Path(path).parts
    if parts[:1] != ("zoo",) or len(parts) != 2 or place.exists():
        read.check_local(path)
        return place
    file = ZOO / f"{parts[1].removesuffix('.safetensors')}.safetensors"
    if not file.is_file():
        names = [f"zoo/{other.stem}" for other in sorted(ZOO.glob("*.safetensors"))]
        raise InputError(
            unknown("network", str(path), names) if names else f"no {path}: {ZOO} holds no network"
        )
    return file
