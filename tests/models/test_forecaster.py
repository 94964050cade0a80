import math

import pytest
import torch

from longscan.models import Forecaster, SiameseModel


def make_forecaster(spec: str = "ma", **options) -> Forecaster:
    settings = {"d_model": 6, "d_state": 4, "d_input": 2, "horizon": 5, **options}
    return Forecaster.from_spec(spec, **settings).double().eval()


def make_series(batch: int, length: int) -> torch.Tensor:
    return torch.randn(batch, length, 2, dtype=torch.float64)


@pytest.mark.parametrize("mode", ["queries", "offset"])
@pytest.mark.parametrize("normalise", [False, True])
def test_padding_does_not_change_forecasts(mode, normalise):
    net = make_forecaster(mode=mode, normalise=normalise)
    short, long = make_series(1, 6), make_series(1, 9)
    expected = torch.cat([net(short), net(long)])
    for left in (False, True):
        pad = torch.full((1, 3, 2), torch.nan, dtype=torch.float64)
        rows = torch.cat([torch.cat([pad, short] if left else [short, pad], 1), long])
        torch.testing.assert_close(net(rows, valid=~rows[..., 0].isnan()), expected)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("channels", ["shared", "own"])
def test_linear_forecast_is_the_initial_one_and_reads_the_last_valid_steps(channels, normalise):
    net = make_forecaster(normalise=normalise, linear_window=4, linear_channels=channels)
    maps = 1 if channels == "shared" else 2
    weight, level, bias = torch.randn(maps, 5, 4), torch.randn(maps, 5), torch.randn(maps, 5)
    net.set_linear(weight, level, bias)
    assert not any(net.get_parameter(f"linear_{name}").requires_grad for name in ("weight", "level", "bias"))
    x = make_series(3, 9)
    mean = x[:, -4:].mean(1)
    expected = torch.empty(3, 5, 2, dtype=torch.float64)
    for row in range(3):
        for channel in range(2):
            index = channel % maps
            change = weight[index].double() @ (x[row, -4:, channel] - mean[row, channel])
            expected[row, :, channel] = mean[row, channel] * (1 + level[index]) + change + bias[index]
    torch.testing.assert_close(net(x), expected)
    padded = torch.cat([torch.full((3, 1, 2), torch.nan), x, torch.full((3, 2, 2), torch.nan)], 1)
    torch.testing.assert_close(net(padded, valid=~padded[..., 0].isnan()), expected)
    torch.nn.init.normal_(net.backbone.head.weight)
    assert not torch.allclose(net(x), expected)


@pytest.mark.parametrize("left", [False, True])
def test_linear_forecast_counts_steps_before_the_first_one_as_the_mean(left):
    net = make_forecaster(linear_window=6)
    net.set_linear(torch.randn(1, 5, 6), torch.randn(1, 5), torch.randn(1, 5))
    x = make_series(1, 2)
    filled = torch.cat([x.mean(1, keepdim=True).expand(-1, 4, -1), x], 1)
    torch.testing.assert_close(net(x), net(filled))
    pad = torch.full((1, 5, 2), torch.nan, dtype=torch.float64)
    padded = torch.cat([pad, x] if left else [x, pad], 1)
    torch.testing.assert_close(net(padded, valid=~padded[..., 0].isnan()), net(filled))


