"""`--platform=gpu`: devices of this kind or an error, never a silent CPU."""

import importlib.util
import os

from ssl_jax import extras
from ssl_jax.config import InputError

# JAX's name of each, and the packages of which one must be installed.
_PLATFORMS: dict[str, dict[str, tuple[str, ...]]] = {
    "cpu": {"cpu": ()},
    "gpu": {
        "cuda": ("jax_cuda12_plugin", "jax_cuda13_plugin"),
        "rocm": ("jax_rocm60_plugin", "jax_rocm7_plugin"),
    },
    "tpu": {"tpu": ("libtpu",)},
}


def use(name: str | None) -> None:
    """Makes JAX use the platform of --platform=NAME alone; None leaves the choice to JAX.

    Whether there is such a device shows when JAX is first used, see `refusal`. Raises InputError
    where the package of the platform is missing.
    """
    _give_threads_to_simulated_devices()
    if name is None:
        return
    import jax  # not for --help

    for platform, packages in _PLATFORMS[name].items():
        if not packages or any(map(importlib.util.find_spec, packages)):
            # The CPU beside it holds what is read and written.
            jax.config.update("jax_platforms", platform if name == "cpu" else f"{platform},cpu")
            return
    raise InputError(
        f"--platform={name}, but JAX finds no such device; if you have one, {extras.install(name)}"
    )


def _give_threads_to_simulated_devices() -> None:
    """Where one processor stands for several devices. They wait for each other in threads of one
    pool, which by itself has one for each core: all of them can wait, and none is left to go on."""
    simulated = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if simulated or "JAX_NUM_CPU_DEVICES" in os.environ:
        os.environ.setdefault("NPROC", "64")  # XLA reads it when it makes the pool


def refusal(error: RuntimeError) -> str | None:
    """One line for the error with which JAX says that a platform is not there; None for any
    other."""
    lines = str(error).splitlines() or [""]
    if not lines[0].startswith("Unable to initialize backend"):
        return None
    return f"{lines[0]}; check the driver, or choose another --platform (or JAX_PLATFORMS)"
