"""What a compiled program computes and sends, where both are known by hand."""

import jax
import jax.numpy as jnp
import pytest

from ssl_jax import ops
from ssl_jax.train import program, sharding


@pytest.fixture(scope="module")
def mesh():
    return sharding.make_mesh(4, 2)


def compiled(mesh, function, *arguments):
    """arguments: (shape, dtype, axes of the mesh)."""
    shapes = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=jax.NamedSharding(mesh, jax.P(*axes)))
        for shape, dtype, axes in arguments
    ]
    return program.compile(jax.jit(function).lower(*shapes))[1]


BATCH = ((64, 32), jnp.float32, (sharding.AXES,))


def test_a_loop_counts_as_often_as_it_runs(mesh):
    def loss(weights, x):
        return jnp.square(jax.lax.scan(lambda x, w: (x @ w, None), x, weights)[0]).mean()

    found = compiled(mesh, loss, ((5, 32, 32), jnp.float32, ()), BATCH)
    assert found.flops == {"f32": 5 * 2 * 64 * 32 * 32 / 8}
    assert found.moved == 5 * 4 * (8 * 32 + 32 * 32 + 8 * 32)  # images, weights, results
    assert [(c.kind, c.type, c.bytes, c.times) for c in found.collectives] == [
        ("all-reduce", "f32[]", 4, 1)
    ]


def test_gathers_inside_a_loop_are_multiplied(mesh):
    def forward(weights, x):
        return jax.lax.scan(lambda x, w: (x @ w, None), x, weights)[0]

    found = compiled(mesh, forward, ((5, 32, 32), jnp.float32, (None, None, "fsdp")), BATCH)
    assert found.volume("all-gather") == found.volume() == 5 * 32 * 32 * 4
    assert found.volume("all-reduce") == 0


def test_operands_are_told_apart(mesh):
    def products(x):
        narrow = x.astype(jnp.bfloat16)
        exact = jnp.einsum("bi,ij->bj", x, jnp.ones((32, 8)), precision="highest")
        return x @ jnp.ones((32, 4)), exact, narrow @ jnp.ones((32, 2), jnp.bfloat16)

    found = compiled(mesh, products, BATCH)
    each = 2 * 8 * 32  # rows of a device, and sums
    assert found.flops == {"f32": each * 4, "f32 exact": each * 8, "bf16": each * 2}
    assert sum(found.where.values()) == sum(found.flops.values())
    shifted = compiled(mesh, lambda x: ops.mean_shift(x, x, inverse_temperature=1.0), BATCH)
    assert any(where.startswith("ops/") for where, _ in shifted.where)  # lines of the package


def test_the_dearest_branch_counts(mesh):
    def choice(x):
        return jax.lax.cond(x.sum() > 0, lambda x: x @ jnp.ones((32, 8)), lambda x: x[:, :8] * 2, x)

    assert compiled(mesh, choice, BATCH).flops == {"f32": 2 * 64 * 32 * 8 / 8}


def test_a_convolution(mesh):
    def convolve(x):
        images = x.reshape(64, 4, 8, 1)
        kernel = jnp.ones((3, 3, 1, 6))
        return jax.lax.conv_general_dilated(
            images, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    assert compiled(mesh, convolve, BATCH).flops == {"f32": 2 * 8 * (2 * 6 * 6) * 9}


_TOKENS = "bf16[2,6,256,64]"


def _kernel(name, results, operands):
    """As libtpu has it after the partitioner, without the kernel itself."""
    return (
        f'{name} = {results} custom-call({operands}), custom_call_target="tpu_custom_call",'
        f' metadata={{op_name="jit(flash_attention)/{name[1:]}/pallas_call"}}\n'
    )


def test_products_of_flash_attention_are_seen():
    text = (
        f"HloModule attention\nENTRY %main (q: {_TOKENS}, v: {_TOKENS}) -> {_TOKENS} {{\n"
        f"%q = {_TOKENS} parameter(0)\n%v = {_TOKENS} parameter(1)\n"
        + _kernel("%forward", f"({_TOKENS}, f32[2,6,256,128])", "%q, %q, %v")
        + _kernel("%flash_mha_bwd_dkv_block_q", f"({_TOKENS}, {_TOKENS})", "%q, %q, %v, %v")
        + f'%other = {_TOKENS} custom-call(%q, %v), custom_call_target="Sharding"\n'
        + f"ROOT {_kernel('%flash_mha_bwd_dq_block_q', _TOKENS, '%q, %q, %v, %v')}}}\n"
    )
    found = program.read(text)
    scores = 2 * 2 * 6 * 256 * 256 * 64  # one product of each pair of tokens
    assert found.flops == {"bf16": (2 + 4 + 3) * scores}
    array, statistics = 2 * 6 * 256 * 64 * 2, 2 * 6 * 256 * 128 * 4
    assert found.moved == (4 * array + statistics) + (6 * array) + (5 * array)
