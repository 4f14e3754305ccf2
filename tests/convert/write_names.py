"""The names and shapes that timm's and transformers' own models have, for tests without them.

python -m tests.convert.write_names    writes library_names.json (needs torch, timm, transformers)
"""

import contextlib
import importlib.util
import json
import tempfile
from pathlib import Path

import ssl_jax
from ssl_jax.convert import read
from tests.convert import networks


def operators():
    """Both libraries import torchvision, which asks for operators that it lacks where its own
    library does not fit the build of torch; no ViT calls them. They exist as long as what is
    returned.
    """
    import torch

    place = importlib.util.find_spec("torchvision")  # imported, it would ask for them
    for file in Path(place.origin).parent.glob("_C*") if place else ():
        with contextlib.suppress(OSError):
            torch.ops.load_library(file)
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def names(folder: Path) -> dict:
    """See `networks.golden`: of models that the libraries build from our config.json, with weights
    of their own."""
    import timm
    import transformers

    found: dict = {"timm": {}, "hf": {}}
    for name in networks.CHANGES:
        ssl_jax.export(networks.network(name), folder / name, to="timm")
        model = timm.create_model(f"local-dir:{folder / name}", pretrained=False)
        found["timm"][name] = networks.shapes(model.state_dict())
    for name in networks.HF:
        ssl_jax.export(networks.network(name), folder / f"{name}_hf", to="hf")
        config = transformers.AutoConfig.from_pretrained(folder / f"{name}_hf")
        saved = folder / f"{name}_saved"  # has the published names; in memory there are others
        transformers.AutoModel.from_config(config).save_pretrained(saved)
        found["hf"][name] = networks.shapes(read.tensors(saved / "model.safetensors"))
    return found


if __name__ == "__main__":
    kept = operators()
    with tempfile.TemporaryDirectory() as place:
        text = json.dumps(names(Path(place)), indent=1, sort_keys=True)
    networks.GOLDEN.write_text(text + "\n")
