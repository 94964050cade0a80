"""Files of fitted estimators: equal predictions, clear errors for damaged files and for those of others."""

import datetime
import json
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from sklearn.exceptions import NotFittedError

from longscan import SequenceModel
from longscan._specs import STANDARD_BLOCKS
from longscan.engine import Callback
from longscan.estimators import SSMClassifier, SSMForecaster, SSMRegressor, saving
from longscan.estimators.saving import _decode, _encode

FORMAT_1 = Path(__file__).parents[1] / "saved/estimators_1"
FORMAT_2 = Path(__file__).parents[1] / "saved/estimators_2"
BRIEF = {"d_model": 4, "d_state": 2, "epochs": 1, "device": "cpu", "random_state": 0}


def make_fitted(name):
    """Return an estimator and a call that predicts with one like it."""
    random = np.random.default_rng(0)
    X, times = random.normal(size=(9, 7, 2)), random.exponential(size=(9, 7)).cumsum(1)
    y = np.array(["up", "down", "flat"] * 3)
    if name == "classifier":
        return SSMClassifier("lru", **BRIEF, class_weight={"up": 2.0}).fit(X, y, times), lambda m: m.predict_proba(X, times)
    if name == "table":
        table = pd.DataFrame(X[..., 0], columns=list("abcdefg"))
        return SSMClassifier(**BRIEF).fit(table, np.arange(9) % 2), lambda m: m.predict_proba(table)
    if name == "frames":
        frames = [pd.DataFrame(row, columns=["level", "flow"]) for row in X]
        model = SSMRegressor("mamba lru", **BRIEF, block_options={"mamba": {"expand": 1}}, output="pandas")
        return model.fit(frames, pd.DataFrame({"a": np.arange(9), "b": 1.0})), lambda m: m.predict(frames)
    if name == "blocks":
        blocks = [{"layer": "s5", "block": "s5"}]
        return SSMRegressor(blocks, **BRIEF).fit(X, np.arange(9.0)), lambda m: m.predict(X)
    hours = pd.date_range("2024-03-01", periods=90, freq="h", tz="Europe/Berlin")
    series = pd.Series(np.sin(np.arange(90.0)), hours, name="wave")
    if name == "quantiles":
        return SSMForecaster(3, 8, **BRIEF, quantiles=(0.1, 0.9)).fit(series), lambda m: m.predict_quantiles()
    return SSMForecaster(3, 8, **BRIEF).fit(series), lambda m: m.predict()


NAMES = ["classifier", "table", "frames", "blocks", "forecaster", "quantiles"]


@pytest.mark.parametrize("name", NAMES)
def test_loaded_estimator_makes_the_same_predictions(name, tmp_path):
    model, predict = make_fitted(name)
    expected = predict(model)
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model")
    for copy in (loaded, pickle.loads(pickle.dumps(model))):
        predicted = predict(copy)
        assert type(predicted) is type(expected)
        if isinstance(expected, (pd.DataFrame, pd.Series)):
            (pd.testing.assert_series_equal if expected.ndim == 1 else pd.testing.assert_frame_equal)(
                predicted, expected, check_exact=True
            )
        else:
            np.testing.assert_array_equal(predicted, expected)
    assert repr(loaded) == repr(model)
    assert vars(loaded).keys() == vars(model).keys()
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "model").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "model"]
    refitted = loaded.set_params(epochs=2)
    assert refitted.get_params()["epochs"] == 2


def test_path_that_is_none_is_named(tmp_path):
    model, _ = make_fitted("table")
    for call in (lambda: model.save(7), lambda: type(model).load(b"model")):
        with pytest.raises(TypeError, match="`path` must be a str or a path, got "):
            call()
    for call in (lambda: SequenceModel.from_pretrained(None), lambda: model.model_.save_pretrained(7)):
        with pytest.raises(TypeError, match="`folder` must be a str or a path, got "):
            call()


def test_load_does_not_change_the_random_state_of_torch(tmp_path):
    for name in ("table", "blocks", "forecaster"):
        model, predict = make_fitted(name)
        model.save(tmp_path / "model")
        torch.manual_seed(5)
        loaded = type(model).load(tmp_path / "model")
        drawn = torch.rand(3)
        torch.manual_seed(5)
        assert drawn.equal(torch.rand(3)), name
        np.testing.assert_array_equal(predict(loaded), predict(model))


@pytest.mark.parametrize("name", sorted(STANDARD_BLOCKS))
def test_models_of_every_block_are_read_whole(name):
    """Nothing of a model but its weights and buffers may depend on the device on which it was built."""
    model = SequenceModel.from_spec(name, d_model=8, d_state=4, d_input=2, d_output=3).eval()
    tensors = {}
    encoded = _encode(model, "model", tensors)
    torch.manual_seed(5)
    loaded = _decode(encoded, tensors)
    assert torch.rand(3).equal(torch.rand(3, generator=torch.Generator().manual_seed(5)))
    x = torch.randn(2, 9, 2)
    assert loaded(x).equal(model(x))


