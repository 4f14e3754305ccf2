"""Is it stable, is it learning: collects each method's warnings from the metrics and says each of
them once.
"""

from ssl_jax.methods import Method


class Monitor:
    """Watches metric rows; a warning that stands for `patience` rows in a row is reported once, and
    again only after it went away.
    """

    def __init__(self, method: Method, patience: int = 3):
        self._method, self._patience = method, patience
        self._seen: dict[str, int] = {}

    def __call__(self, row: dict) -> list[str]:
        """New warnings at this row; each names the likely cause."""
        current = self._method.health(row)
        kinds = {text.split(":")[0]: text for text in current}
        self._seen = {kind: self._seen.get(kind, 0) + 1 for kind in kinds}
        return [text for kind, text in kinds.items() if self._seen[kind] == self._patience]
