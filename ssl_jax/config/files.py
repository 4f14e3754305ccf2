"""Finds and runs config files."""

import importlib.util
import inspect
import re
import sys
import types
import zlib
from collections.abc import Collection
from pathlib import Path

from ml_collections import ConfigDict

from ssl_jax.config.errors import InputError, nearest, unknown


def load(name_with_arg: str, declared: Collection[str] = ()) -> ConfigDict:
    """Runs `get_config` of a config file.

    Args:
      name_with_arg: "sop:vits16" calls get_config("vits16") of the package's config sop, "sop"
        calls its get_config(). A name that ends in .py is a path: "configs/mine.py:vits16".
      declared: all keys; an error message names the nearest one.

    Returns:
      A locked config, not validated yet.

    Raises:
      InputError: the config does not exist, has no get_config, or sets an unknown key or a value of
        the wrong type.
    """
    name, _, arg = name_with_arg.partition(":")
    path, is_file, variant = f"{name_with_arg}:".partition(".py:")
    if is_file:  # whose folder may have a colon, as on Windows
        name, arg = f"{path}.py", variant.removesuffix(":")
    get_config = read_module(find(name)).get_config
    parameters = inspect.signature(get_config).parameters
    if arg and not parameters:
        raise InputError(f'{name}: get_config() has no variants, but ":{arg}" was given')
    if not arg and any(p.default is p.empty for p in parameters.values()):
        raise InputError(f"{name} needs a variant: --config={name}:NAME")
    try:
        config = get_config(arg) if arg else get_config()
    except (AttributeError, KeyError, TypeError) as error:
        # Raised by ml_collections for an unknown key or a wrong type.
        raise InputError(f"{name_with_arg}: {_reason(error, declared)}") from error
    if not isinstance(config, ConfigDict):
        raise InputError(
            f"{name}: get_config must return an ml_collections.ConfigDict, got"
            f" {type(config).__name__}"
        )
    return config.lock()


def find(name: str) -> Path:
    """The file of a config, given by a path that ends in .py or a name of `shipped`.

    Raises:
      InputError: no such file, or no shipped config of that name.
    """
    path = Path(name)
    if path.suffix != ".py":
        names = shipped()
        if name not in names:
            raise InputError(unknown("config", name, names))
        return names[name]
    if not path.is_file():
        if path.stem in shipped():
            raise InputError(f'no file "{name}" here; the package has it as --config={path.stem}')
        siblings = path.parent.glob("*.py") if path.parent.is_dir() else ()
        raise InputError(unknown("config file", name, sorted(map(str, siblings))))
    return path


def shipped() -> dict[str, Path]:
    """{name: file} of the package's configs, in its folder configs/ or in that of the checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "configs"
    folder = installed if installed.is_dir() else package.parent / "configs"
    return {
        path.stem: path
        for path in sorted(folder.glob("*.py"))
        if "\ndef get_config(" in path.read_text(encoding="utf-8")
    }


def read_module(path: Path) -> types.ModuleType:
    """Runs a config file and returns its module, which has a get_config. It may import other files
    of its folder: `from . import shared`.

    Raises:
      InputError: not a .py file, not valid Python, no get_config, or a failing import.
    """
    path = path.resolve()
    # The folder becomes a package with a unique name, so that relative imports work anywhere.
    package = f"_ssl_jax_configs_{zlib.crc32(str(path.parent).encode()):08x}"
    if package not in sys.modules:
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = [str(path.parent)]
    spec = importlib.util.spec_from_file_location(f"{package}.{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file; the name of a config must end in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise InputError(f"{error.filename or path}{line}: {error.msg}") from error
    except ValueError as error:
        if "null bytes" not in str(error):  # a SyntaxError since Python 3.11.4
            raise
        raise InputError(f"{path}: {error}") from error
    except ImportError as error:
        raise InputError(f"{path}: {error}; install it, or put its folder on PYTHONPATH") from error
    if not callable(getattr(module, "get_config", None)):
        raise InputError(f"{path} defines no get_config(arg)")
    return module


def _reason(error: Exception, declared: Collection[str]) -> str:
    """One line for an error of ml_collections about a wrong type or an unknown key, whose section
    the error lists.
    """
    text = " ".join(str(error.args[0] if error.args else error).split())
    key = re.search(r'Key "(.+?)" does not exist', text)
    if key is None:
        return f"{type(error).__name__}: {text}".replace(" (reference)", "")
    present = re.findall(r"'(\w+)\\?': ", text)
    return unknown("config key", key[1], present if nearest(key[1], present) else declared)
