"""The section `views` of a config: what is refused, with the key that is wrong."""

import pytest

from ssl_jax import config as config_lib
from ssl_jax.config import InputError
from ssl_jax.models import zoo
from ssl_jax.views import recipe, section


def check(**changes):
    """Checks the section as `settings.validate` does, and returns it."""
    config = config_lib.build(dict(views=section.defaults(), model=zoo.defaults()))
    for key, value in changes.items():
        config.views[key] = value
    for name, key in section.defaults().items():
        key.check(f"views.{name}", config.views[name])
    section.check(config)
    return config.views


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"global_size": 220},
            r"views.global_size is 220, not a multiple of 16 \(model.patch\); use 208 or 224",
        ),
        ({"local_size": 8}, r"views.local_size is 8, not a multiple of 16 .*; use 16"),
        ({"global_scale": (0.0, 1.0)}, "views.global_scale is"),
        ({"local_scale": (0.3, 0.1)}, "views.local_scale is .*low <= high"),
        ({"local_scale": (0.3, 1.1)}, "views.local_scale is .*at most 1"),
        ({"global_count": 0}, "views.global_count is 0"),
        ({"local_count": -1}, "views.local_count is -1"),
        ({"jitter": (0.4, -0.4, 0.2, 0.1)}, "views.jitter is"),
        ({"jitter": (0.4, 0.4, 0.2, 0.6)}, "views.jitter is .*hue .* at most 0.5"),
        ({"blur_prob": (1.0, 1.1, 0.5)}, r"views.blur_prob is \(1.0, 1.1, 0.5\)"),
        ({"blur_prob": (1.0, 0.1)}, "views.blur_prob is"),
        ({"blur_radius": (0.0, 2.0)}, "views.blur_radius is"),
        ({"solarize_prob": -0.2}, "views.solarize_prob is"),
        ({"flip": 2.0}, "views.flip is 2.0"),
        ({"mask": "grid"}, 'views.mask is "grid"'),
        ({"mask": "block", "mask_ratio": (0.5, 0.3)}, "views.mask_ratio is"),
        ({"mask": "block", "mask_ratio": (0.5, 1.0)}, "views.mask_ratio is .*below 1"),
        ({"mask": "block", "mask_prob": 1.5}, "views.mask_prob is"),
    ],
)
def test_a_bad_section_is_refused_with_its_key(changes, message):
    with pytest.raises(InputError, match=message):
        check(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"local_count": 0, "local_size": 100},
        {"global_scale": (1.0, 1.0), "mask": "random", "mask_ratio": (0.0, 0.0)},
        {"global_count": 1, "flip": 0, "jitter": (0, 0, 0, 0.5), "blur_radius": (1e-3, 1000)},
        {"mask": "block", "mask_ratio": (0.1, 0.999), "mask_prob": 1},
    ],
    ids=str,
)
def test_what_the_section_allows_makes_a_recipe(changes):
    views = check(**changes)
    groups = dict(recipe.recipe_multicrop(views, 16).groups)
    assert set(groups) == ({"global", "local"} if views.local_count else {"global"})
