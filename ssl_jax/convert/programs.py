"""A network with its weights as one file that other software runs: StableHLO for JAX, and ONNX.

Both take images [B, size, size, channels], float32 in [0, 1], for any B, and return the features of
an Encoder. Their metadata describe the preparation of images and the origin of the network.
"""

import dataclasses
import importlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from ssl_jax.config import InputError, local
from ssl_jax.convert import card, onnx_graph
from ssl_jax.models import vit
from ssl_jax.runtime import writing

_PLATFORMS = ("cpu", "cuda", "tpu")
_MOST = 2**31 - 2**24  # bytes of weights: protobuf and flatbuffers end at 2 GiB
_WRONG = 0.05  # of the largest feature: no rounding, not even that of bfloat16
_METADATA, _PROGRAM = "ssl_jax.json", "program"  # names in the files


class _Format(NamedTuple):
    """A kind of file.

    content: function, its input, its network, metadata -> bytes. run: these bytes, images ->
    {name: array}. metadata: of a file. example: Python that opens the file `path`, and that runs
    it. needs: libraries.
    """

    content: Callable[[Callable, jax.ShapeDtypeStruct, vit.ViTConfig, str], bytes]
    run: Callable[[bytes, np.ndarray], Mapping[str, Any]]
    metadata: Callable[[Path], str]
    example: Callable[[str, str], str]
    needs: tuple[str, ...] = ()


def write(
    path: str | Path,
    shape: vit.ViTConfig,
    params: Mapping[str, Any],
    image: str,
    features: Callable[[np.ndarray], Any],
    *,
    to: str,
    size: int | None,
    about: card.About,
) -> list[str]:
    """Writes a vision transformer as a program that computes in float32.

    Args:
      path: ends in .stablehlo or .onnx; new, or an earlier export.
      shape, params: of `models.vit.vit`.
      image: "cls", "mean", "queries" or "concat", see `described.Network`.
      features: images -> an object with .image, .cls and .patches, to which the program is
        compared.
      to: key of TARGETS.
      size: pixels of a side of its images; None: shape.image_size.
      about: for the metadata.

    Returns:
      Remarks, one sentence each: inputs, outputs and the largest difference on two random images.

    Raises:
      InputError: another ending, an existing file that this did not write, a size that is no
        multiple of the patch, weights above 2 GB or not finite, a method whose image vector is no
        average of tokens, features that differ from those of `features`.
    """
    path, size, kind = local(path), shape.image_size if size is None else size, TARGETS[to]
    if path.suffix != f".{to}":
        raise InputError(f"{path}: the name of a network exported to {to} must end in .{to}")
    if path.exists() and not _is_ours(path, kind):
        raise InputError(f"{path} exists and was not written by export; choose another name")
    writing.check(path)
    if size < 1 or size % shape.patch:
        raise InputError(f"size is {size}; it must be a multiple of the patch, {shape.patch}")
    if (weights := sum(4 * x.size for x in jax.tree.leaves(params))) > _MOST:
        raise InputError(f"{weights / 1e9:.1f} GB of weights, but a file of {to} holds 2 GB")
    if not all(np.isfinite(x).all() for x in jax.tree.leaves(params)):
        raise InputError("the weights have non-finite values; nothing was exported")
    if not image:
        raise InputError(
            f"the image of {about.method} is no average of tokens, which {to} needs; export to"
            " timm, hf, safetensors or npz"
        )
    for library in kind.needs:
        importlib.import_module(library)
    (batch,) = export.symbolic_shape("batch")
    sides = size, size, shape.in_channels
    given = jax.ShapeDtypeStruct((batch, *sides), jnp.float32)
    metadata = json.dumps(dict(preparation=_preparation(shape, size), network=about._asdict()))
    content = kind.content(_network(shape, params, image), given, shape, metadata)
    images = np.random.default_rng(0).random((2, *sides), np.float32)
    theirs, ours = kind.run(content, images), features(images)
    distance = max(float(np.abs(x - getattr(ours, name)).max()) for name, x in theirs.items())
    largest = max(float(np.abs(x).max()) for x in theirs.values())
    if not distance < _WRONG * largest:
        raise InputError(f"the program's features differ by {distance:.2g}; nothing was exported")
    writing.replace({path: content})
    outputs = (f"{name} [{', '.join(map(str, ['B', *x.shape[1:]]))}]" for name, x in theirs.items())
    return [
        f"images [B, {size}, {size}, {shape.in_channels}] in [0, 1] -> {', '.join(outputs)}",
        f"{len(content) / 1e6:.1f} MB; features, up to {largest:.2g}, differ by at most"
        f" {distance:.1g} from ours",
    ]


