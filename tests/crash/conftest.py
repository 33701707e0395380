import pytest

SHORT_SEEDS = 100
FULL_SEEDS = 2_000


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--crash-full", action="store_true", help=f"{FULL_SEEDS} seeds instead of {SHORT_SEEDS}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seeds" in metafunc.fixturenames:
        count = FULL_SEEDS if metafunc.config.getoption("--crash-full", default=False) else SHORT_SEEDS
        step = 20
        metafunc.parametrize("seeds", [range(at, at + step) for at in range(0, count, step)], ids=str)