def test_loaded_weights_begin_where_products_are_rounded_alike(tmp_path):
    """Products of matrices that begin at other addresses than multiples of 64 bytes may have other last bits."""
    model, _ = make_fitted("forecaster")
    model.save(tmp_path / "model")
    loaded = SSMForecaster.load(tmp_path / "model")
    for fitted in (model, loaded):
        assert {weight.data_ptr() % 64 for weight in fitted.model_.parameters()} == {0}


def test_settings_without_a_form_in_the_file_raise(tmp_path):
    X, y = np.random.default_rng(0).normal(size=(8, 5)), np.arange(8) % 2
    with pytest.raises(NotFittedError):
        SSMClassifier().save(tmp_path / "model")
    generator = SSMClassifier(**{**BRIEF, "random_state": np.random.RandomState(0)}).fit(X, y)
    with pytest.raises(ValueError, match=r"^`random_state` must be a whole number or None .*, got a RandomState"):
        generator.save(tmp_path / "model")
    model = SSMClassifier(**BRIEF, callbacks=[Callback()]).fit(X, y)
    model.extra = object()
    with pytest.raises(ValueError, match=r"^`extra` must be a value that can be saved, got a builtins\.object"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())
    del model.extra
    model.save(tmp_path / "model")
    assert SSMClassifier.load(tmp_path / "model").callbacks is None


def rewrite(path, change):
    """Write a saved estimator again, with another content and its right checksum."""
    content, tensors = saving._read(path)
    change(content)
    saving._write(path, json.dumps(content), tensors)


