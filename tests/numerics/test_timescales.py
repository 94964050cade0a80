import math

import pytest
import torch
from torch.nn.functional import softplus

from longscan.numerics.timescales import initial_dt, inverse_softplus, log_uniform


def test_softplus_of_inverse_softplus_is_the_identity():
    x = torch.logspace(-12, 2, 57, dtype=torch.float64)
    torch.testing.assert_close(softplus(inverse_softplus(x), threshold=1000), x, rtol=1e-13, atol=0)


def test_logarithms_of_log_uniform_are_uniform():
    logs = log_uniform((20_000,), 1e-3, 0.1).log10()
    assert -3 <= logs.min() < -2.99
    assert -1.01 < logs.max() <= -1
    quartiles = torch.quantile(logs, torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    torch.testing.assert_close(quartiles, torch.tensor([-2.5, -2.0, -1.5], dtype=torch.float64), atol=0.03, rtol=0)


def test_stored_parameters_give_the_step_sizes():
    first, second = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    dt = log_uniform((100,), 1e-3, 0.1, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(initial_dt((100,), 1e-3, 0.1, stored_as="log", generator=first).exp(), dt)
    torch.testing.assert_close(softplus(initial_dt((100,), 1e-3, 0.1, stored_as="softplus", generator=second)), dt)


def test_softplus_storage_has_the_lower_limit_of_mamba():
    assert softplus(initial_dt((50,), 1e-6, 1e-5, stored_as="softplus")).min().item() == pytest.approx(1e-4)
    assert initial_dt((50,), 1e-6, 1e-5, stored_as="log").max() <= math.log(1e-5)


def test_invalid_range_raises():
    with pytest.raises(ValueError, match=r"`dt_min` and `dt_max` must be 0 < dt_min <= dt_max, got 0.2 and 0.1"):
        log_uniform((3,), 0.2, 0.1)
    with pytest.raises(ValueError, match="dt_min"):
        log_uniform((3,), 0.0, 0.1)
    with pytest.raises(ValueError, match="`stored_as` must be 'log' or 'softplus', got 'exp'"):
        initial_dt((3,), 1e-3, 0.1, stored_as="exp")
