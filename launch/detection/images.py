"""The images of launch/detection: a COCO file and its folder, changed for training."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from faster_coco_eval import COCO
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

from ssl_jax.config import InputError, reading


class Crop(v2.Transform):
    """A part of the image; each side is drawn from `smallest` to `largest` pixels, or as long as
    the image where that is shorter."""

    def __init__(self, smallest: int, largest: int):
        super().__init__()
        self.smallest, self.largest = smallest, largest

    def make_params(self, flat_inputs):
        sides, corner = [], []
        for length in v2.query_size(flat_inputs):
            least, most = min(self.smallest, length), min(self.largest, length)
            sides.append(int(torch.randint(least, most + 1, ())))
            corner.append(int(torch.randint(length - sides[-1] + 1, ())))
        return dict(top=corner[0], left=corner[1], height=sides[0], width=sides[1])

    def transform(self, inpt, params):
        return v2.functional.crop(inpt, **params)


def augmentation(p) -> v2.Transform:
    """How a protocol changes a training image with its boxes and masks."""
    resize = v2.RandomShortestSize(p.short, p.long)
    steps: list[v2.Transform] = [resize]
    if p.jitter:
        steps = [v2.ScaleJitter((p.long, p.long), tuple(p.jitter)), Crop(p.long, p.long)]
    elif p.crop:
        cut = v2.Compose([v2.RandomShortestSize([400, 500, 600]), Crop(384, 600), resize])
        steps = [v2.RandomChoice([resize, cut])]
    return v2.Compose([v2.RandomHorizontalFlip(p.flip), *steps, v2.SanitizeBoundingBoxes()])


class Images(torch.utils.data.Dataset):
    """Images of a COCO file in a folder.

    x[position, record] is one for training: (image [3, H, W] in [0, 1], {"boxes": [n, 4] corners,
    "labels": [n] from 1 on, "masks": [n, H, W] for Mask R-CNN}). What is drawn depends on the seed
    and the position alone. Crowds are left out, as are images without an object of their own.

    Raises:
      InputError: a file that is not COCO's, images that are not there, no masks for Mask R-CNN.
    """

    def __init__(self, file: Path, folder: Path, p, seed: int | None = None):
        """seed: None: all images, for testing."""
        self.folder, self.seed, self.change = folder, seed or 0, augmentation(p)
        self.masks = p.detector == "mask"
        try:
            self.coco = COCO(reading.parse_json(reading.read_text(file)))
            self.categories = sorted(self.coco.cats)  # label 1 is the first one
            self.names = [self.coco.cats[c]["name"] for c in self.categories]
            self.ids = sorted(self.coco.imgs)
            paths = [folder / self.coco.imgs[i]["file_name"] for i in self.ids]
            objects = [a for i in self.ids for a in self._objects(i)]
            lacking = {a["category_id"] for a in objects} - set(self.categories)
        except OSError as error:
            raise InputError(f"{file}: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
            raise InputError(f"{file} is not in COCO's form: {error!r}") from error
        absent = [path for path in paths if not path.is_file()]
        if absent:
            raise InputError(f"{file}: {len(absent)} images are not there, {absent[0]} first")
        if lacking or not objects:
            problem = f"has no category {min(lacking)}" if lacking else "has no object"
            raise InputError(f"{file} {problem}")
        if self.masks and not all(a.get("segmentation") for a in objects):
            raise InputError(f"{file} has objects without segmentation; --set detector=faster")
        if seed is not None:
            self.ids = [i for i in self.ids if self._objects(i)]

    def _objects(self, image: int) -> list[dict]:
        found = [a for a in self.coco.imgToAnns[image] if not a.get("iscrowd")]
        return [a for a in found if min(a["bbox"][2:]) > 0]

    def open(self, record: int) -> torch.Tensor:
        """uint8 [3, H, W]. Raises InputError for a file that is no image."""
        path = self.folder / self.coco.imgs[self.ids[record]]["file_name"]
        try:
            with Image.open(path, formats=("JPEG", "PNG")) as image:
                return v2.functional.to_image(image.convert("RGB"))
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error}") from error

    def __getitem__(self, place: tuple[int, int]) -> tuple[torch.Tensor, dict]:
        position, record = place
        torch.manual_seed(self.seed * 2**32 + position)
        image, found = self.open(record), self._objects(self.ids[record])
        size = image.shape[-2:]
        boxes = tv_tensors.BoundingBoxes(
            np.array([a["bbox"] for a in found], np.float32), format="XYWH", canvas_size=size
        )
        labels = torch.tensor([1 + self.categories.index(a["category_id"]) for a in found])
        boxes = v2.functional.convert_bounding_box_format(boxes, new_format="XYXY")
        target = dict(boxes=v2.functional.clamp_bounding_boxes(boxes), labels=labels)
        if self.masks:
            target["masks"] = tv_tensors.Mask(np.array([self.coco.annToMask(a) for a in found]))
        image, target = self.change(image, target)
        return image.as_subclass(torch.Tensor) / 255, target

    def batches(self, size: int, start: int, steps: int) -> Iterator[list[tuple[int, int]]]:
        """Batches of (position, record) from a step on; every epoch has an order of its own."""
        of, order = -1, list[int]()
        for step in range(start, steps):
            batch = []
            for position in range(step * size, (step + 1) * size):
                epoch, place = divmod(position, len(self.ids))
                if epoch != of:
                    draws = torch.Generator().manual_seed(self.seed * 2**32 + epoch)
                    of, order = epoch, torch.randperm(len(self.ids), generator=draws).tolist()
                batch.append((position, order[place]))
            yield batch
