"""Files of fitted estimators: one safetensors file with all settings and fitted attributes. Nothing is pickled or unpickled.

Arrays and weights are the tensors of the file. Everything else is JSON in its header, in which an object {"kind": ...} stands for
a value that JSON cannot represent, such as a tuple, an index of pandas or a model. A checksum covers both.
"""

import json
import os
import zlib
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import date, datetime, tzinfo
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from pandas.tseries.frequencies import to_offset
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from longscan import __version__
from longscan._devices import find_device
from longscan._files import checked_path
from longscan._torch_defaults import torch_defaults
from longscan.estimators.covariates import CovariateEffect
from longscan.estimators.features import FeatureModel
from longscan.estimators.limits import Limits
from longscan.estimators.quantiles import Calibration
from longscan.estimators.readout import StateReadout
from longscan.estimators.shifts import ShiftLimits
from longscan.models import Forecaster, SequenceModel
from longscan.models.base import PretrainedModel
from longscan.models.saving import save_tensors, tensor_checksum

FORMAT = 4  # must be increased when earlier code cannot read a file of this version
# Formats of the models that can be read. In format 1 a `FeatureModel` has no length, and its features are others.
OLDEST_FORMATS = {"SequenceModel": 1, "Forecaster": 1, "FeatureModel": 2}
HEADER = "longscan_estimator"
SavedModel = PretrainedModel | FeatureModel
MODELS: Mapping[str, type[SavedModel]] = {kind.__name__: kind for kind in (SequenceModel, Forecaster, FeatureModel)}
# Named tuples among the attributes.
RECORDS = {kind.__name__: kind for kind in (Calibration, CovariateEffect, Limits, ShiftLimits, StateReadout)}


class SavedEstimator(BaseEstimator):
    """Base of estimators that can be saved."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to a file, with all settings but `callbacks`.

        The file is written under a temporary name in the same folder, which then replaces `path`. The estimator that `load`
        returns makes the same predictions, to the bit.

        Raises NotFittedError before `fit`, ValueError for a setting or an attribute that cannot be saved, such as a
        `random_state` that is a generator.
        """
        check_is_fitted(self, "model_")
        settings = {name: None if name == "callbacks" else value for name, value in self.get_params(deep=False).items()}
        if not (settings["random_state"] is None or isinstance(settings["random_state"], (int, np.integer))):
            got = type(settings["random_state"]).__name__
            raise ValueError(f"`random_state` must be a whole number or None in an estimator to be saved, got a {got}")
        attributes = {name: value for name, value in vars(self).items() if name not in settings}
        tensors: dict[str, Tensor] = {}
        content = {
            "format": FORMAT,
            "version": __version__,
            "class": type(self).__name__,
            "settings": {name: _encode(value, name, tensors) for name, value in settings.items()},
            "attributes": {name: _encode(value, name, tensors) for name, value in attributes.items()},
        }
        _write(checked_path("path", path), json.dumps(content), tensors)

    @classmethod
    @torch_defaults()
    def load(cls, path: str | os.PathLike[str], *, device: str | None = None) -> Self:
        """Read an estimator that `save` wrote.

        device: of the model; None for the setting `device` that was saved.

        The state of torch's random generators is not changed.

        Raises FileNotFoundError if there is no such file and IsADirectoryError if it is a folder, ValueError if it is damaged, is
        that of another class or of a later version, or has a model of an earlier version that this one cannot read.
        """
        content, tensors = _read(checked_path("path", path))
        _check_format(path, content)
        if content["class"] != cls.__name__:
            raise ValueError(f"{path} must be a saved {cls.__name__}, got a {content['class']}")
        unknown = sorted(content["settings"].keys() - cls._get_param_names())
        if unknown:
            raise ValueError(f"{path} must have settings of this version of {cls.__name__}, got {', '.join(unknown)}")
        try:
            estimator = cls(**{name: _decode(value, tensors) for name, value in content["settings"].items()})
            attributes = {name: _decode(value, tensors) for name, value in content["attributes"].items()}
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
            raise ValueError(f"{path} is damaged, or another version wrote it ({str(error)[:300]})") from error
        target = find_device(estimator.get_params()["device"] if device is None else device)
        for name, value in attributes.items():
            setattr(estimator, name, _to_device(value, target))
        return estimator


