"""See `feed.ahead`."""

from ssl_jax.features.feed import ahead as ahead
