import pytest
import torch
from torch import nn

from longscan.models import SequenceModel
from longscan.models.encoders import ImageEncoder
from longscan.tasks import TASKS
from longscan.training.run import build_model
from longscan.training.settings import ModelSettings, SettingError, Settings


def test_equations():
    """Two convolutions with pooling and a linear map of each image, and a linear map of these features and the other inputs."""
    encoder = ImageEncoder((1, 24, 24), 577, 30).double()
    inputs = torch.randn(2, 5, 577, dtype=torch.float64)
    first, second, dense = encoder.images[0], encoder.images[3], encoder.images[7]
    x = inputs[1, 3, :576].view(1, 1, 24, 24)
    x = nn.functional.max_pool2d(torch.conv2d(x, first.weight, first.bias, padding=2).relu(), 2)
    x = nn.functional.max_pool2d(torch.conv2d(x, second.weight, second.bias, stride=2, padding=1).relu(), 2)
    features = torch.cat([dense(x.flatten()).relu(), inputs[1, 3, 576:]])
    torch.testing.assert_close(encoder(inputs)[1, 3], encoder.dense(features))
    assert dense.in_features == 12 * 3 * 3


@pytest.mark.parametrize("shape", [(1, 6, 6), (3, 7, 10), (2, 13, 6)])
def test_sizes(shape):
    """Images of every size from 6 x 6 pass, in any batch, and each step's encoding depends on its own inputs only."""
    size = shape[0] * shape[1] * shape[2]
    encoder = ImageEncoder(shape, size, 4)
    inputs = torch.randn(2, 3, size)
    y = encoder(inputs)
    assert y.shape == (2, 3, 4)
    torch.testing.assert_close(encoder(inputs[:, 1:2]), y[:, 1:2])
    for empty in (inputs[:, :0], inputs[:0]):
        assert encoder(empty).shape == (*empty.shape[:2], 4)


def test_in_a_model(tmp_path):
    model = SequenceModel.from_spec("s7", d_model=8, d_output=2, d_input=65, image_shape=(1, 8, 8), pooling="none")
    inputs = torch.randn(2, 5, 65)
    y = model(inputs)
    assert y.shape == (2, 5, 2)
    y.sum().backward()
    assert all(parameter.grad is not None for parameter in model.encoder.parameters())
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(SequenceModel.from_pretrained(tmp_path)(inputs), y)
    state = model.initial_state(2)
    for t in range(5):
        y_t, state = model.step(inputs[:, t], state)
        torch.testing.assert_close(y_t, y[:, t])
    assert model.bfloat16()(inputs).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"d_input": 64, "image_shape": (1, 5, 8)}, r"`image_shape` must .* at least 6, got \(1, 5, 8\)"),
        ({"d_input": 63, "image_shape": (1, 8, 8)}, r"`image_shape` must .* d_input \(63\) values, got \(1, 8, 8\)"),
        ({"vocab_size": 3, "image_shape": (1, 8, 8)}, r"`image_shape` must be None for tokens, got \(1, 8, 8\)"),
        ({"d_input": 64, "image_shape": (0, 8, 8)}, r"`image_shape\[0\]` must .*got 0"),
    ],
)
def test_impossible_shapes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        SequenceModel.from_spec("s7", d_model=4, d_output=2, **arguments)


@pytest.mark.parametrize("elapsed", ["layers", "channel"])
def test_setting(elapsed):
    task = TASKS["pendulum"](elapsed=elapsed, train_size=2, valid_size=2, test_size=2)
    model = build_model(Settings(task=task, model=ModelSettings(spec="gru", encoder="conv2d")))
    assert model(task.batch("train", 0, 2).inputs).shape == (2, 50, 2)
    with pytest.raises(SettingError, match=r"`model\.encoder` must be auto, as the inputs of fitzhugh_nagumo are no images, got"):
        build_model(Settings(task=TASKS["fitzhugh_nagumo"](), model=ModelSettings(encoder="conv2d")))
