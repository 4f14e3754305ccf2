"""README.md of an exported network: description, origin, and how to load it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ssl_jax.convert.described import Folder, Network


class About(NamedTuple):
    """Information about a network besides its tensors.

    method: its name. data: description of the training data. step: of the run, or None.
    results: {row: {score: number}}, of the network and its baselines. command: that trained it.
    notes: {name: anything JSON}.
    """

    method: str
    data: str = ""
    step: int | None = None
    results: Mapping[str, Mapping[str, float]] = {}
    command: str = ""
    notes: Mapping[str, Any] = {}


def text(name: str, network: Network, folder: Folder, about: About) -> str:
    """Markdown with the header that the Hugging Face hub reads.

    name: of the folder, a title.
    """
    c = network.shape
    head = f"---\nlibrary_name: {folder.library}\npipeline_tag: image-feature-extraction\n"
    tags = "tags:\n- image-feature-extraction\n- self-supervised\n- ssl-jax\n---\n"
    facts = {
        "method": about.method,
        "trained on": about.data,
        "step": "" if about.step is None else str(about.step),
        "network": f"ViT, {c.width} wide, {c.depth} blocks, {c.heads} heads, patch {c.patch}",
        "image size": f"{c.image_size} x {c.image_size}; others in multiples of {c.patch} work",
        "images": f"in [0, 1], mean {_numbers(c.mean)}, deviation {_numbers(c.std)}",
        "tokens in front": _tokens(network),
        "image vector": _IMAGE.get(network.image, "no single average of tokens"),
        **{key: str(value) for key, value in about.notes.items()},
    }
    table = "\n".join(f"| {key} | {value} |" for key, value in facts.items() if value)
    parts = [
        f"{head}{tags}",
        f"# {name}\n\nA vision transformer of ssl-jax as {folder.model} of {folder.library}.\n",
        f"| | |\n| --- | --- |\n{table}\n",
        f"## Use\n\n```python\n{square(c.image_size)}{_USE[folder.library](name, network)}```\n",
    ]
    if folder.remarks:
        parts.append("".join(f"- {remark}\n" for remark in folder.remarks))
    if about.results:
        parts.append(f"## Scores\n\n{_scores(about.results)}")
    if about.command:
        parts.append(f"## Training\n\n```bash\n{about.command}\n```\n")
    return "\n".join(parts)


_IMAGE = {
    "cls": "the class token",
    "mean": "the average of the patch tokens",
    "queries": "the average of the query tokens",
    "concat": "the class token and the average of the patch tokens, side by side",
}


def _numbers(values) -> str:
    return " ".join(f"{value:g}" for value in values)


def _tokens(network: Network) -> str:
    c = network.shape
    counts = {"class token": int(c.cls), "registers": c.registers, "query tokens": c.queries}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "none"


def _scores(results: Mapping[str, Mapping[str, float]]) -> str:
    names = list(dict.fromkeys(name for scores in results.values() for name in scores))
    lines = [f"| | {' | '.join(results)} |", f"| --- |{' --- |' * len(results)}"]
    for name in names:
        cells = [f"{row[name]:.4g}" if name in row else "-" for row in results.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def square(size: int) -> str:
    """Python code that crops a photo exactly as `ssl_jax.embed` does, so that the libraries' own
    preparation changes nothing."""
    return (
        "(width, height), side = photo.size, min(photo.size)  # a Pillow image, RGB\n"
        "box = (width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2\n"
        f"photo = photo.resize(({size}, {size}), 3, box=box)  # bicubic, as ssl_jax.embed\n\n"
    )


def _slices(network: Network) -> tuple[int, int]:
    """(where the query tokens start, where the patches start) among the tokens."""
    c = network.shape
    return c.cls + c.registers, c.cls + c.registers + c.queries


def _torch(network: Network) -> str:
    return "import torch\n" if network.image == "concat" else ""


def _timm(name: str, network: Network) -> str:
    queries, patches = _slices(network)
    image = {
        "queries": f"tokens[:, {queries}:{patches}].mean(1)",
        "concat": f"torch.cat([tokens[:, 0], tokens[:, {patches}:].mean(1)], 1)",
    }.get(network.image, "model.forward_head(tokens)")
    return (
        f"import timm\n{_torch(network)}\n"
        f'model = timm.create_model("local-dir:{name}", pretrained=True).eval()\n'
        "prepare = timm.data.create_transform(**timm.data.resolve_model_data_config(model))\n"
        f"tokens = model.forward_features(prepare(photo)[None])  # patches: tokens[:, {patches}:]\n"
        f"image = {image}\n"
    )


def _transformers(name: str, network: Network) -> str:
    queries, patches = _slices(network)
    image = {
        "mean": f"tokens[:, {patches}:].mean(1)",
        "queries": f"tokens[:, {queries}:{patches}].mean(1)",
        "concat": f"torch.cat([tokens[:, 0], tokens[:, {patches}:].mean(1)], 1)",
    }.get(network.image, "tokens[:, 0]" if network.shape.cls else "tokens.mean(1)")
    return (
        f"{_torch(network)}from transformers import AutoImageProcessor, AutoModel\n\n"
        f'model = AutoModel.from_pretrained("{name}").eval()\n'
        f'prepare = AutoImageProcessor.from_pretrained("{name}")\n'
        'tokens = model(**prepare(photo, return_tensors="pt")).last_hidden_state\n'
        f"patches, image = tokens[:, {patches}:], {image}\n"
    )


_USE = {"timm": _timm, "transformers": _transformers}
