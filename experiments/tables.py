"""Tables in Markdown, the places of documents that hold them, and where numbers were made."""

import json
import os
import platform
import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def spread(values, sign: str = "") -> str:
    """ "12.3 ± 0.4", mean and sample standard deviation; one value has none, no value is "-"."""
    values = list(values)
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):{sign}.1f}"
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


def markdown(rows) -> str:
    """A table of rows of cells, the first row its heading."""
    heading, *body = [[str(cell) for cell in row] for row in rows]
    lines = [heading, ["---"] * len(heading), *body]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def show(rows, file: Path) -> str:
    """Prints a table of rows of cells and keeps it in a file; returns its text."""
    text = markdown(rows)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    print("\n" + text)
    return text


def fill(document: Path | str, name: str, text: str) -> None:
    """Replaces what stands between the lines `<!-- NAME -->` and `<!-- end of NAME -->` of a
    document, a path below ROOT or a whole one. Raises ValueError if they are not there once, in
    this order."""
    before, _, after = _around(document, name)
    (ROOT / document).write_text(before + text + after, encoding="utf-8")


def filled(document: Path | str, name: str) -> str:
    """What stands there. Raises ValueError as `fill`."""
    return _around(document, name)[1]


def _around(document: Path | str, name: str) -> tuple[str, str, str]:
    """A document up to the end of the first line, between them, and from the second line on."""
    old = (ROOT / document).read_text(encoding="utf-8")
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    if old.count(start) != 1 or old.count(end) != 1 or old.index(start) > old.index(end):
        raise ValueError(f"{document} needs one line {start.strip()} and one {end.strip()} below")
    before, rest = old.split(start)
    inside, after = rest.split(end)
    return before + start, inside, end + after


def made(folder: Path | None = None) -> dict:
    """With what a run on this machine was made, of its environment.json; without a folder, with
    what is checked out and installed."""
    import jax

    from ssl_jax.train import log

    file = Path(folder or "", "environment.json")
    there = json.loads(file.read_text()) if folder and file.exists() else {}
    devices = there.get("devices") or [f"{d.platform} {d.device_kind}" for d in jax.devices()]
    kinds = [name.partition(" ")[2] for name in devices if not name.startswith("cpu ")]
    return {
        "commit": (there.get("git") or log.git_revision() or "unknown")[:7],
        "processor": processor(),
        "cores": os.cpu_count() if folder else cores(),
        "accelerators": f"{len(kinds)} x {kinds[0]}" if kinds else "",
        "python": there.get("python", platform.python_version()),
        "jax": there.get("versions", {}).get("jax", jax.__version__),
    }


def provenance(*where: Path | dict) -> str:
    """Where and with what numbers were made, as one sentence. where: run folders, or what `made`
    says of them; none: of what was measured just now."""
    every = [one if isinstance(one, dict) else made(one) for one in where] or [made()]

    def each(form: str) -> str:
        return ", ".join(dict.fromkeys(form.format(**one) for one in every))

    parts = [each("{processor} ({cores} cores)").replace("(1 cores)", "(1 core)")]
    parts += sorted({one["accelerators"] for one in every if one.get("accelerators")})
    versions = f"Python {each('{python}')}, jax {each('{jax}')}"
    return f"Commit {each('{commit}')}; {', '.join(parts)}; {versions}."


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The name of the processor as Linux has it, else of its kind."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
