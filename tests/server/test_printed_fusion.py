"""Eq. 7-8 as printed."""

import numpy as np
import pytest
import torch

from feddag.errors import FeddagError
from feddag.server.printed_fusion import entropy, gated_distances, mlp_gates, projected_gates


def test_the_gate_of_the_lower_numbered_client_decides() -> None:
    gradient = torch.tensor([[0, 1, 1], [1, 0, 1], [1, 1, 0]], dtype=torch.float32)
    data = torch.zeros(3, 3)
    # 0 against 1 and 2 by gate 1, 1 against 2 by gate 0.25; the last gate is never used
    for last in (0.0, 0.9):
        found = gated_distances(torch.tensor([1.0, 0.25, last]), gradient, data)
        assert found.tolist() == [[0, 1, 1], [1, 0, 0.25], [1, 0.25, 0]]


def test_entropy_of_rows() -> None:
    assert float(entropy(torch.zeros(4, 4))) == pytest.approx(np.log(4))
    # softmax of (0, ln 3) is (1/4, 3/4): ln(4) / 4 + 3 ln(4/3) / 4 = 0.56234
    assert float(entropy(torch.tensor([[0, np.log(3)], [np.log(3), 0]]))) == pytest.approx(0.56234, abs=1e-5)


def test_the_printed_loss_prefers_contrast() -> None:
    flat, contrast = np.full(6, 0.5, np.float32), np.array([0, 1, 1, 1, 1, 0], np.float32)
    for gradient, data, favoured in ((contrast, flat, 1), (flat, contrast, 0)):
        gates = projected_gates(gradient, data, np.random.default_rng(0))
        np.testing.assert_allclose(gates[:3], favoured, atol=1e-3)  # the last gate does not move


def test_the_network_gives_a_gate_per_client_and_is_repeatable() -> None:
    gradient, data = np.array([0, 1, 1, 1, 1, 0], np.float32), np.full(6, 0.5, np.float32)
    gates = mlp_gates(gradient, data, seed=3)
    assert gates.shape == (4,) and ((gates > 0) & (gates < 1)).all()
    assert np.array_equal(gates, mlp_gates(gradient, data, seed=3))
    assert gates[:3].min() > mlp_gates(gradient, data, seed=3, steps=0)[:3].min()  # learnt towards contrast


def test_the_network_is_refused_for_many_clients() -> None:
    with pytest.raises(FeddagError, match="'mlp' has 2 x 401 x 401 inputs; allowed are 400 clients"):
        mlp_gates(*[np.zeros(401 * 400 // 2, np.float32)] * 2, seed=0)
