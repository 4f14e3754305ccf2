"""Caches compiled programs on disk, so that later starts and resumes skip most compilation."""

import hashlib
import os
import platform
from pathlib import Path

import jax


def keep_programs() -> None:
    """Stores compiled programs in the user's cache, unless JAX_COMPILATION_CACHE_DIR is set (""
    disables it)."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(folder()))


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
