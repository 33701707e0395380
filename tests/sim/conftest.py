import pytest

SHORT_SEEDS = 200
FULL_SEEDS = 5_000


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sim-full", action="store_true", help="many seeds, and hours instead of minutes")
    parser.addoption("--sim-seed", type=int, help="only this seed")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "sim_seeds" in metafunc.fixturenames:
        one = metafunc.config.getoption("--sim-seed", default=None)
        if one is not None:
            metafunc.parametrize("sim_seeds", [range(one, one + 1)], ids=str)
        else:
            count = FULL_SEEDS if metafunc.config.getoption("--sim-full", default=False) else SHORT_SEEDS
            step = 50
            metafunc.parametrize("sim_seeds", [range(at, at + step) for at in range(0, count, step)], ids=str)
    if "sim_hours" in metafunc.fixturenames:
        full = metafunc.config.getoption("--sim-full", default=False)
        one = metafunc.config.getoption("--sim-seed", default=None)
        seeds, hours = metafunc.module.FULL if full else metafunc.module.SHORT
        metafunc.parametrize(
            ("sim_seed", "sim_hours"), [(seed, hours) for seed in seeds if one in (None, seed)]
        )