def _check_format(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Raise ValueError for the content of a file in a format that this version cannot read; it says which version can."""
    found, version = content["format"], content.get("version", "0.1.0 before its release")
    if found not in range(1, FORMAT + 1):
        raise ValueError(
            f"{path} must have the format {FORMAT} or an earlier one, got {found!r}, which longscan {version} wrote; this is "
            f"longscan {__version__}: load it with longscan {version} or later, or fit the estimator again"
        )
    oldest = OLDEST_FORMATS.get(content["attributes"]["model_"]["class"], FORMAT)
    if found < oldest:
        raise ValueError(
            f"{path} must have the format {oldest} or a later one, got {found}, which longscan {version} wrote; this is longscan "
            f"{__version__}, in which the features of estimators without settings of a stack are others: fit the estimator again "
            f"and save it, or load the file with the version that wrote it"
        )


def _write(path: Path, text: str, tensors: dict[str, Tensor]) -> None:
    """Write header and tensors under a temporary name, and move the file to `path`."""
    checksum = zlib.crc32(text.encode(), tensor_checksum(tensors))
    # A single entry, because safetensors writes several in arbitrary order, and the same estimator must give the same bytes.
    metadata = {HEADER: json.dumps({"content": text, "crc32": checksum})}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_tensors(tensors, temporary, metadata)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the content of the header and the tensors.

    Raises ValueError for a damaged file and for one of something else, FileNotFoundError and IsADirectoryError for no file.
    """
    from safetensors import SafetensorError, safe_open

    if path.is_dir():
        raise IsADirectoryError(
            f"{path} must be a file, as an estimator is saved as one, got a folder; `from_pretrained` of the classes in "
            "longscan.models reads a saved model, and longscan.training.Run a run"
        )
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; an estimator is saved as one file")
    try:
        with safe_open(path, "pt") as file:
            header = (file.metadata() or {}).get(HEADER)
            # Copies begin at multiples of 64 bytes, as those that were saved did: products are rounded differently at others.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - it is no mapping
        stored = None if header is None else json.loads(header)
        intact = stored is None or zlib.crc32(stored["content"].encode(), tensor_checksum(tensors)) == stored["crc32"]
        content = None if stored is None else json.loads(stored["content"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged, or is no saved estimator ({error})") from None
    if content is None:
        raise ValueError(f"{path} must be a saved estimator, got another safetensors file; longscan.models reads saved models")
    if not intact:
        raise ValueError(f"{path} is damaged (it does not have the checksum that was saved with it)")
    return content, tensors


def _encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return a value in JSON, and store its arrays in `tensors` under names that begin with `path`. Raises ValueError."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    for kind, (types, encode, _) in KINDS.items():
        if isinstance(value, types) and (kind == "record" or not hasattr(value, "_fields")):
            return {"kind": kind} | encode(value, path, tensors)
    raise ValueError(f"`{path}` must be a value that can be saved, got a {type(value).__module__}.{type(value).__qualname__}")


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value that `_encode` was given."""
    return KINDS[value["kind"]][2](value, tensors) if isinstance(value, dict) else value


def _to_device(value: Any, device: torch.device) -> Any:
    """Return a value whose models, in lists, too, are on a device."""
    if isinstance(value, list):
        return [_to_device(item, device) for item in value]
    return value.to(device) if isinstance(value, torch.nn.Module) else value


def _encode_items(values: Any, path: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {"items": [_encode(item, f"{path}.{number}", tensors) for number, item in enumerate(values)]}


def _decode_items(value: dict[str, Any], tensors: Mapping[str, Tensor]) -> list[Any]:
    return [_decode(item, tensors) for item in value["items"]]


def _encode_mapping(value: Mapping[Any, Any], path: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    return _encode_items([item for pair in value.items() for item in pair], path, tensors)


def _decode_mapping(value: dict[str, Any], tensors: Mapping[str, Tensor]) -> dict[Any, Any]:
    items = _decode_items(value, tensors)
    return dict(zip(items[::2], items[1::2], strict=True))


def _encode_array(array: np.ndarray, path: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Encode numbers as a tensor, dates and durations as a tensor of integers, text and objects as a list."""
    if array.dtype.kind in "biufmM":
        plain = array.view(np.int64) if array.dtype.kind in "mM" else array.astype(array.dtype.newbyteorder("="))
        tensors[path] = torch.from_numpy(np.array(plain, order="C"))
        return {"dtype": array.dtype.newbyteorder("=").str, "name": path}
    if array.dtype.kind not in "UO":
        raise ValueError(f"`{path}` must be an array that can be saved, got dtype {array.dtype}")
    dtype = "O" if array.dtype.kind == "O" else array.dtype.newbyteorder("=").str
    return {"dtype": dtype, "shape": list(array.shape), **_encode_items(array.ravel().tolist(), path, tensors)}


def _decode_array(value: dict[str, Any], tensors: Mapping[str, Tensor]) -> np.ndarray:
    dtype = np.dtype(value["dtype"])
    if "name" in value:
        array = tensors[value["name"]].numpy()
        return array.view(dtype) if dtype.kind in "mM" else array
    flat = np.empty(len(value["items"]), dtype=dtype)
    for number, item in enumerate(_decode_items(value, tensors)):
        flat[number] = item
    return flat.reshape(value["shape"])


def _encode_model(model: SavedModel, path: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    tensors |= {f"{path}/{name}": tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    return {"class": type(model).__name__, "config": _encode(model.config, f"{path}/config", tensors), "name": f"{path}/"}


def _decode_model(value: dict[str, Any], tensors: Mapping[str, Tensor]) -> SavedModel:
    kind, config_values = MODELS[value["class"]], _decode(value["config"], tensors)
    # New weights on "meta" draw no numbers from torch's random generator, which is that of the whole program.
    with nullcontext() if kind is FeatureModel else torch.device("meta"):
        model = kind(**config_values)
    prefix, config = value["name"], f"{value['name']}config."
    weights = {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix) and not name.startswith(config)  # numbers of NumPy among the settings
    }
    model.load_state_dict(weights, assign=True)
    return model.eval()


def _encode_moment(value: Any, path: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {"index": _encode(pd.Index([value]), path, tensors)}


def _encode_index(index: pd.Index, path: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Encode an index as its values and dtype; dates, periods and durations as integers with a frequency or None."""
    name = _encode(index.name, f"{path}.name", tensors)
    if isinstance(index, pd.MultiIndex):
        parts = [index.get_level_values(level) for level in range(index.nlevels)]
        return {"dtype": "multi", **_encode_items(parts, path, tensors)}
    if isinstance(index, pd.RangeIndex):
        return {"dtype": "range", "range": [index.start, index.stop, index.step], "name": name}
    if isinstance(index, (pd.DatetimeIndex, pd.PeriodIndex, pd.TimedeltaIndex)):
        values = _encode(index.asi8, path, tensors)
        return {"dtype": str(index.dtype), "values": values, "freq": getattr(index, "freqstr", None), "name": name}
    return _encode_values(index, path, tensors) | {"name": name}


def _decode_index(value: dict[str, Any], tensors: Mapping[str, Tensor]) -> pd.Index:
    dtype = value["dtype"]
    if dtype == "multi":
        return pd.MultiIndex.from_arrays(_decode_items(value, tensors))
    name = _decode(value["name"], tensors)
    if dtype == "range":
        return pd.RangeIndex(*value["range"], name=name)
    values = _decode(value["values"], tensors)
    if "freq" not in value:
        return pd.Index(values, dtype=dtype or values.dtype, name=name)
    if dtype.startswith("period"):
        return pd.PeriodIndex.from_ordinals(values, freq=value["freq"], name=name)
    unit = dtype.partition("[")[2].partition(",")[0].rstrip("]")
    if dtype.startswith("timedelta"):
        return pd.TimedeltaIndex(values.view(f"m8[{unit}]"), freq=value["freq"], name=name)
    dates = pd.DatetimeIndex(values.view(f"M8[{unit}]"), name=name)
    zone = dtype.partition(", ")[2].rstrip("]")
    dates = dates.tz_localize("UTC").tz_convert(zone) if zone else dates
    return dates if value["freq"] is None else pd.DatetimeIndex(dates, freq=value["freq"])


def _encode_values(values: Any, path: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return the values of an index or a Series with their dtype, None for that of the array."""
    plain = isinstance(values.dtype, np.dtype)
    array = values.to_numpy() if plain else values.to_numpy(dtype=object)
    return {"dtype": None if plain else str(values.dtype), "values": _encode(array, path, tensors)}


def _encode_series(series: pd.Series, path: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    return _encode_values(series, path, tensors) | _encode_items([series.index, series.name], f"{path}.index", tensors)


def _decode_series(value: dict[str, Any], tensors: Mapping[str, Tensor]) -> pd.Series:
    index, name = _decode_items(value, tensors)
    return pd.Series(_decode(value["values"], tensors), index=index, name=name, dtype=value["dtype"])


def _encode_frame(frame: pd.DataFrame, path: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    columns = [frame.iloc[:, number] for number in range(frame.shape[1])]
    return _encode_items([frame.columns, frame.index, *columns], path, tensors)


def _decode_frame(value: dict[str, Any], tensors: Mapping[str, Tensor]) -> pd.DataFrame:
    names, index, *columns = _decode_items(value, tensors)
    return pd.DataFrame(dict(enumerate(columns)), index=index).set_axis(names, axis=1)


def _encode_tensor(tensor: Tensor, path: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    tensors[path] = tensor.detach().cpu().contiguous()
    return {"name": path}


Encoder = Callable[[Any, str, dict[str, Tensor]], dict[str, Any]]
Decoder = Callable[[dict[str, Any], Mapping[str, Tensor]], Any]
KINDS: dict[str, tuple[type | tuple[type, ...], Encoder, Decoder]] = {
    "model": (tuple(MODELS.values()), _encode_model, _decode_model),
    "tensor": (Tensor, _encode_tensor, lambda value, tensors: tensors[value["name"]]),
    "array": (np.ndarray, _encode_array, _decode_array),
    "number": (np.generic, lambda value, *to: _encode_array(np.asarray(value), *to), lambda *given: _decode_array(*given)[()]),
    "record": (
        tuple(RECORDS.values()),
        lambda value, *to: {"class": type(value).__name__, **_encode_items(value, *to)},
        lambda value, tensors: RECORDS[value["class"]](*_decode_items(value, tensors)),
    ),
    "list": (list, _encode_items, _decode_items),
    "tuple": (tuple, _encode_items, lambda *given: tuple(_decode_items(*given))),
    "mapping": (Mapping, _encode_mapping, _decode_mapping),
    "index": (pd.Index, _encode_index, _decode_index),
    "series": (pd.Series, _encode_series, _decode_series),
    "frame": (pd.DataFrame, _encode_frame, _decode_frame),
    "duration": (pd.Timedelta, lambda value, *_: {"ns": value.as_unit("ns").value}, lambda value, _: pd.Timedelta(value["ns"])),
    "moment": ((datetime, pd.Period), _encode_moment, lambda value, tensors: _decode(value["index"], tensors)[0]),
    "date": (date, lambda value, *_: {"day": value.isoformat()}, lambda value, _: date.fromisoformat(value["day"])),
    "interval": (
        pd.Interval,
        lambda value, *to: {"closed": value.closed, **_encode_items([value.left, value.right], *to)},
        lambda value, tensors: pd.Interval(*_decode_items(value, tensors), closed=value["closed"]),
    ),
    "offset": (pd.offsets.BaseOffset, lambda value, *_: {"freq": value.freqstr}, lambda value, _: to_offset(value["freq"])),
    "zone": (tzinfo, lambda value, *_: {"name": str(value)}, lambda value, _: pd.DatetimeIndex([], tz=value["name"]).tz),
}
