"""The report on runs: one HTML page without external files, which compares scores, curves,
pictures, settings and commands.

jinja2 fills the template page.html, and escapes every text that comes from a run.
"""

import base64
import contextlib
import datetime
import io
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import ssl_jax
from ssl_jax import extras
from ssl_jax.config import COMPUTED, InputError, flatten, reading
from ssl_jax.data import source
from ssl_jax.evals.registry import TRAINED
from ssl_jax.report import charts, comparison, curves
from ssl_jax.report.comparison import ABSENT
from ssl_jax.report.folders import RunFolder
from ssl_jax.runtime import progress

WIDEST = 1600  # pixels of a picture in the page; wider ones are scaled down
_LARGEST, _PIXELS = 2**27, 2**26  # most bytes and pixels of a picture that is shown
_QUALITY = 90  # of WebP
# Titles of pictures that any network can have; others are named after their file.
_SHOWN = {
    "attention": "Attention of the class token in the last block, one map a head",
    "curves": "Losses, health and schedules by step",
    "neighbours": "Test images with their nearest training images",
    "pca": "First three principal components of the patch features, as colours",
    "segmentation": "Test images with the true and predicted class of each patch",
}


def html(runs: Sequence[RunFolder], *, title: str = "", now: datetime.datetime) -> str:
    """The page as HTML text.

    Args:
      runs: as read by `folders.read`, at least one.
      title: of the page; "" = the names of the runs. now: time shown as that of writing.

    Raises:
      InputError: jinja2 is not installed.
    """
    values = dict(
        title=title or _title(runs),
        now=now.strftime("%Y-%m-%d %H:%M"),
        version=ssl_jax.__version__,
        runs=[_overview(number, run) for number, run in enumerate(runs)],
        scores=comparison.scores(runs),
        seeds=comparison.over_seeds(runs),
        every_score=comparison.every_score(runs),
        charts=_charts(runs),
        pictures=_pictures(runs),
        failed=[(run.name, name) for run in runs for name in run.failed],
        settings=comparison.settings(runs),
        configs=[(run.name, json.dumps(run.config, indent=1, sort_keys=True)) for run in runs],
        environment=comparison.environment(runs),
    )
    return _template().render(values)


def _template():
    try:
        import jinja2
    except ImportError as error:
        raise InputError(
            f"the report needs jinja2, which is not installed; {extras.install('train')}"
        ) from error
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string((Path(__file__).parent / "page.html").read_text("utf-8"))


def _title(runs) -> str:
    names = [run.name for run in runs]
    if len(names) > 4:
        return f"{len(names)} runs: {', '.join(names[:3])} \u2026"
    return ", ".join(names)


# --- overview


def _overview(number: int, run: RunFolder) -> dict:
    """Facts about a run for the head of the page."""
    config = flatten(run.config)
    status = "finished" if run.results else f"at step {run.step:,}, no results yet"
    if run.results and run.step < run.total_steps:
        status = f"results, then trained further to step {run.step:,}"
    batch = config.get("optim.batch_size", 0)
    rates = run.metrics.get("images_per_second", np.zeros(0))
    rates = rates[np.isfinite(rates)]
    rate = float(np.median(rates[1:] if len(rates) > 1 else rates)) if len(rates) else 0.0
    facts = {
        "state": status,
        "method": str(config.get("method", ABSENT)),
        "network": _network(config),
        "images": _images(config),
        "steps": f"{run.step:,} of {run.total_steps:,}" if run.total_steps else f"{run.step:,}",
        "batch": f"{batch:,}",
        "seed": str(config.get("seed", ABSENT)),
        "speed": f"{progress.speed(rate)} images/s" if rate else ABSENT,
        "time": _duration(run.step * batch / rate) if rate else ABSENT,
        "memory": _memory(run),
        "last written": _written(run.path).strftime("%Y-%m-%d %H:%M"),
    }
    return dict(number=number, name=run.name, dash=_dash(number), facts=facts, **_commands(run))


def _written(folder: Path) -> datetime.datetime:
    """When a file of a run directory was last written."""
    times = [0.0]
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # replaced by a run that still trains
            times.append(path.lstat().st_mtime)
    return datetime.datetime.fromtimestamp(min(max(times), time.time()))


def _network(config: Mapping[str, Any]) -> str:
    names = ("width", "depth", "patch", "image_size")
    if not all(f"model.{name}" in config for name in names):
        return ABSENT
    width, depth, patch, size = (config[f"model.{name}"] for name in names)
    return f"ViT, width {width}, depth {depth}, patch {patch}, {size} px"


def _images(config: Mapping[str, Any]) -> str:
    name = source.title(config.get("data.kind", ""), config.get("data.name", "")) or ABSENT
    count = config.get(f"{COMPUTED}.num_records")
    return f"{name}, {count:,} images" if isinstance(count, int) else name


def _memory(run: RunFolder) -> str:
    values = run.metrics.get("memory_mib", np.zeros(0))
    values = values[np.isfinite(values)]
    return f"{values.max():,.0f} MiB" if len(values) else ABSENT


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes:.1f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _dash(number: int) -> str:
    """The SVG stroke-dasharray of a run's line, which is 2 pixels wide."""
    return " ".join(f"{2 * part:g}" for part in charts.dash(number))


