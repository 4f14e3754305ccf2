"""`ssl-jax report`: one HTML page that compares runs."""

import datetime

from absl import flags

from ssl_jax.config import InputError, local

HELP = """ssl-jax report RUN [RUN ...] [--out=report.html] [--title=TEXT]

Writes one HTML page that compares runs: scores beside their baselines, curves, pictures, settings
that differ, commands, environment. The page is one file, needs no network and runs no script. A
run that is still training shows what it has so far.

  RUN           a run directory
  --out=FILE    file to write; an earlier report there is replaced
  --title=TEXT  title of the page; default: the names of the runs

Examples:
  ssl-jax report runs/a
  ssl-jax report runs/sop-0 runs/dino-0 --out=comparison.html --title="SOP and DINO"

Exit codes: 0 done; 2 bad input; 1 unexpected error.
"""


def run(argv: list[str]) -> int:
    """Runs the command; returns the exit code."""
    values = flags.FlagValues()
    flags.DEFINE_string("out", "report.html", "", flag_values=values)
    flags.DEFINE_string("title", "", "", flag_values=values)
    folders = values(argv)[1:]
    if not folders:
        raise InputError("report needs a run directory; for example ssl-jax report runs/a runs/b")
    out = local(values.out)
    if out.suffix not in (".html", ".htm"):
        raise InputError(f'--out is "{out}"; it must end in .html')
    if not out.parent.is_dir():
        raise InputError(f"--out is {out}, but the folder {out.parent} does not exist; create it")
    if out.exists() and b"ssl-jax report</title>" not in out.read_bytes():
        raise InputError(f"--out: {out} exists and is not a report; choose another name")

    from ssl_jax import evals  # noqa: F401  # registers the types, whose headings are shown
    from ssl_jax.report import folders as run_folders
    from ssl_jax.report import page

    runs = run_folders.read(folders)
    text = page.html(runs, title=values.title, now=datetime.datetime.now())
    out.write_text(text, encoding="utf-8")
    size = out.stat().st_size / 2**20
    pictures = sum(len(run.pictures) for run in runs)
    unfinished = [run.name for run in runs if not run.results]
    note = f"; no results yet of {', '.join(unfinished)}" if unfinished else ""
    print(f"{out}: {_count(len(runs), 'run')}, {_count(pictures, 'picture')}, {size:.1f} MiB{note}")
    return 0


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
