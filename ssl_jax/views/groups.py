"""View recipes: how many views of which size and kind one image yields, in named groups."""

from dataclasses import dataclass

from ssl_jax.config import InputError, check_multiple
from ssl_jax.views import section
from ssl_jax.views.erasing import Erasing
from ssl_jax.views.masks import MaskRecipe
from ssl_jax.views.mixing import Mixing
from ssl_jax.views.photometric import Photometric
from ssl_jax.views.randaugment import RandAugment

# Names of a batch that no group may have.
RESERVED = (
    *("source", "row", "source_size", "index", "epoch", "replaced", "stop"),
    *("label", "partner", "share"),
)


@dataclass(frozen=True)
class GroupRecipe:
    """The views of one size that one image yields.

    Attributes:
      count: views; size: of a view, pixels (square); patch: of the network, pixels.
      scale: (lo, hi) share of the image area; ratio: (lo, hi) width / height.
      flip: probability of a horizontal flip. photometric: one per view, or () for none.
      mask: of every view of this group, or None.
      inside: name of an earlier group; view v is a crop of that group's view v % count, after it
        was cropped and resized (FLSL's nested crops): `scale` is the share of that view, flips
        combine, and the image is still resampled only once.
      reuse: name of an earlier group; view v repeats the box and the flip of that group's view v,
        if it exists (STELLAR's first masked view shows the region of the main view). Further views
        are drawn as usual.
      randaugment: of every view cropped on the host, or None; not for crops on the device.
      erasing: of every view, after all other draws, or None.
      bilinear: whether crops on the host are resampled bilinearly, see `crops.crops_host`.

    Raises:
      InputError: a value is out of range or contradicts another.
    """

    count: int
    size: int
    scale: tuple[float, float]
    patch: int
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    photometric: tuple[Photometric, ...] = ()
    mask: MaskRecipe | None = None
    inside: str = ""
    reuse: str = ""
    randaugment: RandAugment | None = None
    erasing: Erasing | None = None
    bilinear: bool = False

    def __post_init__(self):
        section.KEYS["global_count"].check("count", self.count)
        section.KEYS["global_scale"].check("scale", self.scale)
        section.KEYS["flip"].check("flip", self.flip)
        for name in ("size", "patch"):
            section.KEYS["global_size"].check(name, getattr(self, name))
        check_multiple("size", self.size, self.patch, "patch")
        if len(self.ratio) != 2 or not 0 < self.ratio[0] <= self.ratio[1]:
            raise InputError(f"ratio is {self.ratio}; use (lo, hi) with 0 < lo <= hi")
        if len(self.photometric) not in (0, self.count):
            raise InputError(
                f"photometric has {len(self.photometric)} entries; give one per view, {self.count}"
            )

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of patches."""
        return self.size // self.patch, self.size // self.patch

    @property
    def patches(self) -> int:
        """Patches of a view."""
        return self.grid[0] * self.grid[1]


@dataclass(frozen=True)
class ViewRecipe:
    """All views of one image: named groups, in order. Hashable, so it can be static under jit.

    Attributes:
      groups: (name, recipe) in order.
      classes: number of classes of the images' labels; 0 = labels are not used.
      repeats: how often a batch contains each of its records, with different draws each time.
      mix: how the images of a batch are mixed, or None. Needs labels.
      patch_labels: whether batches include the classes of the patches, from the images' masks.
    """

    groups: tuple[tuple[str, GroupRecipe], ...]
    classes: int = 0
    repeats: int = 1
    mix: Mixing | None = None
    patch_labels: bool = False

    def __post_init__(self):
        if self.mix and not self.classes:
            raise InputError("images can only be mixed with their labels; set classes")
        if self.repeats < 1:
            raise InputError(f"repeats is {self.repeats}; use at least 1")
        names = [name for name, _ in self.groups]
        if not names:
            raise InputError("a view recipe needs at least one group")
        if len(set(names)) < len(names) or set(names) & set(RESERVED):
            raise InputError(
                f"group names {names} must differ from each other and from {list(RESERVED)}"
            )
        for i, (name, group) in enumerate(self.groups):
            for key in ("inside", "reuse"):
                other = getattr(group, key)
                if other and other not in names[:i]:
                    raise InputError(
                        f'group "{name}": {key} is "{other}", which is none of the groups before'
                        f" it, {names[:i]}"
                    )

    def __getitem__(self, name: str) -> GroupRecipe:
        return dict(self.groups)[name]


def max_masked(recipe: ViewRecipe, name: str) -> int:
    """The largest number of masked patches that a view of the named group can have; 0 without
    masks.
    """
    group = recipe[name]
    return group.mask.max_masked(group.patches) if group.mask else 0
