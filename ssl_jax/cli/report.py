"""`ssl-jax report`: one HTML page that compares runs."""

import argparse
import datetime

from ssl_jax.config import InputError, local, reading
from ssl_jax.runtime import writing


def run(options: argparse.Namespace) -> int:
    out = local(options.out)
    if out.suffix not in (".html", ".htm"):
        raise InputError(f'--out is "{out}"; it must end in .html')
    if not out.parent.is_dir():
        raise InputError(f"--out is {out}, but the folder {out.parent} does not exist; create it")
    if out.exists() and b"ssl-jax report</title>" not in reading.read_bytes(out):
        raise InputError(f"--out: {out} exists and is not a report; choose another name")
    writing.check(out)

    from ssl_jax import evals  # noqa: F401  # registers the types, whose headings are shown
    from ssl_jax.report import folders as run_folders
    from ssl_jax.report import page

    runs = run_folders.read(options.run)
    text = page.html(runs, title=options.title, now=datetime.datetime.now())
    writing.replace({out: text.encode()})
    size = out.stat().st_size / 2**20
    pictures = sum(len(run.pictures) for run in runs)
    unfinished = [run.name for run in runs if not run.results]
    note = f"; no results yet of {', '.join(unfinished)}" if unfinished else ""
    print(f"{out}: {_count(len(runs), 'run')}, {_count(pictures, 'picture')}, {size:.1f} MiB{note}")
    return 0


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
