"""Push and pull consumption in virtual time: `make sim` lives through ten hours of it.

A failure names its seed; `pytest tests/sim --sim-full --sim-seed N` repeats it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.sim.consume_world import World, virtual_time

SHORT = (range(2), 0.1)
FULL = (range(10), 1.0)
"""Seeds, and the simulated hours of each."""


@pytest.mark.timeout(3_600)  # an hour of simulation takes a minute, on a busy machine much longer
@pytest.mark.behaviour("REB-6", "ORD-1", "CON-8", "CON-10")
def test_nothing_is_lost_reordered_or_committed_too_early_whatever_comes_and_goes(
    sim_seed: int, sim_hours: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    world = World(sim_seed, tmp_path)
    seconds = sim_hours * 3_600
    with virtual_time(sim_seed) as loop, asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(world.run(seconds))
    assert world.history.problems() == []
    assert world.failures == []
    assert world.disturbances > seconds / 120
    assert world.history.count > seconds
