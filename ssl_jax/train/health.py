"""Reports the health of a run: each warning of the method about its metrics once, and once that a
rising curve is expected.
"""

import statistics

from ssl_jax.methods import Method

_ROWS = 5  # rows whose mean is compared, so that noise does not count as a rise
_RISE = 0.03  # relative increase that counts as a rise


class Monitor:
    """Watches metric rows. A warning is reported once it has lasted `patience` consecutive rows,
    and again only if it returns after a pause.
    """

    def __init__(self, method: Method, patience: int = 3):
        self._method, self._patience = method, patience
        self._seen: dict[str, int] = {}
        self._rises = {name: m for name, m in method.meanings.items() if m.rises_with}
        self._rows: list[dict] = []
        # {curve: (its lowest mean, the mean of its `rises_with` curve at that time)}
        self._lowest: dict[str, tuple[float, float]] = {}

    def __call__(self, row: dict) -> list[str]:
        """The new lines at this row: "warning: ..." with the likely cause, and "note: ..."."""
        current = self._method.health(row)
        kinds = {text.split(":")[0]: text for text in current}
        self._seen = {kind: self._seen.get(kind, 0) + 1 for kind in kinds}
        new = [text for kind, text in kinds.items() if self._seen[kind] == self._patience]
        notes = self._notes(row) if not current else []
        return [f"warning: {text}" for text in new] + [f"note: {text}" for text in notes]

    def _notes(self, row) -> list[str]:
        self._rows = [*self._rows[1 - _ROWS :], row]
        for name, meaning in self._rises.items():
            if len(self._rows) < _ROWS or name not in row or meaning.rises_with not in row:
                continue
            mean, other = (
                statistics.fmean(r[n] for r in self._rows) for n in (name, meaning.rises_with)
            )
            lowest, other_then = self._lowest.setdefault(name, (mean, other))
            if mean < lowest:
                self._lowest[name] = mean, other
            elif mean > lowest + _RISE * abs(lowest) and other > other_then:
                # Among curves that rise for the same reason, only the first is reported.
                self._rises = {n: m for n, m in self._rises.items() if m.why != meaning.why}
                return [f"{name} is rising, which is expected here: {meaning.why}"]
        return []
