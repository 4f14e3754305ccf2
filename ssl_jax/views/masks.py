"""Patch masks, drawn on the host in NumPy: blockwise as in BEiT and iBOT, or uniformly random."""

import math
from dataclasses import dataclass

import numpy as np

from ssl_jax.config import InputError, check_choice
from ssl_jax.views import section

ATTEMPTS = 10
FOCUS = ("gaussian", "window", "none")
ASPECT = (0.3, 1 / 0.3)  # of a block, height / width


@dataclass(frozen=True)
class MaskRecipe:
    """How the patches of a view are masked.

    Attributes:
      kind: "block" (iBOT) or "random".
      ratio: (lo, hi) share of the patches, drawn uniformly per view.
      prob: probability that a view is masked at all.
      block: patches of the smallest rectangle of a block mask; 0 = as iBOT, see `block_mask`.
      drop: the encoder drops masked patches instead of replacing them: needs a fixed count, hence
        "random", lo = hi, prob 1.
      focus: the places that a random mask of fixed count prefers to keep: "none" (all equally),
        "gaussian" (those near a random one) or "window" (a random square), as STELLAR masks.
      focus_prob: probability that a view has a focus.

    Raises:
      InputError: a value is out of range.
    """

    kind: str = "block"
    ratio: tuple[float, float] = (0.3, 0.3)
    prob: float = 1.0
    block: int = 0
    drop: bool = False
    focus: str = "none"
    focus_prob: float = 0.5

    def __post_init__(self):
        check_choice("kind", self.kind, ("block", "random"))
        section.KEYS["mask_ratio"].check("ratio", self.ratio)
        for name in ("prob", "focus_prob"):
            section.KEYS["mask_prob"].check(name, getattr(self, name))
        check_choice("focus", self.focus, FOCUS)
        if self.focus != "none" and not self.drop:
            raise InputError(
                f'focus is "{self.focus}", which chooses what is kept; it needs drop=True'
            )
        if self.drop and not (
            self.kind == "random" and self.ratio[0] == self.ratio[1] and self.prob == 1
        ):
            raise InputError(
                'drop needs a fixed number of patches: use kind="random", ratio=(r, r) and prob=1'
            )

    def max_masked(self, n: int) -> int:
        """The largest number of masked patches out of n that a view can have."""
        if self.drop:
            return n - self.visible(n)
        return floor(self.ratio[1] * n)

    def visible(self, n: int) -> int:
        """Number of patches out of n that remain when masked ones are dropped: floor(n (1 - ratio))
        (MAE, STELLAR).
        """
        return floor(n * (1 - self.ratio[0]))


def floor(x: float) -> int:
    """Floor of x >= 0 that treats 19.999999999999996 (= 100 (1 - 0.8)) as 20."""
    return int(x + 1e-6)


def draw(rng: np.random.Generator, recipe: MaskRecipe, grid: tuple[int, int]) -> np.ndarray:
    """Mask of one view: bool [rows * columns], row-major, True = masked. Advances the
    np.random.Generator `rng`.
    """
    rows, columns = grid
    if recipe.drop:
        return focal_mask(
            rng, grid, recipe.visible(rows * columns), focus=recipe.focus, prob=recipe.focus_prob
        )
    masked, share = rng.random() < recipe.prob, rng.random()
    target = (
        (recipe.ratio[0] + (recipe.ratio[1] - recipe.ratio[0]) * share) * rows * columns
        if masked
        else 0.0
    )
    if recipe.kind == "random":
        return random_mask(rng, rows * columns, floor(target))
    return block_mask(rng, grid, target, recipe.block).reshape(-1)


def random_mask(rng: np.random.Generator, n: int, count: int) -> np.ndarray:
    """bool [n] with exactly `count` True at uniformly random places."""
    mask = np.zeros(n, bool)
    mask[np.argsort(rng.random(n), kind="stable")[:count]] = True
    return mask


def focal_mask(
    rng: np.random.Generator,
    grid: tuple[int, int],
    keep: int,
    *,
    focus: str = "none",
    prob: float = 0.5,
) -> np.ndarray:
    """bool [rows * columns], True = masked, with exactly `keep` False: those of the smallest scores
    (STELLAR's masks).

    Scores are uniform in [0, 1). With probability `prob` a view has a focus: "gaussian" subtracts
    exp(-d^2 / (2 (sigma max(grid))^2)) with d the distance in cells to a random cell and sigma
    uniform in (0.1, 0.5); "window" sets a random square of side floor(sqrt(keep)) to 0.
    """
    rows, columns = grid
    scores = rng.random(grid)
    if focus != "none" and rng.random() < prob:
        if focus == "gaussian":
            y, x, sigma = (
                int(rng.random() * rows),
                int(rng.random() * columns),
                0.1 + 0.4 * rng.random(),
            )
            squared = (np.arange(rows)[:, None] - y) ** 2 + (np.arange(columns) - x) ** 2
            scores -= np.exp(-squared / (2 * (sigma * max(grid)) ** 2))
        else:
            h, w = min(rows, math.isqrt(keep)), min(columns, math.isqrt(keep))
            y, x = int(rng.random() * (rows - h + 1)), int(rng.random() * (columns - w + 1))
            scores[y : y + h, x : x + w] = 0.0
    mask = np.ones(rows * columns, bool)
    mask[np.argsort(scores.reshape(-1), kind="stable")[:keep]] = False
    return mask


def block_mask(
    rng: np.random.Generator, grid: tuple[int, int], target: float, smallest: int = 0
) -> np.ndarray:
    """Blockwise mask of iBOT's published code (BEiT's algorithm with a hard upper limit).

    While fewer than `target` patches are masked: up to 10 attempts at a rectangle of area
    U(smallest, what is missing) and log-uniform aspect ratio in (0.3, 1 / 0.3),
    smaller than the grid, placed uniformly, that adds at least one patch and no more than are
    missing. Ends when no attempt succeeds.

    Args:
      grid: (rows, columns) of patches; target: number of patches wanted, may be fractional.
      smallest: 0 = floor(min(grid) / 3)^2, as iBOT; DINOv2 has 4.

    Returns:
      bool [rows, columns] with at most floor(target) True; may fall short, may be empty.
    """
    rows, columns = grid
    mask = np.zeros(grid, bool)
    smallest = smallest or (min(grid) // 3) ** 2
    log_lo, log_hi = math.log(ASPECT[0]), math.log(ASPECT[1])
    missing = target + 1e-6 if target > 0 else 0.0  # the same tolerance as `floor`
    uniform = rng.random
    while missing >= 1:
        for _ in range(ATTEMPTS):
            # Below `smallest` when less than that is missing.
            area = smallest + (missing - smallest) * uniform()
            aspect = math.exp(log_lo + (log_hi - log_lo) * uniform())
            h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if h >= rows or w >= columns:
                continue
            top, left = int(uniform() * (rows - h + 1)), int(uniform() * (columns - w + 1))
            block = mask[top : top + h, left : left + w]
            new = h * w - int(np.count_nonzero(block))
            if 0 < new <= missing:
                block[:] = True
                missing -= new
                break
        else:
            break
    return mask
