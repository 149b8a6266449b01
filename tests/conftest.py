"""Options of the whole suite. They stand here, at the root, so that pytest knows them whatever it is asked to run."""


def pytest_addoption(parser):
    parser.addoption("--require-gpu", action="store_true", help="a test that needs a GPU and finds none fails")


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU; skipped with the reason where there is none")
