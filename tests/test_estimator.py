"""Groups of clients as a scikit-learn estimator, and as a table."""

import sys

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import check_estimator

import feddag
from feddag import ClientClustering, FeddagError
from tests.server.test_landmarks import clients


def test_it_fits_predicts_and_is_cloned() -> None:
    model = ClientClustering()
    assert model.fit(clients([0, 1, 0, 1, 0, 1])) is model
    assert model.labels_.tolist() == model.fit_predict(clients([0, 1, 0, 1, 0, 1])).tolist() == [0, 1, 0, 1, 0, 1]
    assert model.n_clusters_ == 2
    assert model.predict(clients([1, 5, 0], seed=3)).tolist() == [1, -1, 0]
    copied = clone(model.set_params(n_clusters=3, landmarks=50))
    assert copied.get_params() == model.get_params() and not hasattr(copied, "labels_")
    assert repr(copied) == "ClientClustering(landmarks=50, n_clusters=3)"
    assert copied.fit(clients([0, 1, 2, 0, 1, 2, 3, 3])).n_clusters_ == 3


def test_distances_can_be_fitted_and_newcomers_need_signatures() -> None:
    apart = np.ones((4, 4)) - np.eye(4)
    apart[:2, :2] = apart[2:, 2:] = 0
    model = ClientClustering(distance_threshold=0.5)
    assert model.fit_predict(apart).tolist() == [0, 0, 1, 1]
    with pytest.raises(FeddagError, match="newcomers are placed by their signatures"):
        model.predict(apart)
    with pytest.raises(NotFittedError):
        ClientClustering().predict(clients([0]))


def test_the_checks_of_scikit_learn_pass_that_apply() -> None:
    """Those that fail all fit a table of features, which is refused in one sentence, as it should be."""
    told = check_estimator(ClientClustering(), on_fail=None)
    failed = {result["check_name"]: result["exception"] for result in told if result["status"] == "failed"}
    passed = {result["check_name"] for result in told if result["status"] == "passed"}
    assert {"check_estimator_cloneable", "check_no_attributes_set_in_init", "check_get_params_invariance"} <= passed
    assert {"check_set_params", "check_parameters_default_constructible", "check_estimator_repr"} <= passed
    for name, error in failed.items():
        assert "square" in str(error) or "FeddagError" in repr(error.__cause__ or error), (name, error)


def test_a_grouping_is_a_table_and_a_line() -> None:
    found = feddag.group(clients([0, 1, 0, 1, 0, 1]))
    table = found.to_frame([f"hospital {number}" for number in range(6)])
    assert table.index[2] == "hospital 2"
    assert table["group"].tolist() == [0, 1, 0, 1, 0, 1]
    assert table["samples"].tolist() == [int(one.counts.sum()) for one in found.signatures]
    assert table["sureness"].tolist() == found.sureness_.tolist()
    assert {"weight of data", "weight of classes"} <= set(table.columns)
    joined = found.joined_by(clients([0], seed=2)[0], 0).to_frame()
    assert len(joined) == 7 and np.isnan(joined["sureness"].iloc[-1])
    assert repr(found) == f"Grouping(2 groups of 6 clients: 3, 3; cut at {found.threshold_:.3f})"


def test_without_pandas_a_table_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(FeddagError, match=r"a table needs pandas: pip install 'feddag\[tables\]'"):
        feddag.group(clients([0, 1, 0])).to_frame()
