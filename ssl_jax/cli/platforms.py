"""`--platform=gpu`: uses devices of this kind, with an error instead of a silent CPU fallback."""

import importlib.util
import os

from ssl_jax import extras
from ssl_jax.config import InputError
from ssl_jax.runtime import memory

# {value of --platform: {JAX's name: packages of which one must be installed}}
_PLATFORMS: dict[str, dict[str, tuple[str, ...]]] = {
    "cpu": {"cpu": ()},
    "gpu": {
        "cuda": ("jax_cuda12_plugin", "jax_cuda13_plugin"),
        "rocm": ("jax_rocm60_plugin", "jax_rocm7_plugin"),
    },
    "tpu": {"tpu": ("libtpu",)},
}


def use(name: str | None) -> None:
    """Makes JAX use only the platform `name`; None leaves the choice to JAX.

    Raises InputError if the platform's package is missing. A missing device causes an error when
    JAX is first used, see `refusal`.
    """
    _give_threads_to_simulated_devices()
    if name is None:
        return
    import jax  # slow, and not needed for --help

    for platform, packages in _PLATFORMS[name].items():
        if not packages or any(map(importlib.util.find_spec, packages)):
            # Arrays that are read and written are put on the CPU.
            jax.config.update("jax_platforms", platform if name == "cpu" else f"{platform},cpu")
            return
    raise InputError(
        f"--platform={name}, but JAX finds no such device; if you have one, {extras.install(name)}"
    )


def _give_threads_to_simulated_devices() -> None:
    """Enlarges XLA's thread pool if one CPU simulates several devices. With the default of one
    thread per core, devices that wait for each other can block all threads."""
    simulated = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if simulated or "JAX_NUM_CPU_DEVICES" in os.environ:
        os.environ.setdefault("NPROC", "64")  # read by XLA when it creates the pool


def refusal(error: RuntimeError) -> str | None:
    """One line for JAX's error that a platform is not available, or that its memory is too small;
    None for other errors."""
    lines = str(error).splitlines() or [""]
    if (reason := memory.exhausted(error)) is not None:
        return (
            f"the memory of the device is too small: {reason.rstrip('.')}; for training, ssl-jax"
            ' plan finds settings that fit (such as optim.chunks=2 or model.remat="block"); for'
            " evaluations, lower evals.batch_size"
        )
    if not lines[0].startswith("Unable to initialize backend"):
        return None
    return f"{lines[0]}; check the driver, or choose another --platform (or JAX_PLATFORMS)"
