"""Support for the tests: servers to run against and builders of objects."""