def _commands(run: RunFolder) -> dict:
    """The commands that train the run and evaluate it again."""
    command = run.environment.get("command") or []
    train = _command([str(part) for part in command]) if isinstance(command, list) else ""
    return dict(train=train, eval=shlex.join(["ssl-jax", "eval", str(run.path)]))


def _command(argv: list[str]) -> str:
    """The command line of sys.argv."""
    if not argv:
        return ""
    program, *rest = argv
    path = Path(program)
    if path.name == "ssl-jax" or (path.name == "__main__.py" and path.parent.name == "ssl_jax"):
        return shlex.join(["ssl-jax", *rest])
    return shlex.join(
        ["python" if path.suffix == ".py" else program, *argv[path.suffix != ".py" :]]
    )


# --- curves


def _charts(runs) -> list[dict]:
    """Charts over the step: one per score for all runs, and one of the loss per method, because
    losses of different methods cannot be compared."""
    result: list[dict] = []

    def add(title, note, drawn, **options):
        if any(np.isfinite(line.y).any() for line in drawn):
            label = f"{title} by step of {', '.join(runs[line.run].name for line in drawn)}"
            svg = charts.lines(drawn, label=label, number=len(result), **options)
            members = [_member(line, runs) for line in drawn]
            result.append(dict(title=title, note=note, svg=svg, members=members))

    headings: dict[str, str] = {}
    for run in runs:
        headings |= {score: heading for score, (_, heading) in run.headings().items()}
    for score, heading in headings.items():
        drawn = [
            charts.Line(*comparison.learning(run, score), number)
            for number, run in enumerate(runs)
            if score in run.scores or score in run.results.get(TRAINED, {})
        ]
        add(heading, "step 0 is the untrained network", drawn)
    methods: dict[str, list[charts.Line]] = {}
    for number, run in enumerate(runs):
        if "loss" in run.metrics:
            line = charts.Line(run.metrics["step"], run.metrics["loss"], number)
            methods.setdefault(str(run.config.get("method", "")), []).append(line)
    for method, drawn in methods.items():
        note = "running mean over 5 % of the steps; faint: the values themselves"
        title = f"Loss of {method}" if method else "Loss"
        add(title, note, drawn, smooth=curves.SMOOTHING)
    return result


def _member(line: charts.Line, runs) -> dict:
    """The entry of a line in a chart's legend, with its last value."""
    finite = np.asarray(line.y)[np.isfinite(line.y)]
    last = f"{finite[-1]:.4g}" if len(finite) else ABSENT
    name = runs[line.run].name
    return dict(name=name, color=line.run % charts.COLORS, dash=_dash(line.run), last=last)


# --- pictures


def _pictures(runs) -> list[dict]:
    """The pictures, grouped by name: [{"name", "title", "images": [{"run", "src", ...}]}]."""
    names = sorted({path.stem for run in runs for path in run.pictures})
    names.sort(key=lambda name: name == "curves")  # last, because the charts show them already
    result = []
    for name in names:
        title = _SHOWN.get(name, _picture_title(name, runs))
        images = [
            dict(run=run.name, number=number, alt=f"{title}: {run.name}", **_inlined(path))
            for number, run in enumerate(runs)
            for path in run.pictures
            if path.stem == name
        ]
        result.append(dict(name=name, title=title, images=images))
    return result


def _picture_title(name: str, runs) -> str:
    """A title from the file's name: "sop_patch_neighbours" becomes "sop: patch neighbours"."""
    for run in runs:
        method = str(run.config.get("method", ""))
        if method and name.startswith(f"{method}_"):
            return f"{method}: {name.removeprefix(f'{method}_').replace('_', ' ')}"
    return name.replace("_", " ").capitalize()


def _inlined(path: Path) -> dict:
    """A picture as data URI: WebP if that is smaller, at most WIDEST pixels wide. Animations are
    not converted."""
    kind = path.suffix[1:]
    try:
        raw = reading.read_bytes(path, _LARGEST)
        # Only formats that runs write, because Pillow calls other programs for some others.
        with Image.open(io.BytesIO(raw), formats=("PNG", "GIF")) as image:
            size = image.size
            if size[0] * size[1] > _PIXELS:
                raise ValueError(f"it has {size[0]} x {size[1]} pixels")
            moving = getattr(image, "is_animated", False)
            small = image.convert("RGB")
        if size[0] > WIDEST and not moving:
            height = round(size[1] * WIDEST / size[0])
            small = small.resize((WIDEST, height), Image.Resampling.LANCZOS)
    except Exception as error:  # a broken picture can raise almost anything
        return dict(src="", why=f"{path.name} cannot be read: {error}", width=0, height=0)
    buffer = io.BytesIO()
    small.save(buffer, "WEBP", quality=_QUALITY)
    if not moving and (len(buffer.getvalue()) < len(raw) or small.size != size):
        raw, kind = buffer.getvalue(), "webp"
    data = base64.b64encode(raw).decode()
    why = f"scaled down from {size[0]} x {size[1]} pixels" if small.size != size else ""
    width, height = small.size
    return dict(src=f"data:image/{kind};base64,{data}", why=why, width=width, height=height)
