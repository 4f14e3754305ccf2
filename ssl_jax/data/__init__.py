"""Images as sources of records: `source` describes and opens them, `register` adds a kind."""

# In the order in which kinds are listed.
# isort: off
from ssl_jax.data import embedded, folder, table, tars, huggingface, tfds, layouts, python  # noqa: F401
from ssl_jax.data.kinds import register

__all__ = ["register"]
