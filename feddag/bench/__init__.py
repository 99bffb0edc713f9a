"""Measurements that prove the speed: local training, a whole round beside other frameworks, and many clients.

Each of `train`, `round` and `scale` has `measure(...)`, which returns plain rows, and `COLUMNS` and `table(rows)` to
print them. Rows hold what was measured here and now; `common.machine()` says where that was.
"""
