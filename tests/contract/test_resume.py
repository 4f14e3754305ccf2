"""Bit-exact resume at every step, in one process; of killed runs see tests/process."""

import types

import jax
import pytest

from ssl_jax.config import InputError
from ssl_jax.train import checkpoint, log, loop, resume
from tests import tiny
from tests.contract import steps

TOTAL = 9  # crosses an epoch (4 steps), the wrap-around of memories and a step of a temperature


def check_resume(case, folder, cuts):
    run = case.run
    saved = checkpoint.Checkpoints(folder / "checkpoints", keep=100)

    def go_on(state, record, save=()):
        batches, rows = loop.open_loader(run, record), []
        for at in range(int(state.step), TOTAL):
            if at in save:
                saved.save(state, {"record": batches.state()["record"]})
            state, metrics = case.step(state, case.put(next(batches)))
            del metrics["gradient"]
            rows.append(log.scalars(metrics))
        batches.close()
        return state, rows

    whole, rows = go_on(case.start(), 0, save=cuts)
    saved.wait()
    for cut in cuts:
        state, rest = go_on(saved.restore(cut, run.abstract), saved.meta(cut)["record"])
        assert tiny.identical(state, whole), f"state differs after a cut at step {cut}"
        assert rest == rows[cut:], f"metrics differ after a cut at step {cut}"
    saved.close()


@pytest.mark.parametrize("case", steps.cases(), indirect=True)
def test_resume_at_every_step_is_bit_exact(case, tmp_path):
    check_resume(case, tmp_path, cuts=range(TOTAL))


@pytest.mark.parametrize("case", steps.cases(tiny.VARIANTS), indirect=True)
def test_resume_of_a_variant_is_bit_exact(case, tmp_path):
    check_resume(case, tmp_path, cuts=[6])  # in the middle of an epoch, with full memories


@pytest.mark.parametrize("flag", ["JAX_ENABLE_X64", "JAX_THREEFRY_PARTITIONABLE"])
@pytest.mark.parametrize("case", steps.cases(["sop"]), indirect=True)
def test_flags_that_give_other_numbers_are_refused(case, flag, tmp_path):
    meta = resume.meta(case.run.config, 4)
    meta["flags"][flag] = not meta["flags"][flag]
    saved = types.SimpleNamespace(folder=tmp_path, meta=lambda step: meta)
    with pytest.raises(InputError, match=flag):
        resume.restore_step(saved, 4, case.run, None)


@pytest.mark.parametrize("case", steps.cases(["cribo_cut"]), indirect=True)
def test_a_checkpoint_moves_between_meshes(case, tmp_path):
    saved = checkpoint.Checkpoints(tmp_path / "checkpoints")
    state = case.eight[0]
    assert case.mesh == (2, 4)
    saved.save(state, {})
    saved.wait()
    restored = saved.restore(0, case.run.abstract)
    assert tiny.identical(restored, state)
    assert all(len(x.sharding.device_set) == 1 for x in jax.tree.leaves(restored.params))
    saved.close()
