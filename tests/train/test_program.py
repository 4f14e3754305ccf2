"""What a compiled program computes and sends, where both are known by hand."""

import jax
import jax.numpy as jnp
import pytest

from ssl_jax import ops
from ssl_jax.config import MissingFile
from ssl_jax.runtime import sharding
from ssl_jax.train import estimate, program


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


# As XLA's compilers for GPUs and TPUs write programs: fused kernels, loops, exchanges that begin
# and end, attention of cuDNN, and S(1), which is on a TPU's chip.
_ROW, _ROWS = "bf16[1,64,16]{2,1,0}", "bf16[8,64,16]{2,1,0}"
_TILED = "bf16[64,16]{1,0:T(8,128)(2,1)%s}"
_COMPILED = f"""HloModule step, is_scheduled=true

%fused_product (a: bf16[64,32], b: bf16[32,16]) -> bf16[64,16] {{
  %a = bf16[64,32]{{1,0}} parameter(0)
  %b = bf16[32,16]{{1,0}} parameter(1)
  %dot = f32[64,16]{{1,0}} dot(%a, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT %narrow = bf16[64,16]{{1,0}} convert(%dot)
}}

%fused_rows (rows: {_ROWS}, i: s32[]) -> {_ROW} {{
  %i = s32[] parameter(1)
  %rows = {_ROWS} parameter(0)
  %negative = {_ROWS} negate(%rows)
  %zero = s32[] constant(0)
  ROOT %row = {_ROW} dynamic-slice(%negative, %i, %zero, %zero), dynamic_slice_sizes={{1,64,16}}
}}

%fused_write (rows: {_ROWS}, row: bf16[64,16], i: s32[]) -> {_ROWS} {{
  %rows = {_ROWS} parameter(0)
  %row = bf16[64,16]{{1,0}} parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  %update = {_ROW} bitcast(%row)
  ROOT %written = {_ROWS} dynamic-update-slice(%rows, %update, %i, %zero, %zero)
}}

%fused_negation (a: bf16[64,32]) -> bf16[64,32] {{
  %a = bf16[64,32]{{1,0}} parameter(0)
  ROOT %minus = bf16[64,32]{{1,0}} negate(%a)
}}

%body (state: (s32[], {_ROWS}, bf16[64,16])) -> (s32[], {_ROWS}, bf16[64,16]) {{
  %state = (s32[], {_ROWS}, bf16[64,16]{{1,0}}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %rows = {_ROWS} get-tuple-element(%state), index=1
  %x = bf16[64,16]{{1,0}} get-tuple-element(%state), index=2
  %write = {_ROWS} fusion(%rows, %x, %i), kind=kLoop, calls=%fused_write
  %read = {_ROW} fusion(%write, %i), kind=kLoop, calls=%fused_rows
  %y = bf16[64,16]{{1,0}} bitcast(%read)
  ROOT %next = (s32[], {_ROWS}, bf16[64,16]{{1,0}}) tuple(%i, %write, %y)
}}

%condition (state: (s32[], {_ROWS}, bf16[64,16])) -> pred[] {{
  %state = (s32[], {_ROWS}, bf16[64,16]{{1,0}}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %end = s32[] constant(88)
  ROOT %less = pred[] compare(%i, %end), direction=LT
}}

%sum (x: bf16[], y: bf16[]) -> bf16[] {{
  %x = bf16[] parameter(0)
  %y = bf16[] parameter(1)
  ROOT %both = bf16[] add(%x, %y)
}}

ENTRY %main (a: bf16[64,32], b: bf16[32,16], rows: {_ROWS}, q: bf16[2,8,4,16]) -> bf16[64,16] {{
  %a = bf16[64,32]{{1,0}} parameter(0)
  %b = bf16[32,16]{{1,0}} parameter(1)
  %rows = {_ROWS} parameter(2)
  %q = bf16[2,8,4,16]{{3,2,1,0}} parameter(3)
  %zero = s32[] constant(0)
  %x = bf16[64,16]{{1,0}} fusion(%a, %b), kind=kCustom, calls=%fused_product
  %state = (s32[], {_ROWS}, bf16[64,16]{{1,0}}) tuple(%zero, %rows, %x)
  %loop = (s32[], {_ROWS}, bf16[64,16]{{1,0}}) while(%state), condition=%condition, body=%body,
    backend_config={{"known_trip_count":{{"n":"8"}}}}
  %y = bf16[64,16]{{1,0}} get-tuple-element(%loop), index=2
  %start = bf16[64,16]{{1,0}} all-reduce-start(%y), replica_groups={{{{0,1}}}}, to_apply=%sum
  %heads = (bf16[2,4,8,16]{{3,1,2,0}}, u8[0]{{0}}) custom-call(%q, %q, %q),
    custom_call_target="__cudnn$fmhaSoftmax", backend_config={{"cudnn_fmha_backend_config":
    {{"intermediate_tensor_shape": {{"dimensions": ["2", "4", "8", "8"]}},
    "is_flash_attention": true}}}}
  %done = bf16[64,16]{{1,0}} all-reduce-done(%start)
  %near = {_TILED % "S(1)"} copy(%done)
  %begin = ((bf16[64,32]{{1,0}}), {_TILED % "S(1)"}, s32[]) slice-start(%a),
    slice={{[0:64], [0:16]}}
  %end = {_TILED % "S(1)"} slice-done(%begin)
  %turn = ((bf16[64,32]{{1,0}}), bf16[64,32]{{1,0}}, u32[]) fusion-start(%a), kind=kLoop,
    calls=%fused_negation
  %turned = bf16[64,32]{{1,0}} fusion-done(%turn)
  ROOT %result = {_TILED % ""} negate(%near)
}}
"""


