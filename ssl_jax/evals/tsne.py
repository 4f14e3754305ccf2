"""t-SNE of image vectors (SOP figures C.2 and C.3) and, block by block, of patches (FLSL figure
4b). The score is the trustworthiness of the picture of image vectors.
"""

import dataclasses

import numpy as np

from ssl_jax.config import InputError, field
from ssl_jax.evals.case import Case
from ssl_jax.evals.registry import Protocol, register_module
from ssl_jax.features.extract import Extracted
from ssl_jax.features.windows import central, cut, window
from ssl_jax.losses.segmentation import IGNORE
from ssl_jax.methods.pictures import similarity
from ssl_jax.methods.pictures.base import Scatter, class_name
from ssl_jax.models import zoo
from ssl_jax.scores import tsne
from ssl_jax.scores.metrics import num_classes
from ssl_jax.scores.segmentation import patch_labels

PROTOCOLS = {
    "sop": Protocol("SOP figures C.2 and C.3", {"perplexity": 30.0, "dimensions": 3}),
    "flsl": Protocol("FLSL figure 4b, how many images is not said", {"patches": 4}),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    perplexity: float = field(
        30.0, "perplexity, roughly the number of neighbours of a point", above=1, most=10000
    )
    dimensions: int = field(2, "number of dimensions of the picture", least=2, most=3)
    patches: int = field(
        0,
        "number of images whose patches are also drawn, before the blocks and after each quarter"
        " of them, coloured by the class of their mask, or by image; 0 = none",
        "images",
        least=0,
        most=1000,
    )


def _points(case: Case, settings: Settings) -> tuple[Extracted, np.ndarray]:
    """(features of the test images, a point for each). Raises InputError for too few images."""
    test = case.features("test", "image")

    def embedded(case):
        how = dict(perplexity=settings.perplexity, dimensions=settings.dimensions, seed=case.seed)
        try:
            return tsne.embed(test.image, **how)
        except ValueError as error:
            raise InputError(f"{error}; raise test_examples or lower perplexity") from error

    return test, case.cached("tsne", embedded)


def score(case: Case, settings: Settings) -> dict[str, float]:
    """`tsne`, trustworthiness in percent: 100 if neighbours in the picture are also neighbours
    among the features (Venna & Kaski 2001, scikit-learn)."""
    test, points = _points(case, settings)
    return {"tsne": 100 * tsne.trust(test.image, points)}


def figures(case: Case, settings: Settings) -> dict[str, Scatter]:
    """{"tsne": the test images as points, coloured by class if they have labels; and pictures of
    patches, see `_of_patches`}."""
    test, points = _points(case, settings)
    labels, names = test.labels, case.test.class_names
    classes = () if labels is None else np.unique(labels).tolist()
    legend = tuple((label, class_name(names, label)) for label in classes)
    title = f"t-SNE of {len(points)} image vectors, perplexity {settings.perplexity:g}"
    drawn = {"tsne": Scatter(title, points, labels, legend)}
    if settings.patches and case.network.encoder is not None:
        drawn |= _of_patches(case, settings, test.index[: settings.patches])
    return drawn


def _of_patches(case: Case, settings: Settings, index: np.ndarray) -> dict[str, Scatter]:
    """{"tsne_0": patches of these test images before the first block, "tsne_3": after the third
    block, ...}, without patches that have no class."""
    assert case.network.encoder is not None
    depth = zoo.vit_config(case.network.encoder.config.model).depth
    images = case.images(case.test, index)
    features = case.network.encoder(images, layers=similarity.quarters(depth))
    size, names = features.patches.shape[1:3], case.test.mask_names
    masks = np.stack([_mask(case, int(i), images.shape[1:3]) for i in index])
    drawn = {}
    for block, tokens in (features.layers or {}).items():
        patches = np.asarray(tokens.on_grid(*size))
        labels = patch_labels(masks, patches.shape[1:3], num_classes=num_classes(masks))
        labelled = labels != IGNORE
        points = tsne.embed(
            patches[labelled],
            perplexity=min(settings.perplexity, max(2.0, (labelled.sum() - 1) / 3)),
            dimensions=settings.dimensions,
            seed=case.seed,
        )
        legend = tuple((x, class_name(names, x)) for x in np.unique(labels[labelled]).tolist())
        title = f"t-SNE of the patches of {len(images)} images, {similarity.title_of(block, depth)}"
        drawn[f"tsne_{block + 1}"] = Scatter(title, points, labels[labelled], legend)
    return drawn


def _mask(case: Case, index: int, size: tuple[int, int]) -> np.ndarray:
    """The mask [H, W] of a test image, cropped like the image. Without one, it is filled with a
    number derived from the index, so that patches are coloured by image."""
    mask = case.test[index].get("mask")
    if mask is None:
        return np.full(size, index % IGNORE, np.uint8)
    part = window(mask.shape, case.config.crop, case.patch)
    return cut(cut(mask, part), central(part.size, size))


register_module(__name__)
