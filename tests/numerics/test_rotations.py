import math

import pytest
import torch

from longscan.numerics.rotary import frequencies, rotate_pairs


def test_rotation_of_pairs_equals_multiplication_of_complex_numbers():
    x, angle = torch.randn(3, 7, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)
    rotated = rotate_pairs(x, angle)
    expected = torch.view_as_complex(x[:, :4].reshape(3, 2, 2).contiguous()) * torch.polar(torch.ones_like(angle), angle)
    torch.testing.assert_close(rotated[:, :4], torch.view_as_real(expected).flatten(1))
    assert torch.equal(rotated[:, 4:], x[:, 4:])
    torch.testing.assert_close(rotate_pairs(rotated, -angle), x)


def test_products_of_rotated_vectors_depend_on_the_difference_of_angles():
    q, k, angle = torch.randn(3, 6, dtype=torch.float64), torch.randn(3, 6, dtype=torch.float64), torch.randn(3, 3).double()
    shifted = (rotate_pairs(q, angle + 5) * rotate_pairs(k, angle + 3)).sum(-1)
    torch.testing.assert_close(shifted, (rotate_pairs(q, torch.full_like(angle, 2.0)) * k).sum(-1))


def test_frequencies_are_powers_of_the_base():
    assert frequencies(4, 10_000) == [1, pytest.approx(0.01)]
    assert frequencies(0, 10_000) == []
    assert frequencies(64, 500.0)[-1] == pytest.approx(math.exp(-62 / 64 * math.log(500)))
    with pytest.raises(ValueError, match=r"rotary width must be an even number .*, got 3"):
        frequencies(3, 10_000)
    with pytest.raises(ValueError, match="`base` must be positive, got 0"):
        frequencies(4, 0)
