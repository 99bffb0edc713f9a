"""Finding datasets on this machine, and getting those that are not there."""

from feddag.data.obtain.known import KNOWN, how, unknown
from feddag.data.obtain.local import available, find, get, read

__all__ = ["KNOWN", "available", "find", "get", "how", "read", "unknown"]
