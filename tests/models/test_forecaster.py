import math

import pytest
import torch

from longscan.models import Forecaster, SiameseModel


def forecaster(spec: str = "ma", **options) -> Forecaster:
    given = {"d_model": 6, "d_state": 4, "d_input": 2, "horizon": 5, **options}
    return Forecaster.from_spec(spec, **given).double().eval()


def series(batch: int, length: int) -> torch.Tensor:
    return torch.randn(batch, length, 2, dtype=torch.float64)


@pytest.mark.parametrize("mode", ["queries", "offset"])
@pytest.mark.parametrize("normalise", [False, True])
def test_padding_changes_no_forecast(mode, normalise):
    net = forecaster(mode=mode, normalise=normalise)
    short, long = series(1, 6), series(1, 9)
    alone = torch.cat([net(short), net(long)])
    for left in (False, True):
        pad = torch.full((1, 3, 2), torch.nan, dtype=torch.float64)
        rows = torch.cat([torch.cat([pad, short] if left else [short, pad], 1), long])
        torch.testing.assert_close(net(rows, valid=~rows[..., 0].isnan()), alone)


def test_a_forecast_of_the_published_size():
    """720 steps in, 720 steps out; every output has seen the last input in mode "queries", and its own past in mode "offset"."""
    x = series(1, 720)
    later = x.clone()
    later[:, 700:] += 1
    ahead, offset = (forecaster("m", horizon=720, mode=mode) for mode in ("queries", "offset"))
    assert ahead(x).shape == (1, 720, 2)
    assert ((ahead(x) - ahead(later)).abs().amax(-1) > 0).all()
    changed = (offset(x) - offset(later)).abs().amax(-1)[0] > 0
    assert not changed[:700].any()
    assert changed[700:].all()


def test_queries_run_the_state_on_without_input():
    net = forecaster("m")
    x = series(2, 7)
    measured = torch.cat([x, torch.ones(2, 7, 1, dtype=torch.float64)], -1)
    asked = torch.zeros(2, 5, 3, dtype=torch.float64)
    torch.testing.assert_close(net(x), net.backbone(torch.cat([measured, asked], 1))[:, 7:])
    longer = net(x, elapsed_ahead=torch.full((2, 5), 2.0, dtype=torch.float64))
    assert not torch.allclose(longer, net(x))


def test_normalised_forecasts_move_and_grow_with_the_series():
    net = forecaster(normalise=True)
    x = series(2, 40)
    torch.testing.assert_close(net(3 * x + 7), 3 * net(x) + 7, rtol=1e-3, atol=1e-3)


def test_it_learns_to_go_on_with_a_wave():
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


def test_forecasters_come_back_from_disk(tmp_path):
    net = forecaster(mode="offset", normalise=True)
    net.save_pretrained(tmp_path)
    back = Forecaster.from_pretrained(tmp_path)
    x = series(2, 6)
    torch.testing.assert_close(back(x), net(x))
    assert back.config == net.config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": 0}, "`horizon` must .*got 0"),
        ({"mode": "direct"}, "`mode` must .*got 'direct'"),
        ({"spec": "bidirectional"}, "`blocks` must be causal, got blocks that are not"),
        ({"spec": "s5", "mode": "offset", "block_options": {"s5": {"stride": 2}}}, "blocks: block 0 .* shortens the sequence"),
    ],
    ids=str,
)
def test_impossible_forecasters_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        forecaster(**options)


def test_impossible_requests_are_named():
    with pytest.raises(ValueError, match=r"`inputs` must have shape .*, got \(1, 0, 2\)"):
        forecaster()(series(1, 0))
    with pytest.raises(ValueError, match="`inputs` must have at least 5 steps, as many as the horizon, got 3"):
        forecaster(mode="offset")(series(1, 3))
    with pytest.raises(ValueError, match="`elapsed_ahead` must be None in mode 'offset'"):
        forecaster(mode="offset")(series(1, 6), elapsed_ahead=torch.ones(1, 5))


@pytest.mark.parametrize("interaction", ["nli", "concat"])
def test_siamese_models_by_hand(interaction, tmp_path):
    net = SiameseModel.from_spec("ma", d_model=6, d_state=4, vocab_size=9, d_output=2, interaction=interaction).double()
    first, second = torch.randint(0, 9, (3, 5)), torch.randint(0, 9, (3, 8))
    a, b = net.backbone(first), net.backbone(second)
    parts = torch.cat([a, b, a * b, a - b] if interaction == "nli" else [a, b], -1)
    torch.testing.assert_close(net(first, second), net.head(parts))
    valid = torch.arange(8) < 5
    padded = torch.cat([first, torch.full((3, 3), 99)], 1)
    torch.testing.assert_close(net(padded, second, valid_first=valid.expand(3, 8)), net(first, second))
    times = torch.rand(3, 8, dtype=torch.float64)
    c = net.backbone(second, elapsed=times)
    later = net.head(torch.cat([a, c, a * c, a - c][: 4 if interaction == "nli" else 2], -1))
    torch.testing.assert_close(net(first, second, elapsed_second=times), later)
    net.save_pretrained(tmp_path)
    torch.testing.assert_close(SiameseModel.from_pretrained(tmp_path)(first, second), net(first, second))


def test_siamese_models_learn_whether_two_sequences_have_one_source():
    torch.manual_seed(0)
    net = SiameseModel.from_spec("m", d_model=16, d_state=4, vocab_size=8, d_output=2, pooling="mean")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    right = []
    for _ in range(150):
        source = torch.randint(0, 2, (2, 32, 1))
        text = torch.randint(0, 6, (2, 32, 12)) + 2 * source
        labels = (source[0] == source[1]).squeeze(1).long()
        output = net(text[0], text[1])
        loss = torch.nn.functional.cross_entropy(output, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right.append((output.argmax(1) == labels).float().mean().item())
    assert sum(right[-20:]) / 20 > 0.9


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
def test_impossible_siamese_models_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        SiameseModel.from_spec("m", **{"d_model": 4, "d_output": 2, "vocab_size": 9, **options})


def test_pairs_must_be_pairs():
    net = SiameseModel.from_spec("m", d_model=4, d_output=2, vocab_size=9)
    with pytest.raises(ValueError, match="`second` must have 3 sequences, as many as first, got 2"):
        net(torch.zeros(3, 2, dtype=torch.int64), torch.zeros(2, 2, dtype=torch.int64))