@pytest.mark.parametrize("left", [False, True])
def test_blocks_read_the_last_steps_of_their_window(left):
    net = make_forecaster(normalise=True, linear_window=6, blocks_window=3)
    torch.nn.init.normal_(net.backbone.head.weight)
    x, elapsed = make_series(2, 8), torch.rand(2, 8).double()
    short = make_forecaster(normalise=True, linear_window=6)
    short.load_state_dict(net.state_dict())
    added = net(x, elapsed=elapsed) - x[:, -6:].mean(1, keepdim=True)  # the linear forecast has no weights
    torch.testing.assert_close(added, short(x[:, -3:], elapsed=elapsed[:, -3:]) - x[:, -3:].mean(1, keepdim=True))
    assert not torch.allclose(short(x, elapsed=elapsed), net(x, elapsed=elapsed))
    pad = torch.full((2, 3, 2), torch.nan, dtype=torch.float64)
    padded = torch.cat([pad, x] if left else [x, pad], 1)
    times = torch.cat([pad[..., 0], elapsed] if left else [elapsed, pad[..., 0]], 1)
    torch.testing.assert_close(net(padded, elapsed=times, valid=~padded[..., 0].isnan()), net(x, elapsed=elapsed))


def test_scaled_blocks_add_less_to_the_linear_forecast():
    net = make_forecaster(linear_window=4, quantiles=[0.1, 0.9])
    net.set_linear(torch.randn(1, 5, 4), torch.randn(1, 5), torch.randn(1, 5))
    x = make_series(2, 8)
    linear = net(x)
    torch.nn.init.normal_(net.backbone.head.weight)
    forecast, quantiles = net.forecast_quantiles(x)
    net.scale_blocks(0.25)
    scaled, shifted = net.forecast_quantiles(x)
    torch.testing.assert_close(scaled - linear, 0.25 * (forecast - linear))
    torch.testing.assert_close(shifted - scaled.unsqueeze(-1), quantiles - forecast.unsqueeze(-1))
    with pytest.raises(ValueError, match="`linear_window` must be"):
        make_forecaster().scale_blocks(0.5)


def test_set_linear_refuses_other_shapes_and_models_without_linear_forecast():
    parts = torch.zeros(1, 5, 4), torch.zeros(1, 5), torch.zeros(1, 5)
    with pytest.raises(ValueError, match=r"^`linear_window` must be a number of steps to set a linear forecast, got None"):
        make_forecaster().set_linear(*parts)
    with pytest.raises(ValueError, match=r"^`level` must have shape \(2, 5\), got \(1, 5\)"):
        make_forecaster(linear_window=4, linear_channels="own").set_linear(torch.zeros(2, 5, 4), *parts[1:])
    with pytest.raises(ValueError, match="`factor` must be a finite number, got nan"):
        make_forecaster(linear_window=4).scale_blocks(math.nan)


def test_forecasts_of_720_steps_depend_on_the_inputs_that_the_mode_allows():
    """Every output depends on the last input in mode "queries", and on its own past only in mode "offset"."""
    x = make_series(1, 720)
    changed_x = x.clone()
    changed_x[:, 700:] += 1
    queries, offset = (make_forecaster("m", horizon=720, mode=mode) for mode in ("queries", "offset"))
    assert queries(x).shape == (1, 720, 2)
    assert ((queries(x) - queries(changed_x)).abs().amax(-1) > 0).all()
    changed = (offset(x) - offset(changed_x)).abs().amax(-1)[0] > 0
    assert not changed[:700].any()
    assert changed[700:].all()


def test_queries_are_steps_without_input():
    net = make_forecaster("m")
    x = make_series(2, 7)
    measured = torch.cat([x, torch.ones(2, 7, 1, dtype=torch.float64)], -1)
    queries = torch.zeros(2, 5, 3, dtype=torch.float64)
    torch.testing.assert_close(net(x), net.backbone(torch.cat([measured, queries], 1))[:, 7:])
    longer = net(x, elapsed_ahead=torch.full((2, 5), 2.0, dtype=torch.float64))
    assert not torch.allclose(longer, net(x))


def test_normalised_forecasts_are_equivariant_to_shift_and_scale():
    net = make_forecaster(normalise=True)
    x = make_series(2, 40)
    torch.testing.assert_close(net(3 * x + 7), 3 * net(x) + 7, rtol=1e-3, atol=1e-3)


