"""Configs: declares keys, loads config files, stores and compares configs.

A config is a plain `ml_collections.ConfigDict`. Each of its keys is declared once as a `Key`, next
to the code that reads it, in the dict returned by the module's function `defaults()`;
`ssl_jax.settings` joins the sections.
"""

from ssl_jax.config.errors import (
    InputError,
    MissingFile,
    Unavailable,
    did_you_mean,
    exit_code,
    full_reason,
    nearest,
    reason,
    refusal,
    unknown,
)
from ssl_jax.config.files import find, load, read_module, shipped
from ssl_jax.config.keys import (
    Key,
    build,
    check_choice,
    check_multiple,
    field,
    free_on_resume,
    is_mapping,
    key,
    keys_of,
    settings_of,
    with_defaults,
    wrong_type,
)
from ssl_jax.config.paths import absolute, local
from ssl_jax.config.stored import (
    COMPUTED,
    OPEN,
    changed,
    compare_for_resume,
    fingerprint,
    flatten,
    from_json,
    json_object,
    read_json,
    to_json,
)

__all__ = [
    "COMPUTED",
    "OPEN",
    "InputError",
    "Key",
    "MissingFile",
    "Unavailable",
    "absolute",
    "build",
    "changed",
    "check_choice",
    "check_multiple",
    "compare_for_resume",
    "did_you_mean",
    "exit_code",
    "find",
    "field",
    "fingerprint",
    "flatten",
    "free_on_resume",
    "from_json",
    "full_reason",
    "is_mapping",
    "json_object",
    "key",
    "keys_of",
    "load",
    "local",
    "nearest",
    "read_json",
    "read_module",
    "reason",
    "refusal",
    "settings_of",
    "shipped",
    "to_json",
    "unknown",
    "with_defaults",
    "wrong_type",
]
