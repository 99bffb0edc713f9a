import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from feddag.data.partitions.tables import apportion


@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=30), st.integers(0, 500))
def test_apportion_adds_up_and_stays_close(weights, total):
    parts = apportion(np.array(weights), total)
    assert parts.sum() == total
    assert (parts >= 0).all()
    assert np.abs(parts - np.array(weights) / sum(weights) * total).max() <= 1 + 1e-6
