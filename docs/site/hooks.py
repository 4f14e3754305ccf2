"""Extra processing of the pages by MkDocs.

- README, CONTRIBUTING, CHANGELOG and the zoo's README become pages too; links between all pages
  lead to where the site has them, and links to other files of the repository become their names.
- `<!-- configs sop -->` and the like (see `TABLES`) become tables of what the package itself says:
  its configs, keys, papers' rows and the results page.
- Formulas, `$...$` and `$$...$$`, become MathML, which browsers draw without a script.
"""

import functools
import html as html_lib
import os
import posixpath
import re
import textwrap
import tomllib
from pathlib import Path

from latex2mathml import converter
from mkdocs.structure.files import File

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # configs and keys are read, nothing is computed

from ssl_jax import config as config_lib
from ssl_jax import methods, papers, settings

ROOT = Path(__file__).resolve().parent.parent.parent
OUTSIDE = {  # files of the repository that are not in `docs`: their page
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "zoo/README.md": "networks.md",
}
PLACES = {page: path for path, page in OUTSIDE.items()}
# Pages of wide tables, without a table of contents.
WIDE = ("evaluation.md", "networks.md", "protocol_changes.md")

# What a variant is for: of one config, or of all that have it. Other names say it themselves.
PURPOSES = {
    "dino:vitl16": "a large network that was not published: the settings are ours",
    "massl:vitl16": "a large network that was not published: the settings are ours",
    "ibot:vitb16": "the paper's base network; its arguments are not public, these are MaSSL's",
    "ibot:vitl16": "the paper's large network; its arguments are not public either",
    "dinov2:vitl16": "the authors' fast setup on ImageNet-1k",
    "dinov2:vits16": "the fast setup with a small network; our variant",
    "dinov2:vitb16": "the fast setup with a base network; our variant",
    "dinov2:vits14": "losses and patches of the released models with a small network; our variant",
    "dinov2:vitb14": "the same with a base network",
    "dinov2:vitl14": "the same with a large network",
    "dinov3:vitl16": "DINOv3's recipe for ImageNet-1k",
    "dinov3:vitl16_pretrain": "the first stage of DINOv3's largest network, with a ViT-L",
    "dinov3:vitl16_gram": "the second: with Gram anchoring, from weights of the first",
    "dinov3:vitl16_highres": "the third: larger crops, from weights of the second",
    "distill:vits16": "a small network from a ViT-L, together with SOP; the settings are ours",
    "distill:imagenette96": "a tiny network on two CPU cores, ten classes of ImageNet at 96 pixels",
    "swin_t14": "the paper's Swin-T with windows of 14 tokens",
    "photos_swin": "a small Swin transformer on windows of the embedded photographs",
    "vits16_ablation": "the setting of SOP's ablations: 300 epochs, two large views",
    "vits16_coco": "the paper's small network on COCO",
    "cifar10": "CIFAR-10 in an hour on two CPU cores: the recipe of the speedrun",
    "imagenette96": "the same on ten classes of ImageNet at 96 pixels, or on a folder of yours",
    "cifar10_gpu": "CIFAR-10 in ten minutes on a GPU",
    "imagenette96_gpu": "ten classes of ImageNet at 96 pixels in ten minutes on a GPU",
    "photos": "crops of the embedded photographs in minutes on a CPU: no download",
    "photo_collages": "the same on collages of them, scenes with several regions and masks",
}


def on_config(config):
    """Links the site to the repository, once pyproject.toml has its address."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        config.repo_url = tomllib.load(file)["tool"]["ssl-jax"]["repository"] or None
    config.repo_name = config.repo_url and "Source"
    return config


def on_files(files, config):
    """Adds the pages that are kept outside of `docs`."""
    for path, page in OUTSIDE.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Fills in the tables and turns the links."""
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]
    markdown = re.sub(r"^( *)<!-- (\w+) (\w+) -->$", _table, markdown, flags=re.MULTILINE)
    here = PLACES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    link = functools.partial(_link, here=here, page=page.file.src_uri, files=files)
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(
        part if part.startswith("```") else re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", link, part)
        for part in parts
    )


def on_page_content(html, page, config, files):
    """Draws the formulas."""
    return re.sub(
        r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>',
        _formula,
        html,
        flags=re.DOTALL,
    )


def _formula(match) -> str:
    text = html_lib.unescape(match[3]).strip()
    math = converter.convert(text, display="inline" if match[2] == "(" else "block")
    if "\\" in math:
        raise ValueError(f"latex2mathml does not know a command of {text}")
    return math


