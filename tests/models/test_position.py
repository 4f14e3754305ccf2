"""Position embeddings against torch's documented resampling formulas, Pillow-like antialiasing in
jax.image, and MAE's construction.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.models import position


def torch_bicubic(line, target, scale_factor=None):
    """torch.nn.functional.interpolate(mode="bicubic", align_corners=False) on one line, sample by
    sample, float64.

    Source index (i + 0.5) / scale - 0.5 where scale is the given factor or target / native;
    neighbours are clamped to the border."""
    native, a = len(line), -0.75

    def near(s):
        return ((a + 2) * s - (a + 3)) * s * s + 1

    def far(s):
        return ((a * s - 5 * a) * s + 8 * a) * s - 4 * a

    scale = target / native if scale_factor is None else scale_factor
    out = []
    for i in range(target):
        x = (i + 0.5) / scale - 0.5
        left = int(np.floor(x))
        t = x - left
        weights = [far(t + 1), near(t), near(1 - t), far(2 - t)]
        near_by = [line[min(max(left + k, 0), native - 1)] for k in (-1, 0, 1, 2)]
        out.append(np.dot(weights, near_by))
    return np.array(out)


@pytest.mark.parametrize("native, target", [(14, 6), (14, 14), (6, 7), (4, 11), (14, 37), (5, 1)])
def test_resize_matrix_is_torchs_bicubic(native, target):
    line = np.random.default_rng(0).normal(size=native)
    exact = position.resize_matrix(native, target) @ line
    np.testing.assert_allclose(exact, torch_bicubic(line, target), atol=1e-13)
    shifted = position.resize_matrix(native, target, rule="dino_offset") @ line
    np.testing.assert_allclose(
        shifted, torch_bicubic(line, target, scale_factor=(target + 0.1) / native), atol=1e-13
    )


@pytest.mark.parametrize("native, target", [(14, 6), (6, 14), (7, 7), (9, 2)])
def test_antialiased_matrix_is_jax_cubic(native, target):
    line = np.random.default_rng(1).normal(size=native).astype(np.float32)
    want = jax.image.resize(line, (target,), "cubic", antialias=True)
    np.testing.assert_allclose(
        position.resize_matrix(native, target, kernel="antialias-0.5") @ line, want, atol=2e-6
    )


@pytest.mark.parametrize("rule", position.RULES)
@pytest.mark.parametrize("kernel", position.KERNELS)
def test_resize_matrix_keeps_constants_and_size(rule, kernel):
    matrix = position.resize_matrix(14, 6, rule=rule, kernel=kernel)
    assert matrix.shape == (6, 14) and matrix.dtype == np.float64
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-14)
    if rule == "exact":
        np.testing.assert_allclose(
            position.resize_matrix(9, 9, rule=rule, kernel=kernel), np.eye(9), atol=1e-15
        )


def test_resize_codes_resamples_rows_and_columns_separately():
    rng = np.random.default_rng(3)
    codes = rng.normal(size=(5, 5, 3)).astype(np.float32)
    got = position.resize_codes(
        jnp.asarray(codes.reshape(25, 3)), 5, (3, 8), rule="dino_offset", kernel="keys-0.75"
    )
    want = np.apply_along_axis(torch_bicubic, 0, codes, 3, 3.1 / 5)
    want = np.apply_along_axis(torch_bicubic, 1, want, 8, 8.1 / 5)
    np.testing.assert_allclose(got, want.reshape(24, 3), atol=1e-6)


def test_native_grid_is_untouched_but_one_equal_side_is_not():
    codes = jnp.asarray(np.random.default_rng(4).normal(size=(16, 2)), jnp.float32)
    keep = dict(rule="dino_offset", kernel="keys-0.75")
    assert position.resize_codes(codes, 4, (4, 4), **keep) is codes
    wide = position.resize_codes(codes, 4, (4, 8), **keep)
    exact = position.resize_codes(codes, 4, (4, 8), **keep | {"rule": "exact"})
    assert np.abs(wide - exact).max() > 1e-3


def test_sincos_first_half_is_the_column():
    grid, width = 3, 8
    code = position.sincos_2d(grid, width).reshape(grid, grid, width)
    for row in range(grid):
        for column in range(grid):
            want = []
            for coordinate in (column, row):
                angles = [coordinate / 10000 ** (i / 2) for i in range(2)]
                want += [np.sin(a) for a in angles] + [np.cos(a) for a in angles]
            np.testing.assert_allclose(code[row, column], want, atol=1e-15)


def test_unknown_rules_kernels_and_widths_are_refused():
    for options in (dict(rule="dino"), dict(kernel="cubic")):
        with pytest.raises(ValueError, match=next(iter(options))):
            position.resize_matrix(4, 4, **options)
    with pytest.raises(ValueError, match="multiple of 4"):
        position.sincos_2d(3, 6)
