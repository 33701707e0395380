"""POP through crashes, full disks, resets and rebalances, in virtual time: `make sim` runs 5,000 seeds.

A failure names its seed; `pytest tests/sim --sim-seed N` repeats it.
"""

from __future__ import annotations

import pytest
from tests.sim.model import Model

from penstock.testing.fault_disk import Crash


def run(seed: int) -> Model:
    model = Model(seed)
    rng = model.rng
    actions = [model.send] * 5 + [model.pop] * 6 + [model.ack] * 4 + [model.batch_ack, model.change] * 2
    actions += [model.settle] * 3 + [model.rebalance]
    actions += rng.choice(([], [], [model.fail], [model.restart], [model.reset]))
    may_crash = rng.random() < 0.6
    for _ in range(rng.randint(1, 4)):
        if may_crash:
            model.disk.crash_at = model.disk.operations + rng.randint(1, 120)
        try:
            model.open()
            for _ in range(rng.randint(5, 60)):
                rng.choice(actions)()
                if rng.random() < 0.4:
                    model.pass_time(rng.choice((1, 40, 210, 1_100)))
        except Crash:
            pass
        model.crash()
    model.open()
    model.drain()
    return model


@pytest.mark.crash
@pytest.mark.behaviour("POP-7", "POP-10", "POP-11", "POP-12", "POP-15")
@pytest.mark.scenario(34, 35, 36, 37, 38, 40)
def test_whatever_happens_consumers_get_what_they_are_promised(sim_seeds: range) -> None:
    for seed in sim_seeds:
        try:
            found = {group: history.violations for group, history in run(seed).histories.items()}
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        assert not any(found.values()), f"seed {seed}: {found}"