def _link(match, *, here: str, page: str, files) -> str:
    """The link as the site needs it; only its text where the site has no such page."""
    image, text, target = match.groups()
    path, hash_, anchor = target.partition("#")
    if "://" in target or not path:
        return match[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
    uri = OUTSIDE.get(path, path.removeprefix("docs/"))
    if path not in OUTSIDE and (not path.startswith("docs/") or not files.get_file_from_path(uri)):
        if not (ROOT / path).exists():
            raise ValueError(f"{here}: {target} does not exist")
        return text if image else f"{text} (`{path}`)" if path not in text else f"`{path}`"
    uri = posixpath.relpath(uri, posixpath.dirname(page) or ".")
    return f"{image}[{text}]({uri}{hash_}{anchor})"


# --- tables


def _table(match) -> str:
    indent, kind, name = match.groups()
    return textwrap.indent(TABLES[kind](name), indent) if kind in TABLES else match[0]


def _rows(header: list[str], rows) -> str:
    lines = [header, ["---"] * len(header), *rows]
    cells = ([str(cell).replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _configs(name: str) -> str:
    """Every variant of a config."""
    module = config_lib.read_module(config_lib.find(name))
    short = getattr(module, "SHORT", {})
    rows = []
    for variant in module.VARIANTS:
        config = config_lib.load(f"{name}:{variant}")
        data, model, optim = config.data, config.model, config.optim
        size = "Swin-T" if model.size == "swin_t" else f"ViT-{model.size.upper()}"
        if model.size == "custom":
            size = f"{model.width} wide, {model.depth} blocks"
        rows.append(
            [
                f"`{name}:{variant}`",
                _purpose(name, variant, short.get(variant)),
                f"{size}, patch {model.patch}",
                f"{data.name or data.kind}, {config.views.global_size} px",
                f"{optim.batch_size}",
                f"{optim.epochs:g}" if not optim.steps else f"{optim.steps} steps",
            ]
        )
    header = ["`--config=`", "for", "network", "images", "batch", "epochs"]
    return _rows(header, rows)


def _purpose(name: str, variant: str, short: str | None) -> str:
    if short:
        return f"short for {short}"
    if text := PURPOSES.get(f"{name}:{variant}") or PURPOSES.get(variant):
        return text
    size = {"s": "small", "b": "base", "l": "large", "h": "huge"}[variant[3]]
    views = ", with the views of the paper's text" if variant.endswith("_paper") else ""
    return f"the paper's {size} network on ImageNet{views}"


def _keys(section: str) -> str:
    """The keys of a section of the config, as they are declared."""
    known = settings.keys(section if section in methods.METHODS else "")
    rows = [
        [f"`{name}`", f"`{key.default!r}`", _meaning(key)]
        for name, key in known.items()
        if (name.partition(".")[0] == section if section != "run" else "." not in name)
    ]
    return _rows(["key", "default", "meaning"], rows)


def _meaning(key: config_lib.Key) -> str:
    limits = f"one of {', '.join(map(repr, key.choices))}" if key.choices else key.range()
    limits = "" if limits == "numbers" else limits  # without limits
    text = html_lib.escape(key.meaning, quote=False).replace("*", "\\*").replace("_", "\\_")
    return "; ".join(part for part in (text, key.unit and f"in {key.unit}", limits) if part)


def _papers(name: str) -> str:
    """The rows of a paper's tables: its numbers, and ours where there are any."""
    rows = []
    for row in papers.load(name):
        numbers = [
            f"{score} {value.partition(' (')[0]}" + _ours(row, score)
            for score, value in row.expected.items()
        ]
        rows.append([f"`{row.name}`", row.place, "; ".join(numbers)])
    return _rows(["`--row=`", "place", "the paper's numbers"], rows)


def _ours(row: papers.Row, score: str) -> str:
    return f" (ours {row.ours[score]})" if score in row.ours else ""


def _scores(method: str) -> str:
    """The method's lines of the table of nine methods on the results page."""
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    table = re.search(r"<!-- nine methods -->\n(.*?)\n\n", text, re.DOTALL)[1].splitlines()
    (line,) = [line for line in table if line.startswith(f"| {method}, ")]
    size = re.search(r"\d+ px", line)[0]
    bounds = [row for row in table if re.match(rf"\| (untrained network|raw pixels), {size} ", row)]
    return "\n".join([*table[:2], line, *bounds])


TABLES = {"configs": _configs, "keys": _keys, "rows": _papers, "scores": _scores}