def test_forecaster_learns_to_continue_a_sine_wave():
    torch.manual_seed(0)
    net = Forecaster.from_spec("m", d_model=16, d_state=8, d_input=1, horizon=8)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(150):
        start = torch.rand(32, 1) * 2 * math.pi
        wave = torch.sin(start + torch.arange(32) * 0.5).unsqueeze(-1)
        loss = (net(wave[:, :24]) - wave[:, 24:]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.05  # the variance is 0.5


def test_saved_forecaster_can_be_loaded(tmp_path):
    net = make_forecaster(mode="offset", normalise=True, linear_window=3, linear_channels="own")
    net.set_linear(torch.randn(2, 5, 3), torch.randn(2, 5), torch.randn(2, 5))
    net.save_pretrained(tmp_path)
    loaded = Forecaster.from_pretrained(tmp_path)
    x = make_series(2, 6)
    torch.testing.assert_close(loaded(x), net(x))
    assert loaded.config == net.config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": 0}, "`horizon` must .*got 0"),
        ({"mode": "direct"}, "`mode` must .*got 'direct'"),
        ({"linear_channels": "own"}, "`linear_channels` must be 'shared' without `linear_window`, got 'own'"),
        ({"linear_covariate_window": 3, "d_covariates": 1}, "`linear_covariate_window` must be 0 without `linear_window`, got 3"),
        ({"spec": "bidirectional"}, "`blocks` must be causal, got blocks that are not"),
        (
            {"spec": "s5", "mode": "offset", "block_options": {"s5": {"stride": 2}}},
            "each block must keep the length of the sequence for forecasts, got block 0 ",
        ),
    ],
    ids=str,
)
def test_invalid_setting_raises(options, message):
    with pytest.raises(ValueError, match=message):
        make_forecaster(**options)


def test_invalid_inputs_raise():
    with pytest.raises(ValueError, match=r"`inputs` must have shape .*, got \(1, 0, 2\)"):
        make_forecaster()(make_series(1, 0))
    with pytest.raises(ValueError, match="`inputs` must have at least 5 steps, as many as the horizon, got 3"):
        make_forecaster(mode="offset")(make_series(1, 3))
    with pytest.raises(ValueError, match="`elapsed_ahead` must be None in mode 'offset'"):
        make_forecaster(mode="offset")(make_series(1, 6), elapsed_ahead=torch.ones(1, 5))
    net, x = make_forecaster("s4d", d_covariates=1), make_series(2, 9)
    with pytest.raises(TypeError, match="`inputs` must be a tensor, got a ndarray"):
        net(x.numpy())
    for arguments, message in (
        ({"valid": torch.ones(2, 8, dtype=torch.bool)}, r"`valid` must have shape \(2, 9\), got \(2, 8\)"),
        ({"elapsed_ahead": torch.ones(2, 4)}, r"`elapsed_ahead` must have shape \(2, 5\), got \(2, 4\)"),
        ({"elapsed_ahead": torch.tensor([[1.0] * 5, [1, 1, -2, 1, 1]])}, r"`elapsed_ahead` must be finite .*, got -2\.0"),
    ):
        with pytest.raises(ValueError, match=message):
            net(x, **arguments)
    with pytest.raises(TypeError, match=r"`valid` must have dtype torch\.bool, got torch\.int64"):
        net(x, valid=torch.ones(2, 9, dtype=torch.int64))
    for name in ("valid", "elapsed", "elapsed_ahead", "covariates"):
        with pytest.raises(TypeError, match=f"`{name}` must be a tensor or None, got a float"):
            net(x, **{name: 1.0})
    for arguments in ({"inputs": x.cfloat()}, {"inputs": x, "covariates": torch.ones(2, 9, 1, dtype=torch.complex64)}):
        with pytest.raises(TypeError, match=r"^`(inputs|covariates)` must be real numbers, got torch\.complex64"):
            net(**{"covariates": torch.ones(2, 9, 1), **arguments})
    with pytest.raises(TypeError, match="`level` must be a tensor or None, got a list"):
        make_forecaster(linear_window=4).set_linear(torch.zeros(1, 5, 4), [0.0], torch.zeros(1, 5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.float64])
