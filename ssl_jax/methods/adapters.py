"""Any method with low-rank adapters (models.lora): its networks get weights with the adapters
added; the optimizer and the average of the teacher see adapters and heads, and nothing of the
frozen encoder."""

import jax
from ml_collections import ConfigDict

from ssl_jax import trees
from ssl_jax.methods.base import NEVER, Method, Rule
from ssl_jax.models import lora

_DRAW = 2**20  # of the key of `init`, apart from the method's own draws


def adapted(method: Method, model: ConfigDict) -> Method:
    """The method with adapters as the config section `model` asks for them.

    The student's tree holds the encoder, frozen, with an adapter beside each kernel; the teacher's
    tree what is trained alone. `features` takes what `lora.network` makes of them.
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

    return method._replace(
        init=init,
        encode=encode,
        teacher_of=teacher_of,
        rules=((lora.FROZEN, Rule(freeze_epochs=NEVER)), *method.rules),
    )