def example(path: str | Path, to: str) -> str:
    """Python that prepares an image, and runs a file that `write` wrote."""
    prepared = json.loads(TARGETS[to].metadata(local(path)))["preparation"]
    photo = (
        'photo = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("RGB")\n'
        f"{card.square(prepared['size'])}images = np.asarray(photo, np.float32)[None] / 255\n"
    )
    if prepared["channels"] != "RGB":
        photo = 'images = np.load("image.npy")[None]  # [size, size, channels], float32 in [0, 1]\n'
    shapes = "print({name: x.shape for name, x in features.items()})\n"
    return TARGETS[to].example(str(path), photo) + shapes


def _preparation(shape: vit.ViTConfig, size: int) -> dict[str, Any]:
    return dict(
        size=size,
        crop="central square, as large as fits",
        resampling="bicubic, antialiased (Pillow's)",
        axes="NHWC",
        channels="RGB" if shape.in_channels == 3 else shape.in_channels,
        type="float32",
        range=[0, 1],
        mean=shape.mean,
        std=shape.std,
        normalized="by the program, with this mean and std: give numbers in `range`",
    )


def _network(shape: vit.ViTConfig, params: Mapping[str, Any], image: str) -> Callable:
    """images -> {"image": [B, d], "cls": [B, d] if there is one, "patches": [B, h, w, d]}."""
    plain: dict[str, Any] = dict(
        attention="xla", scan=False, remat="none", dtype="float32", mask_token=False
    )
    apply = vit.vit(dataclasses.replace(shape, **plain)).apply

    def network(images):
        tokens, side = apply(params, images), images.shape[1] // shape.patch
        vectors = {"cls": tokens.cls}
        for name, x in (("mean", tokens.patches), ("queries", tokens.queries)):
            vectors[name] = None if x is None else x.mean(axis=1)
        if image == "concat":
            vectors[image] = jnp.concatenate([vectors["cls"], vectors["mean"]], axis=-1)
        patches = tokens.patches.reshape(images.shape[0], side, side, -1)
        outputs = {"image": vectors[image], "cls": tokens.cls, "patches": patches}
        return {name: x for name, x in outputs.items() if x is not None}

    return network


def _is_ours(path: Path, kind: _Format) -> bool:
    try:
        return "preparation" in json.loads(kind.metadata(path))
    except Exception:  # whatever a reader says of another file
        return False


def _stablehlo(network, given, shape, metadata):
    """A zip archive of the program, as jax.export writes it, and the metadata."""
    exported = export.export(jax.jit(network), platforms=_PLATFORMS)(given)
    with zipfile.ZipFile(archive := io.BytesIO(), "w") as file:
        file.writestr(_METADATA, metadata)
        file.writestr(_PROGRAM, bytes(exported.serialize()))
    return archive.getvalue()


def _run_stablehlo(content, images):
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        program = export.deserialize(bytearray(file.read(_PROGRAM)))
    return jax.tree.map(np.asarray, jax.jit(program.call)(images))


def _metadata_of_stablehlo(path):
    with zipfile.ZipFile(path) as file:
        return file.read(_METADATA).decode()


def _example_of_stablehlo(path, photo):
    return (
        "import json\nimport zipfile\n\nimport jax\nimport numpy as np\n"
        "from jax import export\nfrom PIL import Image, ImageOps\n\n"
        f"file = zipfile.ZipFile({json.dumps(path)})\n"
        f'print(json.loads(file.read("{_METADATA}"))["preparation"])\n'
        f'program = export.deserialize(bytearray(file.read("{_PROGRAM}")))\n'
        f"{photo}features = jax.jit(program.call)(images)\n"
    )


def _onnx(network, given, shape, metadata):
    own = {
        "layer_norm": dict(axis=-1, epsilon=shape.norm_eps),
        "gelu": dict(approximate="tanh" if shape.gelu == "tanh" else "none"),
    }
    traced, outputs = jax.make_jaxpr(network, return_shape=True)(given)
    return onnx_graph.model(traced, sorted(outputs), own, {_METADATA: metadata})


def _run_onnx(content, images):
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"images": images}), strict=True))


def _metadata_of_onnx(path):
    import onnx

    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}[_METADATA]


def _example_of_onnx(path, photo):
    return (
        "import json\n\nimport numpy as np\nimport onnxruntime\nfrom PIL import Image, ImageOps\n\n"
        "providers = onnxruntime.get_available_providers()\n"
        f"program = onnxruntime.InferenceSession({json.dumps(path)}, providers=providers)\n"
        f'metadata = program.get_modelmeta().custom_metadata_map["{_METADATA}"]\n'
        'print(json.loads(metadata)["preparation"])\n'
        f"{photo}names = [output.name for output in program.get_outputs()]\n"
        'features = dict(zip(names, program.run(names, {"images": images})))\n'
    )


TARGETS = {
    "stablehlo": _Format(_stablehlo, _run_stablehlo, _metadata_of_stablehlo, _example_of_stablehlo),
    "onnx": _Format(_onnx, _run_onnx, _metadata_of_onnx, _example_of_onnx, ("onnx", "onnxruntime")),
}
