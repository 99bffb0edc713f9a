"""The version, in the one place that the package, its metadata and what it writes read it from."""

__version__ = "0.1.0"
