"""What cannot be done is refused in one line."""

import pytest

from tests.data import refused
from tests.data.partitions import part, toy


@pytest.mark.parametrize(
    ("name", "clients", "options", "words"),
    [
        ("label-skw", 5, {}, ["partition = 'label-skw'", "did you mean 'label-skew'"]),
        ("iid", 5, {"label_fraction": 0.2}, ["'iid'", "no setting 'label_fraction'", "fraction"]),
        ("label-skew", 5, {"labels_fraction": 0.2}, ["no setting 'labels_fraction'", "did you mean 'label_fraction'"]),
        ("iid", None, {}, ["clients is missing", "1 to 600"]),
        ("iid", 601, {}, ["clients = 601", "1 to 600"]),
        ("iid", 0, {}, ["clients = 0", "1 to 600"]),
        ("iid", 5, {"fraction": 0.0}, ["fraction = 0.0", "to 1"]),
        ("iid", 31, {"fraction": 0.05}, ["clients = 31", "1 to 30"]),
        ("iid", 5, {"test": "mine"}, ["test = 'mine'", "classes, mix, own"]),
        ("iid", 5, {"test_share": 1}, ["test_share = 1", "0.001 to 0.99"]),
        ("iid", 5, {"validation": 1.0}, ["validation = 1.0", "0 to 0.99"]),
        ("iid", 5, {"holdout": 0.05}, ["holdout = 0.05", "of 5 clients this is 0", "1 to 4"]),
        ("iid", 5, {"holdout": 0.95}, ["holdout = 0.95", "this is 5", "1 to 4"]),
        ("label-skew", 5, {"groups": 6}, ["groups = 6", "1 to 5"]),
        ("label-skew", 5, {"groups": "two"}, ["groups = 'two'", "1 to 5"]),
        ("label-skew", 5, {"label_fraction": 0.04}, ["label_fraction = 0.04", "0 of them", "1 to 10"]),
        ("label-skew", 5, {"label_fraction": 1.2}, ["label_fraction = 1.2", "0 to 1"]),
        ("label-skew", 5, {"concentration": 0}, ["concentration = 0", "0.001"]),
        ("label-skew", 400, {"label_fraction": 1.0}, ["clients = 400", "60 training samples", "400 clients"]),
        ("pacfl", 600, {"label_fraction": 0.5}, ["clients = 600", "60 training samples"]),
        ("pairs", 20, {"groups": 46}, ["groups = 46", "1 to 20"]),
        ("pairs", 60, {"groups": 46}, ["groups = 46", "1 to 45"]),
        ("pairs", 600, {}, ["clients = 600", "60 training samples"]),
        ("pathological", 5, {"classes_per_client": 11}, ["classes_per_client = 11", "1 to 10"]),
        ("concept-shift", 20, {"concepts": 12}, ["concepts = 12", "1 to 11"]),
        ("concept-shift", 2, {"concepts": 3}, ["concepts = 3", "1 to 2"]),
        ("dirichlet", 100, {"concentration": 0.001}, ["concentration = 0.001", "100 clients", "larger concentration"]),
        ("feature-skew", 5, {"corruptions": "fog,snoww,fog"}, ["'snoww'", "allowed are", "fog"]),
        ("feature-skew", 5, {"corruptions": "contrats"}, ["'contrats'", "did you mean 'contrast'"]),
        ("feature-skew", 5, {"corruptions": "²"}, ["'²'", "allowed are"]),
        ("feature-skew", 5, {"corruptions": "fog,fog"}, ["corruptions = 'fog,fog'", "once"]),
        ("feature-skew", 5, {"corruptions": "saturate"}, ["saturate", "grey"]),
        ("feature-skew", 20, {"corruptions": 20}, ["corruptions = 20", "1 to 19"]),
        ("feature-skew", 3, {}, ["corruptions = 4", "1 to 3"]),
        ("feature-skew", 5, {"severity": 0}, ["severity = 0", "1 to 5"]),
        ("sized", 5, {"base": "iid"}, ["base = 'iid'", "dirichlet, pathological"]),
        ("sized", 5, {"samples_min": 9, "samples_max": 8}, ["samples_max = 8", "9 to 600"]),
        ("sized", 5, {"samples_max": 10**30}, ["samples_max = 1000", "50 to 600"]),
        ("sized", 100, {}, ["samples_max = 350", "'toy' has 600"]),
        ("sized", 1, {"base": "pathological", "samples_min": 130, "samples_max": 130}, ["samples_max = 130", "60"]),
        ("heterogeneity-mix", 10, {"mix": "40,30"}, ["mix = '40,30'", "add up to 100"]),
        ("heterogeneity-mix", 10, {"mix": "a,b,c"}, ["mix = 'a,b,c'", "add up to 100"]),
        ("heterogeneity-mix", 2, {}, ["mix = '40,30,30'", "2 clients"]),
        ("heterogeneity-mix", 10, {"homogeneous": 0}, ["homogeneous = 0", "0.001"]),
        ("heterogeneity-mix", 10, {"mix_kind": "label"}, ["mix_kind = 'label'", "did you mean 'labels'"]),
        ("natural", None, {}, ["natural", "'toy'"]),
    ],
)
def test_refusals_name_the_key_the_value_and_what_is_allowed(name, clients, options, words):
    with refused(*words):
        part(toy(), name, clients, **options)


def test_refusals_that_depend_on_the_data():
    series = toy(images=False)
    with refused("feature-skew", "images", "'toy'"):
        part(series, "feature-skew", 5)
    with refused("mix_kind = 'domains'", "images", "'toy'"):
        part(series, "heterogeneity-mix", 5, mix_kind="domains")
    with refused("clients = 7", "1 to 6"):
        part(toy(owners=6), "natural", 7)
    with refused("clients = 2", "at least 3", "domain"):
        part(toy(domains=3), "feature-skew", 2)
    with refused("concepts = 3", "1 to 2"):
        part(toy(classes=2), "concept-shift", 9)
    with refused("test = 'classes'", "no test samples", "'own'"):
        part(toy(tests=0), "iid", 5)
    assert part(toy(tests=0), "iid", 5, test="own").test_from == "train"