def test_files_of_others_and_damaged_files_raise(tmp_path):
    path = tmp_path / "model"
    model, _ = make_fitted("classifier")
    model.save(path)
    with pytest.raises(ValueError, match="model must be a saved SSMRegressor, got a SSMClassifier"):
        SSMRegressor.load(path)
    with pytest.raises(FileNotFoundError, match="missing does not exist; an estimator is saved as one file"):
        SSMClassifier.load(tmp_path / "missing")
    with pytest.raises(IsADirectoryError, match="got a folder; `from_pretrained` of the classes in longscan"):
        SSMClassifier.load(tmp_path)
    with pytest.raises(NotADirectoryError, match="got a file; `load` of the classes in longscan"):
        SequenceModel.from_pretrained(path)
    with pytest.raises(ValueError, match=r"`device` must be one of the devices that torch finds here \(cpu\), got 'cuda:7'"):
        SSMClassifier.load(path, device="cuda:7")
    whole = path.read_bytes()
    for position in (9, 200, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(ValueError, match=r"model (is damaged|must be a saved estimator)"):
            SSMClassifier.load(path)
    for damaged in (whole[: len(whole) // 2], b"", b"text"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="model is damaged"):
            SSMClassifier.load(path)
    for change, message in (
        (
            lambda content: content.update(format=5, version="7.0"),
            r"must have the format 4 or an earlier one, got 5, which longscan 7\.0 wrote; .* load it with longscan 7\.0 or later",
        ),
        (lambda content: content["settings"].update(depth=2), "must have settings of this version of SSMClassifier, got depth"),
        (lambda content: content["attributes"].update(a={"kind": "set"}), "is damaged, or another version wrote it"),
        (lambda content: content["attributes"]["model_"]["config"]["items"].append("x"), "is damaged, or another version"),
    ):
        path.write_bytes(whole)
        rewrite(path, change)
        with pytest.raises(ValueError, match=message):
            SSMClassifier.load(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="model must be a saved estimator, got another safetensors file"):
        SSMClassifier.load(path)


def test_files_of_format_1():
    """The folder has what the code before format 2 saved; predictions are those of that code."""
    t, phases = np.arange(24), np.arange(3)[:, None]
    X = np.sin((0.4 + 0.5 * (np.arange(3) % 2))[:, None] * t + phases)
    stack = SSMClassifier.load(FORMAT_1 / "stack.safetensors")
    np.testing.assert_allclose(stack.predict_proba(X)[:, 0], [0.618139, 0.623992, 0.630027], atol=1e-5)
    forecaster = SSMForecaster.load(FORMAT_1 / "forecaster.safetensors")
    np.testing.assert_allclose(forecaster.predict(), [-0.331649, -0.749489, -1.002694, -1.000837], atol=1e-5)
    message = r"must have the format 2 .*, got 1, which longscan 0\.1\.0 .* wrote; .* fit the estimator again"
    with pytest.raises(ValueError, match=message):
        SSMClassifier.load(FORMAT_1 / "features.safetensors")


def test_files_of_format_2():
    """The folder has what the code of format 2 saved, without a readout of states; predictions are those of that code."""
    forecaster = SSMForecaster.load(FORMAT_2 / "forecaster.safetensors")
    assert forecaster.state_readout_ is None
    expected = [[0.745099, 2.354953], [0.334144, 1.959802], [-0.158621, 2.072072], [-0.612551, 2.257825]]
    np.testing.assert_allclose(forecaster.predict(), expected, atol=1e-5)


def test_interrupted_save_leaves_the_earlier_file(tmp_path, monkeypatch):
    model, _ = make_fitted("table")
    model.save(tmp_path / "model")
    before = (tmp_path / "model").read_bytes()

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("longscan.estimators.saving.os.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.set_params(batch_size=7).save(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model").read_bytes() == before


HOURS = pd.date_range("2024-10-26", periods=60, freq="h", tz="Europe/Berlin", name="when")
INDEXES = [
    HOURS, HOURS[[0, 2, 3]], HOURS.tz_localize(None), HOURS.as_unit("s"),
    pd.date_range("2024", periods=3, freq="MS", tz="UTC+02:00"),
    pd.period_range("2024-01", periods=3, freq="2M"), pd.timedelta_range(0, periods=3, freq="90s"),
    pd.RangeIndex(4, 12, 2, name="n"), pd.Index([1.5, 2.0]), pd.Index(["a", "é"]), pd.Index(["a", 1, None], dtype=object),
    pd.Index([1, 2], dtype="Int64"), pd.Index([True, False]),
    pd.MultiIndex.from_product([["a", "b"], [0, 1]], names=["case", "time"]),
]  # fmt: skip


@pytest.mark.parametrize("index", INDEXES, ids=lambda index: str(index.dtype))
def test_indexes_and_frames_are_restored(index):
    numbers = np.arange(len(index))
    frame = pd.DataFrame({"a": numbers / 7, 2: numbers % 2 == 0, "c": numbers.astype(np.float32)}, index=index)
    series = pd.Series(numbers, index=index, name=("a", 1), dtype="Float64")
    tensors = {}
    text = json.dumps([_encode(value, str(number), tensors) for number, value in enumerate((index, frame, series))])
    restored = [_decode(value, tensors) for value in json.loads(text)]
    pd.testing.assert_index_equal(restored[0], index, exact=True)
    pd.testing.assert_frame_equal(restored[1], frame, check_freq=True)
    pd.testing.assert_series_equal(restored[2], series)
    assert getattr(restored[0], "freq", None) == getattr(index, "freq", None)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 0.1, float("inf"), "text", (1, ("a",)), [1, [2.5]], {0: "a", "b": (1,)}, np.float32(0.1), np.int64(3),
        np.zeros((2, 0)), np.array("x"), np.array(["a", "bcd"]), np.array(["a", None, 2], object),
        np.array(["2024-01-01", "NaT"], "M8[D]"), np.datetime64("2024-01-01T00"), pd.Timedelta("90min"), pd.offsets.MonthEnd(2),
        datetime.UTC, HOURS.tz,
    ],
    ids=repr,
)  # fmt: skip
def test_values_are_restored(value):
    tensors = {}
    restored = _decode(json.loads(json.dumps(_encode(value, "value", tensors))), tensors)
    assert type(restored) is type(value) or isinstance(value, datetime.tzinfo)
    if isinstance(value, np.ndarray):
        assert restored.dtype == value.dtype
        np.testing.assert_array_equal(restored, value)
    else:
        assert str(restored) == str(value)


def test_models_in_lists_and_tensors_are_restored():
    models = [SequenceModel.from_spec(spec, d_model=4, d_output=2, d_input=1) for spec in ("mamba", "lru s5")]
    tensors = {}
    text = json.dumps(_encode({"models": models, "bias": torch.arange(3.0)}, "value", tensors))
    restored = _decode(json.loads(text), tensors)
    x = torch.randn(1, 5, 1)
    for before, after in zip(models, restored["models"], strict=True):
        assert torch.equal(after(x), before.eval()(x))
    assert restored["bias"].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"^`value\.0` must be a value that can be saved, got a torch\.nn"):
        _encode([torch.nn.Linear(1, 1)], "value", {})
    with pytest.raises(ValueError, match=r"^`value` must be an array that can be saved, got dtype complex128"):
        _encode(np.zeros(1, complex), "value", {})
    big_endian = _encode(np.array([1, 2], ">i4"), "value", tensors)
    assert _decode(big_endian, tensors).tolist() == [1, 2]


def test_numbers_of_numpy_among_the_settings_are_saved(tmp_path):
    """Searches over settings, such as GridSearchCV with np.arange, give such numbers."""
    settings = BRIEF | {"d_model": np.int64(4), "d_state": np.int32(2)}
    wave = list(np.sin(np.arange(60.0)))
    model = SSMForecaster(np.int64(3), np.int64(8), **settings).fit(wave)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(SSMForecaster.load(tmp_path / "model").predict(), model.predict())
    X, y = np.random.default_rng(0).normal(size=(9, 7, 2)), np.arange(9.0)
    regressor = SSMRegressor("lru", **settings).fit(X, y)
    regressor.save(tmp_path / "model")
    np.testing.assert_array_equal(SSMRegressor.load(tmp_path / "model").predict(X), regressor.predict(X))
