"""Sequences that are split along their length over two, three and four gloo processes give the results of one process."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from layer_properties import assert_close, make_nonzero_state, set_backend
from split_cases import SplitCase, draw_cases, list_options, move_factors_near_one, run_generated, supported_entries
from split_runs import compare, largest_error, run_cases
from test_layers import ENTRIES, WIDTH, build, get_options
from torch import distributed

from fork_server import PROCESSES
from longscan.distributed import SequenceSplit, context_parallel, current_split, record_exchanges, shard_sequence
from longscan.distributed.context import use_split
from longscan.layers import LAYERS, S4, SequenceModule
from longscan.layers.state import map_state, state_tensors
from longscan.models import Forecaster, LanguageModel, SequenceModel, SiameseModel
from longscan.ops.pieces import PieceMap, scan_piece

TOLERANCE = 1e-10
GENERATED_SECONDS = 900 * max(1, settings().max_examples / 10)  # for the generated cases of four processes on two cores
PIECES = {"plain": 6, "valid": 2, "seq_idx": 2, "elapsed": 6, "all": 2}  # lengths of the pieces for each kind of masks


def make_masks(kind: str, module: Any, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Return the masks of a kind, as far as the module takes them. The first row has padding at both ends."""
    masks = {}
    if kind in ("valid", "all"):
        masks["valid"] = torch.ones(batch, length, dtype=torch.bool)
        masks["valid"][0, : length // 3 + 1] = False
        masks["valid"][1, length - length // 4 :] = False
    if kind in ("seq_idx", "all") and not module.changes_length:
        masks["seq_idx"] = (torch.rand(batch, length) < 0.25).cumsum(1)
        masks["seq_idx"][2] = 3  # one sequence over all pieces
    if kind in ("elapsed", "all") and module.irregular:
        masks["elapsed"] = 2 * torch.rand(batch, length, dtype=torch.float64)
    return masks


def run_module(entry: str, options: dict[str, Any], kind: str, has_state: bool, length: int) -> float | str:
    """Return the largest error of a module with its name, or the error that it raises."""
    module = set_backend(build(entry, options, seed=3), "eager" if kind in ("plain", "elapsed") else "auto")
    torch.manual_seed(5)
    state = None
    if has_state:
        masks = {"seq_idx": torch.tensor([[0, 0], [1, 1], [3, 3]])} if not module.changes_length else {}
        state = module(torch.randn(3, 2, WIDTH, dtype=torch.float64), return_state=True, **masks)[1]
        state = map_state(lambda x: x.detach(), state)
    masks = make_masks(kind, module, 3, length)
    try:
        errors = compare(module, torch.randn(3, length, WIDTH, dtype=torch.float64), masks, state)
    except ValueError as error:
        return str(error)
    return max(errors.values()) if max(errors.values()) < TOLERANCE else json.dumps(errors)


def run_model(model: Any, tokens: bool, masks: dict[str, torch.Tensor], *, pooled: bool) -> float | str:
    """Return the largest error of a model for a batch of 3 sequences of 12 steps."""
    torch.manual_seed(6)
    inputs = torch.randint(5, (3, 12)) if tokens else torch.randn(3, 12, 2, dtype=torch.float64)
    state = map_state(lambda x: x.detach(), model(inputs[:, :4], return_state=True)[1]) if model.streaming else None
    errors = compare(model, inputs, masks, state, pooled=pooled)
    return max(errors.values()) if max(errors.values()) < TOLERANCE else json.dumps(errors)


def run_pooled(model: Any, call: Callable[[Callable[[torch.Tensor], torch.Tensor]], torch.Tensor]) -> float | str:
    """Return the largest error of a model with outputs for whole sequences; `call` runs it on inputs that its argument cuts."""
    world = distributed.group.WORLD

    def run(cut: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        model.zero_grad()
        with context_parallel(world) if cut is not whole else nullcontext():
            y = call(cut)
        (y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
        parameters = {name: parameter.grad for name, parameter in model.named_parameters()}
        return y, {name: grad.clone() for name, grad in parameters.items() if grad is not None}

    def whole(x: torch.Tensor) -> torch.Tensor:
        return x

    expected, gradients = run(whole)
    y, found = run(lambda x: shard_sequence(x, world))
    errors = {"y": largest_error(y, expected)}
    for name, grad in found.items():
        distributed.all_reduce(grad)
        errors[name] = largest_error(grad / distributed.get_world_size(), gradients[name])
    return max(errors.values()) if max(errors.values()) < TOLERANCE and found.keys() == gradients.keys() else json.dumps(errors)


def make_forecasts() -> dict[str, Callable[[], float | str]]:
    """Return cases of forecasters and of a model of pairs, with 12 steps."""
    torch.manual_seed(1)
    x, elapsed = torch.randn(3, 12, 2, dtype=torch.float64), torch.rand(3, 12, dtype=torch.float64)
    past, ahead = torch.randn(3, 12, 2, dtype=torch.float64), torch.randn(3, 4, 1, dtype=torch.float64)
    valid = torch.arange(12) >= torch.tensor([[0], [5], [7]])
    sizes: dict[str, Any] = {"d_state": 2, "d_model": 4, "d_input": 2}
    queries = Forecaster.from_spec(
        "mamba s4d", horizon=4, normalise=True, linear_window=5, d_covariates=2, d_covariates_ahead=1, **sizes
    )
    queries, offset = queries.double(), Forecaster.from_spec("mamba s5", horizon=4, mode="offset", **sizes).double()
    for parameter in queries.parameters():  # the head and the linear forecast are zeros at first
        torch.nn.init.normal_(parameter, std=0.3)
    pairs = SiameseModel.from_spec("lru", d_output=2, **sizes).double()
    return {
        "forecaster": partial(
            run_pooled,
            queries,
            lambda cut: queries(cut(x), valid=cut(valid), covariates=cut(past), covariates_ahead=ahead),
        ),
        "forecaster offset": partial(run_pooled, offset, lambda cut: offset(cut(x), elapsed=cut(elapsed), valid=cut(valid))),
        "pairs": partial(run_pooled, pairs, lambda cut: pairs(cut(x), cut(past), valid_first=cut(valid))),
    }


def make_models() -> dict[str, Callable[[], float | str]]:
    torch.manual_seed(0)
    valid = torch.ones(3, 12, dtype=torch.bool)
    valid[0, 3:], valid[1, :7] = False, False
    times = {"elapsed": torch.rand(3, 12, dtype=torch.float64), "valid": valid}
    packed = {"seq_idx": torch.tensor([[0] * 5 + [1] * 7, [2] * 12, [0, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3]])}

    def sequence_model(spec: str, **arguments: Any) -> Any:
        return SequenceModel.from_spec(spec, d_state=2, **{"d_model": 4, "d_output": 3, **arguments}).double().eval()

    language_model = LanguageModel.from_spec("mamba s5", d_state=2, d_model=4, vocab_size=5).double().eval()
    return make_forecasts() | {
        "model mean": partial(run_model, sequence_model("mamba s5 linoss", d_input=2), False, times, pooled=True),
        "model last": partial(
            run_model, sequence_model("lru mamba", d_input=2, pooling="last", norm="post"), False, times, pooled=True
        ),
        "model learned state": partial(
            run_model, sequence_model("s4d mamba", d_input=2, initial_state="learned"), False, {}, pooled=True
        ),
        "model positions": partial(
            run_model,
            sequence_model("mamba feed_forward s4", vocab_size=5, positions="blocks", max_length=20, pooling="none"),
            True,
            {"valid": valid},
            pooled=False,
        ),
        "model batch norm": partial(
            run_model, sequence_model("mamba aussm", d_input=2, norm="batch").train(), False, {"valid": valid}, pooled=True
        ),
        "hybrid model": partial(
            run_model,
            sequence_model("mamba2 attention bidirectional aussm", d_input=2, pooling="none"),
            False,
            {"valid": valid, **packed},
            pooled=False,
        ),
        "language model": partial(run_model, language_model, True, packed, pooled=False),
    }


def count_bytes(size: int) -> float | str:
    """Return 0.0 if a Mamba block receives as many bytes as docs/split_scans.md says, else both numbers."""
    batch, length, d_model, d_state, d_conv = 3, 8, 4, 5, 4
    model = SequenceModel.from_spec("mamba", d_state=d_state, d_model=d_model, d_output=2, d_input=2, pooling="none").double()
    x, width = torch.randn(batch, length, 2, dtype=torch.float64), 2 * d_model
    with record_exchanges() as exchanges:
        with context_parallel(distributed.group.WORLD):
            y = model(x)
        forward = sum(exchange.received for exchange in exchanges)
        y.sum().backward()
    backward = sum(exchange.received for exchange in exchanges) - forward
    numbers = batch * width * (d_conv - 1) + 1 + batch * width * (d_state + 1)  # of the convolution, and of the scan
    expected = 8 * (size - 1) * numbers
    return 0.0 if (forward, backward) == (expected, expected) else f"{forward} and {backward} bytes, expected {expected}"


def run_twice(model: Any) -> float | str:
    """Return 0.0 if outputs and gradients of two calls on pieces have the same bits, else the names of those that differ."""
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        model.zero_grad()
        x = shard_sequence(torch.randn(2, 120, 2), distributed.group.WORLD)
        with context_parallel(distributed.group.WORLD):
            y = model(x)
        y.square().sum().backward()
        gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
        results.append({"y": y.detach(), **gradients})
    different = [name for name, value in results[0].items() if not torch.equal(value, results[1][name])]
    return ", ".join(different) if different else 0.0


def run_compiled(size: int) -> float | str:
    """Return the largest error of outputs and gradients of a model in one compiled graph on pieces."""
    model = SequenceModel.from_spec("mamba s5", d_state=2, d_model=4, d_output=2, d_input=2, pooling="none").double()
    x = torch.randn(2, 4 * size, 2, dtype=torch.float64)
    whole = model(x)
    whole.square().sum().backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with context_parallel(distributed.group.WORLD):
        y = compiled(shard_sequence(x, distributed.group.WORLD))
    y.square().sum().backward()
    errors = {"y": largest_error(y, shard_sequence(whole, distributed.group.WORLD))}
    for name, gradient in expected.items():
        found = model.get_parameter(name).grad
        assert found is not None
        distributed.all_reduce(found)
        errors[name] = largest_error(found, gradient)
    return max(errors.values()) if max(errors.values()) < TOLERANCE else json.dumps(errors)


def list_modules(kinds: list[str], *, each: bool) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    """Yield name, entry, options and kind of masks: each kind, or only the last one for blocks and further options of layers."""
    for entry in ENTRIES:
        for number, options in enumerate(get_options(entry)):
            for kind in kinds if each or (number == 0 and entry.startswith("layer")) else kinds[-1:]:
                yield f"{entry} {options} {kind}", entry, options, kind


def run_all(rank: int, size: int, folder: str, kinds: list[str], each: bool) -> None:
    """Run all models and modules on this process, with pieces of 2 or of 6 steps."""
    cases = make_models()
    for name, entry, options, kind in list_modules(kinds, each=each):
        cases[name] = partial(run_module, entry, options, kind, kind in ("plain", "seq_idx"), size * PIECES[kind])
    model = SequenceModel.from_spec("mamba aussm s7 linoss", d_state=2, d_model=4, d_output=2, d_input=2, pooling="none").eval()
    cases |= {"bytes": partial(count_bytes, size), "same bits": partial(run_twice, model)}
    if each:
        cases["compiled"] = partial(run_compiled, size)
    run_cases(rank, size, folder, cases)


def unsupported(entry: str, options: dict[str, Any], kind: str) -> str | None:
    """Return what the error must begin with for a module that cannot run on pieces, or None if it must run."""
    parts = [part for part in build(entry, options).modules() if isinstance(part, SequenceModule)]
    names = [type(part).__name__ for part in parts if not part.context_parallel]
    if names:
        return f"each module inside `context_parallel` must compute pieces of sequences, got {names[0]}, which cannot"
    if kind in ("elapsed", "all") and any(isinstance(part, S4) for part in parts):
        return "`elapsed` must be None for S4 inside `context_parallel`, got a tensor"
    if kind in ("valid", "all") and "stride" in options:
        return f"`valid` must be None with stride={options['stride']} inside `context_parallel`, got a tensor"
    if kind == "seq_idx" and "stride" in options:
        return f"`x` must be a piece of whole windows of {options['stride']} steps, got 2 steps"
    return None


def check_results(size: int, folder: Path, kinds: list[str], *, each: bool) -> None:
    """Run all cases on `size` processes, and assert that each gives the results of one process or raises the right error."""
    workers = [PROCESSES.Process(target=run_all, args=(rank, size, str(folder), kinds, each)) for rank in range(size)]
    for process in workers:
        process.start()
    for process in workers:
        process.join(900)
        assert process.exitcode == 0
    expected: dict[str, str | None] = dict.fromkeys([*make_models(), "bytes", "same bits", *["compiled"] * each])
    expected |= {name: unsupported(*module) for name, *module in list_modules(kinds, each=each)}
    for rank in range(size):
        results = json.loads((folder / f"results-{rank}.json").read_text())
        assert results.keys() == expected.keys()
        wrong = {
            name: result
            for name, result in results.items()
            if not (isinstance(result, float) if expected[name] is None else result == expected[name])
        }
        assert not wrong, (rank, wrong)


def test_pieces_on_three_processes_equal_the_whole(tmp_path: Path) -> None:
    check_results(3, tmp_path, ["plain", "all"], each=False)


@pytest.mark.slow
@pytest.mark.timeout(1000)  # four processes on two busy cores take five minutes
@pytest.mark.parametrize("size", [2, 3, 4])
def test_pieces_with_each_kind_of_masks_equal_the_whole(size: int, tmp_path: Path) -> None:
    check_results(size, tmp_path, list(PIECES), each=True)


def check_generated(size: int, folder: Path, cases: list[SplitCase], seconds: float) -> None:
    """Run the cases on `size` processes, and assert that they give the results of one process."""
    torch.save(cases, folder / "cases.pt")
    workers = [PROCESSES.Process(target=run_generated, args=(rank, size, str(folder))) for rank in range(size)]
    for process in workers:
        process.start()
    for process in workers:
        process.join(seconds)
        assert process.exitcode == 0
    for rank in range(size):
        results = json.loads((folder / f"results-{rank}.json").read_text())
        assert len(results) == len(cases)
        wrong = {name: result for name, result in results.items() if not isinstance(result, float)}
        assert not wrong, (rank, wrong)


def test_generated_cases_with_factors_near_one_equal_the_whole(tmp_path: Path) -> None:
    layers = [entry for entry in supported_entries() if entry.startswith("layer")]
    check_generated(2, tmp_path, draw_cases(2, 4, layers, near_one=True), 100)


@pytest.mark.slow
@pytest.mark.timeout(GENERATED_SECONDS + 100)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_more_generated_cases_equal_the_whole(size: int, tmp_path: Path) -> None:
    """LONGSCAN_EXAMPLES sets the number of cases per layer and block, and that of cases with factors near 1."""
    cases = [
        case
        for near_one in (False, True)
        for case in draw_cases(size, settings().max_examples, supported_entries(), near_one=near_one)
    ]
    check_generated(size, tmp_path, cases, GENERATED_SECONDS)


def test_layers_without_parameters_for_factors_near_one() -> None:
    """Those of AUSSM have modulus 1, and attention has none."""
    names = {name for name in LAYERS if LAYERS[name].context_parallel and not list_options(f"layer {name}", near_one=True)}
    assert names == {"aussm", "attention"}


@pytest.mark.parametrize("name", ["gated_deltanet", "lru", "mamba2", "mamba3", "s4", "s4d", "s5", "s6", "s7"])
def test_states_hardly_decay_with_factors_near_one(name: str) -> None:
    """Those of LinOSS also rotate between positions and velocities of other sizes, and mLSTM adds its biases at each step."""
    for options in list_options(f"layer {name}", near_one=True):
        layer = move_factors_near_one(build(f"layer {name}", options))
        start = make_nonzero_state(layer, 2)
        _, final = layer(torch.zeros(2, 64, WIDTH, dtype=torch.float64), start, return_state=True)
        before, after = (state_tensors(state)[0].norm().item() for state in (start, final))
        assert 0.95 < after / before < 1.1, options  # 0.9999^64 = 0.994, and Mamba-3 adds its last input once more


def lose_a_process(rank: int, size: int, folder: str) -> None:
    """End the last process between two calls; the others write the type of the error that they raise and the seconds until it."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    layer, x = build("layer s6", {"d_state": 2}), torch.randn(1, 2, WIDTH, dtype=torch.float64)
    with context_parallel(distributed.group.WORLD):
        layer(x)
        if rank == size - 1:
            os._exit(1)
        start = time.monotonic()
        try:
            layer(x)
        except RuntimeError as error:
            Path(folder, f"error-{rank}.json").write_text(json.dumps([str(error), time.monotonic() - start]))
    os._exit(0)  # without the group, whose destruction would wait for the lost process


@pytest.mark.slow
def test_other_processes_stop_when_one_dies(tmp_path: Path) -> None:
    workers = [PROCESSES.Process(target=lose_a_process, args=(rank, 3, str(tmp_path))) for rank in range(3)]
    for process in workers:
        process.start()
    for process in workers:
        process.join(100)
    assert [process.exitcode for process in workers] == [0, 0, 1]
    for rank in range(2):
        message, seconds = json.loads((tmp_path / f"error-{rank}.json").read_text())
        assert "127.0.0.1" in message
        assert seconds < 60


def give_unequal_pieces(rank: int, size: int, folder: str) -> None:
    """Write the errors of layers and models whose pieces have 3 steps on the first process and 4 on the others."""
    torch.manual_seed(0)
    layers = {name: build(f"layer {name}", {}) for name in ("attention", "s6")}
    model = SequenceModel.from_spec("mamba", d_model=4, d_output=2, d_input=2, positions="blocks", max_length=20)

    def call(module: Any, width: int) -> float | str:
        length = 3 if rank == 0 else 4
        x = torch.randn(2, length, width, dtype=next(module.parameters()).dtype)
        try:
            with context_parallel(distributed.group.WORLD):
                module(x, valid=torch.ones(2, length, dtype=torch.bool))
        except ValueError as error:
            return str(error)
        return 0.0

    cases = {name: partial(call, layer, WIDTH) for name, layer in layers.items()}
    run_cases(rank, size, folder, cases | {"model": partial(call, model, 2)})


def test_pieces_of_unequal_length_raise_on_all_processes(tmp_path: Path) -> None:
    workers = [PROCESSES.Process(target=give_unequal_pieces, args=(rank, 3, str(tmp_path))) for rank in range(3)]
    for process in workers:
        process.start()
    for process in workers:
        process.join(100)
        assert process.exitcode == 0
    message = "`x` must have the same length in all pieces of the sequences, got [3, 4, 4]"
    for rank in range(3):
        results = json.loads((tmp_path / f"results-{rank}.json").read_text())
        assert results == dict.fromkeys(("attention", "s6", "model"), message)


def test_layers_whose_steps_must_run_one_after_another_are_refused_by_name() -> None:
    assert {name for name in LAYERS if not LAYERS[name].context_parallel} >= {"gru", "lstm", "slstm"}


@pytest.fixture
def mesh() -> Iterator[Any]:
    """A mesh of one process."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.device_mesh.init_device_mesh("cpu", (1,), mesh_dim_names=("context",))
    distributed.destroy_process_group()


def test_one_process_computes_as_usual(mesh: Any) -> None:
    x, layer = torch.randn(2, 5, WIDTH), LAYERS["gru"](WIDTH)
    with context_parallel(mesh) as split:
        assert split is None
        assert torch.equal(layer(x), layer(shard_sequence(x, mesh)))
    assert current_split() is None


@pytest.mark.parametrize("name", [name for name in LAYERS if LAYERS[name].context_parallel])
def test_pieces_of_empty_batches_have_empty_outputs(mesh: Any, name: str) -> None:
    layer = build(f"layer {name}", {})
    x = torch.randn(0, 6, WIDTH, dtype=torch.float64, requires_grad=True)
    with use_split(SequenceSplit(mesh.get_group(), 0, 1)):
        y = layer(x)
    y.sum().backward()
    assert y.shape == x.shape
    assert x.grad is not None
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in layer.parameters())


@pytest.mark.parametrize("entry", supported_entries())
def test_empty_pieces_have_empty_outputs_and_leave_states(mesh: Any, entry: str) -> None:
    for options in list_options(entry, near_one=False):
        module = build(entry, options)
        x = torch.zeros(2, 0, WIDTH, dtype=torch.float64, requires_grad=True)
        state, masks = make_nonzero_state(module, 2), {}
        if not module.changes_length:
            masks = {"valid": torch.ones(2, 0, dtype=torch.bool), "seq_idx": torch.zeros(2, 0, dtype=torch.long)}
        whole = module(x, state, **masks, return_state=True)
        with use_split(SequenceSplit(mesh.get_group(), 0, 1)):
            y, after = module(x, state, **masks, return_state=True)
        y.sum().backward()
        assert_close((y, after), whole)


# Packed rows exchange their restarts and the state, for the scan and for the convolution of a block; with a state before and
# after the piece also the ends of their sequences. Mamba-3 exchanges weights and its newest inputs, too.
@pytest.mark.parametrize(
    ("entry", "options", "without_state", "with_state"),
    [
        ("layer s6", {}, 2, 3),
        ("layer s4", {}, 2, 3),
        ("layer s4d", {}, 2, 3),
        ("layer aussm", {"phase_grid": 6}, 4, 5),
        ("layer mamba3", {}, 6, 7),
        ("block mamba", {}, 4, 6),
    ],
)
def test_restarts_are_exchanged_no_more_often_than_needed(
    mesh: Any, entry: str, options: dict[str, Any], without_state: int, with_state: int
) -> None:
    module, seq_idx = build(entry, options), torch.tensor([[0, 0, 0, 1, 1, 1]])
    x = torch.randn(1, 6, WIDTH, dtype=torch.float64)
    for state, count in ((None, without_state), (module.initial_state(1), with_state)):
        with torch.no_grad(), use_split(SequenceSplit(mesh.get_group(), 0, 1)), record_exchanges() as exchanges:
            module(x, state, seq_idx=seq_idx, return_state=state is not None)
        assert len(exchanges) == count


def test_corrections_of_outputs_in_half_precision_are_added_before_the_sum_is_rounded(mesh: Any) -> None:
    """bfloat16 rounds 1 + 2^-8 to 1, but has the number 1 + 2^-8 + 2^-8."""
    state, correction = torch.zeros(1, 1), torch.tensor([[[1 + 2.0**-8]]])
    with use_split(SequenceSplit(mesh.get_group(), 0, 1)):
        y, _ = scan_piece(
            lambda _: (torch.tensor([[[2.0**-8]]], dtype=torch.bfloat16), state),
            state,
            None,
            lambda: PieceMap([], lambda state: state),
            outputs_of=lambda _: correction,
        )
    assert y.bfloat16().item() == 1 + 2.0**-7


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: None, "`mesh` must be a DeviceMesh or a process group, got NoneType"),
        (
            lambda: distributed.device_mesh.init_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b")),
            r"`mesh` must have one dimension, or one of the name 'context', got 2 dimensions with the names \('a', 'b'\)",
        ),
        (
            lambda: distributed.device_mesh.init_device_mesh("cpu", (1, 1)),
            "`mesh` must have one dimension, or one of the name 'context', got 2 dimensions without names",
        ),
    ],
)
def test_wrong_mesh_raises(mesh: Any, make: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{message}"), context_parallel(make()):
        pass


def cut_along_axes(rank: int, size: int, folder: str) -> None:
    """Write 0.0 for each axis and each kind of mesh if this process gets its piece of a tensor."""
    x = torch.arange(4 * 6 * 2).view(4, 6, 2)
    first, second = x[2 * rank : 2 * rank + 2], x[:, 3 * rank : 3 * rank + 3]
    third = x[:, :, rank : rank + 1]

    def call(expected: torch.Tensor, **options: int) -> float | str:
        grid = distributed.device_mesh.init_device_mesh("cpu", (1, size), mesh_dim_names=("data", "context"))
        for mesh in (distributed.group.WORLD, grid, grid["context"]):
            found = shard_sequence(x, mesh, **options)
            if not torch.equal(found, expected):
                return f"{type(mesh).__name__}: {found.tolist()}"
        return 0.0

    cases = {"default": partial(call, second)}
    for axis, expected in ((0, first), (1, second), (2, third), (-1, third), (-3, first)):
        cases[f"axis {axis}"] = partial(call, expected, axis=axis)
    run_cases(rank, size, folder, cases)


def test_sequences_are_cut_along_any_axis(tmp_path: Path) -> None:
    workers = [PROCESSES.Process(target=cut_along_axes, args=(rank, 2, str(tmp_path))) for rank in range(2)]
    for process in workers:
        process.start()
    for process in workers:
        process.join(100)
        assert process.exitcode == 0
    for rank in range(2):
        results = json.loads((tmp_path / f"results-{rank}.json").read_text())
        assert results == dict.fromkeys(("default", "axis 0", "axis 1", "axis 2", "axis -1", "axis -3"), 0.0)


def test_length_that_is_not_divisible_raises(mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "get_world_size", lambda _: 4)
    message = "^`x` must have a length that is a multiple of the 4 processes of the mesh, got 10: pad it by 2 to 12, and mask"
    with pytest.raises(ValueError, match=message):
        shard_sequence(torch.zeros(1, 10), mesh)


@pytest.mark.parametrize("axis", [2, -3])
def test_axis_that_a_sequence_lacks_raises(mesh: Any, axis: int) -> None:
    with pytest.raises(ValueError, match=rf"^`axis` must be from -2 to 1 for `x` of shape \(1, 10\), got {axis}$"):
        shard_sequence(torch.zeros(1, 10), mesh, axis=axis)


def test_steps_inside_a_split_raise() -> None:
    model = SequenceModel.from_spec("mamba", d_model=4, d_output=2, d_input=2)
    split, x = SequenceSplit(None, 0, 2), torch.zeros(1, 2)  # type: ignore[arg-type]
    with use_split(split), torch.no_grad():
        for module, step in ((model, x), (model.stack[0], torch.zeros(1, 4)), (model.stack[0].block, torch.zeros(1, 4))):
            with pytest.raises(ValueError, match=r"^`step` must be called outside of `context_parallel`"):
                module.step(step, module.initial_state(1))
