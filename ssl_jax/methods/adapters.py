"""Adds low-rank adapters (models.lora) to any method: its networks receive weights with the
adapters merged; optimizer and EMA teacher contain adapters and heads only."""

import jax
from ml_collections import ConfigDict

from ssl_jax import trees
from ssl_jax.methods.base import NEVER, Method, Rule
from ssl_jax.models import lora

_DRAW = 2**20  # folded into the key of `init`; distinct from the method's own draws


def adapted(method: Method, model: ConfigDict) -> Method:
    """The method with the adapters of the config section `model`.

    The student's tree holds the frozen encoder with an adapter next to each kernel; the teacher's
    tree holds trained weights only. `features` takes the merged tree of `lora.network`.
    """

    def init(key):
        params, carry = method.init(key)
        backbone = lora.init(params["backbone"], model, jax.random.fold_in(key, _DRAW))
        return {**params, "backbone": backbone}, carry

    def encode(params, teacher, *inputs, **options):
        averaged = None if teacher is None else lora.network(params, teacher, model)
        return method.encode(lora.network(params, None, model), averaged, *inputs, **options)

    def teacher_of(params):
        teacher = method.teacher_of(params)
        return None if teacher is None else trees.nest(trees.split(teacher, lora.FROZEN)[1])

    def freeze(constants, params, teacher, done):
        assert method.freeze is not None
        return method.freeze(constants, params, lora.network(params, teacher, model), done)

    return method._replace(
        freeze=method.freeze and freeze,
        init=init,
        encode=encode,
        teacher_of=teacher_of,
        rules=((lora.FROZEN, Rule(freeze_epochs=NEVER)), *method.rules),
    )