@pytest.mark.parametrize("own", [torch.float32, torch.bfloat16])
def test_forecasts_are_in_the_promotion_of_inputs_and_weights(own, dtype):
    net = make_forecaster("s4d", normalise=True, linear_window=4, linear_covariate_window=2, d_covariates=2, d_covariates_ahead=1)
    x, covariates, ahead = ((8 * torch.randn(2, length, 2)).round() for length in (9, 9, 5))
    net.set_linear(torch.randn(1, 5, 4), torch.randn(1, 5), torch.randn(1, 5), torch.randn(2, 1), torch.randn(2, 5, 2, 2))
    net = net.to(own)
    y = net(x.to(dtype), covariates=covariates, covariates_ahead=ahead[..., :1])
    assert y.dtype == torch.promote_types(dtype, own)
    expected = net(x.to(y.dtype), covariates=covariates.to(y.dtype), covariates_ahead=ahead[..., :1].to(y.dtype))
    torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("interaction", ["nli", "concat"])
def test_siamese_model_combines_the_features_of_both_sequences(interaction, tmp_path):
    net = SiameseModel.from_spec("ma", d_model=6, d_state=4, vocab_size=9, d_output=2, interaction=interaction).double()
    first, second = torch.randint(0, 9, (3, 5)), torch.randint(0, 9, (3, 8))
    a, b = net.backbone(first), net.backbone(second)
    features = torch.cat([a, b, a * b, a - b] if interaction == "nli" else [a, b], -1)
    torch.testing.assert_close(net(first, second), net.head(features))
    valid = torch.arange(8) < 5
    padded = torch.cat([first, torch.full((3, 3), 99)], 1)
    torch.testing.assert_close(net(padded, second, valid_first=valid.expand(3, 8)), net(first, second))
    times = torch.rand(3, 8, dtype=torch.float64)
    c = net.backbone(second, elapsed=times)
    expected = net.head(torch.cat([a, c, a * c, a - c][: 4 if interaction == "nli" else 2], -1))
    torch.testing.assert_close(net(first, second, elapsed_second=times), expected)
    net.save_pretrained(tmp_path)
    torch.testing.assert_close(SiameseModel.from_pretrained(tmp_path)(first, second), net(first, second))


def test_siamese_model_learns_whether_two_sequences_have_the_same_source():
    torch.manual_seed(0)
    net = SiameseModel.from_spec("m", d_model=16, d_state=4, vocab_size=8, d_output=2, pooling="mean")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    accuracies = []
    for _ in range(150):
        source = torch.randint(0, 2, (2, 32, 1))
        text = torch.randint(0, 6, (2, 32, 12)) + 2 * source
        labels = (source[0] == source[1]).squeeze(1).long()
        output = net(text[0], text[1])
        loss = torch.nn.functional.cross_entropy(output, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        accuracies.append((output.argmax(1) == labels).float().mean().item())
    assert sum(accuracies[-20:]) / 20 > 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "none"}, "`pooling` must .*got 'none'"),
        ({"interaction": "sum"}, "`interaction` must .*got 'sum'"),
        ({"d_output": 0}, "`d_output` must .*got 0"),
        ({"d_input": 2}, "exactly one of `vocab_size` and `d_input` must be given, got 9 and 2"),
    ],
    ids=str,
)
def test_invalid_setting_of_siamese_models_raises(options, message):
    with pytest.raises(ValueError, match=message):
        SiameseModel.from_spec("m", **{"d_model": 4, "d_output": 2, "vocab_size": 9, **options})


