"""Lists configs and papers, and explains keys."""

import textwrap

from ml_collections import ConfigDict

from ssl_jax import config as config_lib
from ssl_jax import evals, methods, papers, settings
from ssl_jax.config import InputError

WIDTH = 100  # columns


def overview() -> str:
    """Lists the configs and papers of the package."""
    lines = ["configs: ssl-jax show --config=NAME:VARIANT", ""]
    shipped = config_lib.shipped()
    for name, path in shipped.items():
        module = config_lib.read_module(path)
        title = (module.__doc__ or "").strip().partition("\n\n")[0].replace("\n", " ")
        lines += wrapped(f"{name}: {title}")
        lines += wrapped(f"    {' '.join(module.VARIANTS)}") if hasattr(module, "VARIANTS") else []
    named = ", ".join(papers.names())
    lines += ["", *wrapped(f"papers: ssl-jax show --paper=NAME, one of {named}")]
    return "\n".join(lines)


def keys(config: ConfigDict | None, part: str) -> str:
    """Explains the keys of a config, or of all methods and evaluations; see `explained`."""
    if config is not None:
        declared = settings.keys(config.method) | evals.keys(config)
    else:
        declared = settings.keys()
        for method in methods.METHODS:
            declared |= settings.keys(method)
        for type in evals.TYPES:
            example = ConfigDict({"evals": {type: evals.new(type)}})
            declared |= evals.keys(example)
    return explained(declared, part.lower())


def explained(declared: dict[str, config_lib.Key], part: str = "") -> str:
    """Meaning, default, unit and range of each key whose name or meaning contains `part`. Raises
    InputError if there is none."""
    lines = []
    for name, entry in sorted(declared.items()):
        if part in name.lower() or part in entry.meaning.lower():
            allowed = f"one of {', '.join(map(str, entry.choices))}" if entry.choices else ""
            facts = [f"default {entry.default!r}", entry.unit, allowed or entry.range()]
            written = f"{name}: {entry.meaning} ({'; '.join(filter(None, facts))})"
            lines += wrapped(written)
    if not lines:
        raise InputError(f'no key with "{part}" in its name or meaning')
    return "\n".join(lines)


def wrapped(text: str, indent: str = "    ", width: int = WIDTH) -> list[str]:
    """Lines of at most `width` columns, the second and later ones indented."""
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)
