"""Caches compiled programs on disk, so that later starts and resumes skip most compilation."""

import contextlib
import hashlib
import os
import platform
import uuid
from pathlib import Path

import jax

from ssl_jax.runtime import distributed

_SEEN_WITHIN = 5  # seconds, after which other machines see a file on a shared disk


def keep_programs() -> None:
    """Stores compiled programs in the user's cache, unless JAX_COMPILATION_CACHE_DIR is set (""
    disables it) or the user has no home directory."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_compilation_cache_dir", str(folder()))


def only_shared() -> None:
    """Switches the cache off for several processes that do not share its folder. Process 0 alone
    writes it; XLA's GPU compiler waits for all processes, and would wait in vain for one that finds
    its programs there. All processes must call it."""
    place = jax.config.values["jax_compilation_cache_dir"]
    if jax.process_count() == 1 or not place or "://" in place:
        return
    (token, *_) = distributed.gather_json(f".seen_{uuid.uuid4().hex}")
    path = Path(place) / token
    with contextlib.suppress(OSError):
        if distributed.is_first():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    if distributed.unseen_by(path, _SEEN_WITHIN):
        jax.config.update("jax_enable_compilation_cache", False)
        if distributed.is_first():
            print(
                f"compiled programs are not kept: not all processes see {place} (set"
                " JAX_COMPILATION_CACHE_DIR to a folder that they share)",
                flush=True,
            )
    with contextlib.suppress(OSError):
        if distributed.is_first():
            path.unlink(missing_ok=True)


def folder() -> Path:
    """The cache folder of this kind of processor. Home directories are shared, and a program
    compiled for one CPU may not run on another."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "ssl_jax" / f"xla_{_processor()}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()}_{hashlib.sha256(features.encode()).hexdigest()[:8]}"