def test_bytes_of_kernels_by_hand():
    found = program.read(_COMPILED)
    row, cudnn = 2 * 64 * 16, 2 * (2 * 4 * 8 * 8) * 16  # bytes; FLOPs of one product of tokens
    assert found.flops == {"bf16": 2 * 64 * 32 * 16 + 2 * cudnn}
    assert [(c.kind, c.devices, c.bytes) for c in found.collectives] == [("all-reduce", 2, row)]
    assert {k.kind: (k.times, k.bytes) for k in found.kernels} == {
        "product": (1, 2 * (64 * 32 + 32 * 16) + row),
        # A pass of the loop writes one row and reads it, whose index is four bytes; the last
        # negation, the copy and the slice before it have one end on the chip.
        "copy": (8 + 2, 8 * (2 * row + 4) + 2 * row),
        "elementwise": (8 + 1 + 1, 8 * (2 * row + 4) + row + 2 * 2 * 64 * 32),
        "collective": (1, 2 * row),
        "attention by cuDNN": (1, 2 * (2 * 2 * 8 * 4 * 16)),
    }


def test_one_device_needs_no_partitioner():
    function = jax.jit(jax.grad(lambda w, x: jnp.square(x @ w).mean()))
    _, found = program.compile(function.lower(jnp.ones((32, 16)), jnp.ones((64, 32))))
    assert found.flops == {"f32": 2 * 2 * 64 * 32 * 16} and found.collectives == []


@pytest.mark.parametrize("name, count", [("a100:1", 1), ("h100:2", 2), ("H200:16", 16)])
def test_a_gpu_that_is_not_here(name, count):
    try:
        devices = estimate.topology(name)
    except MissingFile as error:
        pytest.skip(str(error))
    assert len(devices) == count and devices[0].platform == "gpu"
    if count != 2:
        return
    mesh = sharding.make_mesh(2, 1, devices=devices)
    cut = jax.NamedSharding(mesh, jax.P(sharding.AXES))
    tokens = jax.ShapeDtypeStruct((8, 64, 4, 64), jnp.bfloat16, sharding=cut)

    def loss(x):
        return jax.nn.dot_product_attention(x, x, x, implementation="cudnn").sum(dtype=jnp.float32)

    lowered = jax.jit(jax.value_and_grad(loss)).lower(tokens)
    compiled, before = program.compile(lowered, xla_gpu_autotune_level=0)
    product = 2 * (8 // 2) * 4 * 64 * 64 * 64
    assert before.flops == {"bf16": (2 + 5) * product}
    kernels = program.read(compiled.as_text()).kernels
    assert sum(k.times for k in kernels if k.kind == "attention by cuDNN") == 2