def test_unequal_numbers_of_sequences_raise():
    net = SiameseModel.from_spec("m", d_model=4, d_output=2, vocab_size=9)
    with pytest.raises(ValueError, match="`second` must have 3 sequences, as many as first, got 2"):
        net(torch.zeros(3, 2, dtype=torch.int64), torch.zeros(2, 2, dtype=torch.int64))
    with pytest.raises(TypeError, match="`second` must be a tensor, got a list"):
        net(torch.zeros(1, 2, dtype=torch.int64), [[0, 1]])


def test_quantiles_do_not_cross_and_leave_the_gradients_of_the_forecast_alone():
    net = make_forecaster(quantiles=[0.1, 0.5, 0.9], normalise=True)
    x = make_series(3, 9)
    forecast, quantiles = net.forecast_quantiles(x)
    assert quantiles.shape == (3, 5, 2, 3)
    assert (quantiles.diff(dim=-1) >= 0).all()
    torch.testing.assert_close(net(x), forecast)
    weight = net.backbone.head.weight
    (gradient,) = torch.autograd.grad(quantiles.square().sum(), weight, retain_graph=True)
    assert gradient[:2].eq(0).all()
    assert gradient[2:].ne(0).any(1).all()
    (gradient,) = torch.autograd.grad(forecast.square().sum(), weight)
    assert gradient[2:].eq(0).all()
    assert make_forecaster().forecast_quantiles(x)[1].shape == (3, 5, 2, 0)
    linear = make_forecaster(quantiles=[0.2, 0.8], linear_window=4)
    linear.set_linear(torch.randn(1, 5, 4), torch.randn(1, 5), torch.randn(1, 5))
    forecast, quantiles = linear.forecast_quantiles(x)
    torch.testing.assert_close(quantiles, forecast.unsqueeze(-1).expand(-1, -1, -1, 2))


@pytest.mark.parametrize("mode", ["queries", "offset"])
def test_padding_does_not_change_forecasts_with_covariates(mode):
    known = 1 if mode == "queries" else 0
    net = make_forecaster(
        mode=mode, d_covariates=3, d_covariates_ahead=known, linear_window=4, linear_covariate_window=2, quantiles=[0.5]
    )
    net.set_linear(torch.randn(1, 5, 4), torch.randn(1, 5), torch.randn(1, 5), torch.randn(2, known), torch.randn(2, 5, 2, 3))
    torch.nn.init.normal_(net.backbone.head.weight)
    x, covariates, ahead = make_series(2, 7), torch.randn(2, 7, 3).double(), torch.randn(2, 5, known).double()
    expected = net(x, covariates=covariates, covariates_ahead=ahead)
    forecast, quantiles = net.forecast_quantiles(x, covariates=covariates, covariates_ahead=ahead)
    torch.testing.assert_close(forecast, expected)
    for left in (False, True):
        pads = [torch.full((2, 3, values.shape[-1]), torch.nan, dtype=torch.float64) for values in (x, covariates)]
        padded = [torch.cat([pad, v] if left else [v, pad], 1) for v, pad in zip((x, covariates), pads, strict=True)]
        valid = ~padded[0][..., 0].isnan()
        torch.testing.assert_close(net(padded[0], covariates=padded[1], covariates_ahead=ahead, valid=valid), expected)
        found = net.forecast_quantiles(padded[0], covariates=padded[1], covariates_ahead=ahead, valid=valid)
        torch.testing.assert_close(found, (forecast, quantiles))


