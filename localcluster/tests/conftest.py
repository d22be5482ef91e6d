"""Of all tests: pytest's own tool for running pytest, for the tests of our plugin."""

pytest_plugins = ["pytester"]