def test_linear_forecast_adds_the_effect_of_covariates():
    net = make_forecaster(d_covariates=3, d_covariates_ahead=2, linear_window=4, linear_covariate_window=2)
    effect, weights = torch.randn(2, 2).double(), torch.randn(2, 5, 2, 3).double()
    parts = torch.randn(1, 5, 4).double(), torch.randn(1, 5).double(), torch.randn(1, 5).double()
    plain = make_forecaster(linear_window=4)
    plain.set_linear(*parts)
    net.set_linear(*parts, effect, weights)
    x, covariates, ahead = make_series(3, 9), torch.randn(3, 9, 3).double(), torch.randn(3, 5, 2).double()
    expected = plain(x - covariates[..., 1:] @ effect.T) + ahead @ effect.T
    expected = expected + torch.einsum("btp,chtp->bhc", covariates[:, -2:], weights)
    torch.testing.assert_close(net(x, covariates=covariates, covariates_ahead=ahead), expected)


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({"quantiles": [0.5, 0.1]}, {}, r"`quantiles` must be in increasing order, got \[0\.5, 0\.1\]"),
        ({"quantiles": [0.5, 1.0]}, {}, r"`quantiles\[1\]` must be a number between 0 and 1, got 1\.0"),
        ({"d_covariates_ahead": 1}, {}, "`d_covariates_ahead` must be at most `d_covariates`, 0, got 1"),
        ({"d_covariates": 2, "d_covariates_ahead": 1, "mode": "offset"}, {},
         "`d_covariates_ahead` must be 0 in mode 'offset', got 1"),
        ({"d_covariates": 2}, {}, r"`covariates` must have shape \(1, 9, 2\), got None"),
        ({}, {"covariates": torch.zeros(1, 9, 2)}, r"`covariates` must have shape \(1, 9, 0\), got \(1, 9, 2\)"),
        ({"d_covariates": 1, "d_covariates_ahead": 1},
         {"covariates": torch.zeros(1, 9, 1), "covariates_ahead": torch.zeros(1, 4, 1)},
         r"`covariates_ahead` must have shape \(1, 5, 1\), got \(1, 4, 1\)"),
    ],
    ids=str,
)  # fmt: skip
def test_invalid_quantiles_or_covariates_raise(options, arguments, message):
    with pytest.raises(ValueError, match=message):
        make_forecaster(**options)(make_series(1, 9), **arguments)


def test_errors_about_pairs_name_the_sequence():
    pairs = SiameseModel.from_spec("m", d_model=4, d_output=2, vocab_size=9)
    first, second = torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int64)
    valid = torch.ones(2, 5, dtype=torch.bool)
    cases = {
        "`second` must be tokens from 0 to 8, got 9": lambda: pairs(first, second + 9),
        r"`first` must be integer tokens of shape \(batch, length\), got torch\.int64 \(5,\)": lambda: pairs(first[0], second),
        "`second` must have 2 sequences, as many as first, got 1": lambda: pairs(first, second[:1]),
        "`valid_first` must have one run of valid steps per row": lambda: pairs(
            first, second, valid_first=torch.tensor([[True, False, True, True, True]]).expand(2, 5)
        ),
        "`elapsed_second` must be finite times of at least 0": lambda: pairs(first, second, elapsed_second=-torch.ones(2, 3)),
        r"`valid_second` must have shape \(2, 3\), got \(2, 5\)": lambda: pairs(first, second, valid_second=valid),
        r"`elapsed_second` must have shape \(2, 3\)": lambda: pairs(first, second, elapsed_second=torch.ones(2, 5)),
    }
    for message, call in cases.items():
        with pytest.raises(ValueError, match=message):
            call()
    for message, call in {
        r"`valid_first` must have dtype torch\.bool": lambda: pairs(first, second, valid_first=valid.float()),
        "`second` must be a tensor, got a list": lambda: pairs(first, [[1]]),
        "`elapsed_first` must be a tensor or None": lambda: pairs(first, second, elapsed_first=1.0),
    }.items():
        with pytest.raises(TypeError, match=message):
            call()
    with pytest.raises(ValueError, match="`inputs` must be tokens from 0 to 8, got 9"):
        pairs.backbone(second + 9)  # called alone, with the names of its own arguments
    series = SiameseModel.from_spec("s4d", d_model=4, d_output=2, d_input=3)
    with pytest.raises(ValueError, match=r"`first` must have shape \(batch, length, 3\), got \(2, 5, 2\)"):
        series(torch.zeros(2, 5, 2), torch.zeros(2, 5, 3))
