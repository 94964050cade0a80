"""Launches of the selective scan's kernels: how the work is divided among programs, and the buffers between kernels."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longscan.ops import _triton_launch as tables
from longscan.ops._gpu import ceil_div, is_compiling, launch, on_device, power_of_two, programs_to_fill
from longscan.ops._triton import state_passing_kernel
from longscan.ops._triton_steps import restarts
from longscan.ops.selective_scan.triton.backward import (
    chunk_scan_bwd_kernel,
    chunk_state_bwd_kernel,
    sum_parameter_gradients_kernel,
    sum_partials_kernel,
)
from longscan.ops.selective_scan.triton.forward import chunk_scan_fwd_kernel, chunk_state_fwd_kernel

MANY_STATES = 32  # number of real states of a channel above which tiles have other sizes
MAX_PASSED_CHUNKS = 64  # largest number of chunks whose maps the programs of the scans apply themselves, if A is real
CHECKPOINT_STEPS = 64  # smallest number of steps between two checkpoints
# The same for states of at most SMALL_STATE numbers. The states of tiles, which the backward pass stores between two checkpoints,
# take more memory than the checkpoints there.
SMALL_CHECKPOINT_STEPS, SMALL_STATE = 32, 8192
MIN_RECOMPUTE_STEPS = {1: 16, 2: 4}  # number of components of A -> smallest tile of `recompute_tile_states`, in steps
# Entries of the launch table -> smallest number of tiles of a chunk for each program of a chain.
MIN_CHAIN_TILES = {"selective_scan_wide_backward": 4, "selective_scan_pairs_backward": 12}
# Entries of the launch table whose programs add to the same dB and dC, in order -> whether a memory fence orders the additions.
# If not, a program waits until its atomic additions have returned.
ORDERED_SUMS = {"selective_scan_wide_backward": True, "selective_scan_pairs_backward": False}
SUM_NUMBERS, SUM_ROWS = 2048, 64  # numbers of a tile of the kernels that add partial sums, and the most sums that are in it


class Problem(NamedTuple):
    """Sizes of a call.

    Attributes:
        entry: name in the launch table.
        batch, length, channels, states: B, L, D and N.
        components: 1 for real A, 2 for complex A.
        groups: number of groups of rows that have the same parameters.
        blocks: number of programs for the channels of a row.
        pairs: number of pairs of a channel and a state in a program.
        state_warps: number of warps among which the states of a channel are divided.
        interval: number of steps between two checkpoints.
        ptx: whether kernels may contain PTX.
        device: the GPU.
        constants: compile-time arguments of all scan kernels.
    """

    entry: str
    batch: int
    length: int
    channels: int
    states: int
    components: int
    groups: int
    blocks: int
    pairs: int
    state_warps: int
    interval: int
    ptx: bool
    device: torch.device
    constants: dict[str, Any]

    @property
    def rows(self) -> int:
        """Number of rows that have the same parameters."""
        return self.batch // self.groups

    @property
    def size(self) -> int:
        """Number of pairs of a channel and a state."""
        return self.channels * self.states

    @property
    def programs(self) -> int:
        """Number of programs for one chunk of the steps."""
        return self.batch * self.blocks


class BackwardPlan(NamedTuple):
    """Division of the steps in the backward pass.

    Attributes:
        chunks: number of chunks.
        chunk_steps: number of steps of a chunk, whole checkpoint intervals.
        parallel: whether the chunks run in parallel CTAs; otherwise they are in separate launches, from the last to the first.
        chain_length: number of programs of a chain, which add to the same dB and dC; 1 if sums are not in order.
        chunks_per_round: number of chunks of a round, if sums are not in order.
    """

    chunks: int
    chunk_steps: int
    parallel: bool
    chain_length: int
    chunks_per_round: int


def table_entry(components: int, direction: str, states: int) -> str:
    """Return the name of the launch table's entry. direction: "" or "_backward"."""
    kind = "_pairs" if components == 2 else "_wide" if states > MANY_STATES else ""
    return f"selective_scan{kind}{direction}"


def make_problem(u: Tensor, A: Tensor, B: Tensor, dt_softplus: bool, direction: str) -> Problem:
    """Return the sizes of a call, and how channels and states are divided among the threads of a program."""
    batch, length, channels = u.shape
    states, components = B.shape[2], 2 if B.ndim == 4 else 1
    entry = table_entry(components, direction, states)
    table, layout = tables.TABLE[entry], tables.layout(entry, channels, states)
    per_thread = max(1, layout.BD * layout.NB // (32 * layout.warps))  # pairs, of one channel if possible
    NL = min(8, max(1, layout.NB // per_thread))
    CL = min(32 // NL, layout.BD)
    CW = min(layout.warps, layout.BD // CL)
    constants = {
        "SOFTPLUS": dt_softplus, "COMPLEX": components == 2, "T": table.steps,
        "SHAPE": (layout.BD // (CL * CW), layout.NB // NL, CW, NL, CL),  # CR, NR, CW, NL, CL of README.md
        "MATERIALIZE": table.steps * layout.BD <= 32 * layout.warps,
        "STAGES": table.stages if layout.NB <= 128 else 1,  # the tiles of more states would fill the shared memory
        "num_warps": layout.warps,
    }  # fmt: skip
    groups = len(A) if A.ndim > 1 + components else 1
    interval, ptx = checkpoint_interval(channels, states, components), tables.special_functions(u)
    pairs, state_warps = layout.BD * layout.NB, min(layout.NB // NL, layout.warps // CW)
    return Problem(
        entry, batch, length, channels, states, components, groups, layout.blocks, pairs, state_warps, interval, ptx, u.device,
        constants,
    )  # fmt: skip


def checkpoint_interval(channels: int, states: int, components: int) -> int:
    """Return the steps between two checkpoints, whole tiles of both directions."""
    is_small = components == 1 and states <= MANY_STATES and channels * states <= SMALL_STATE
    smallest = SMALL_CHECKPOINT_STEPS if is_small else CHECKPOINT_STEPS
    steps = [tables.TABLE[table_entry(components, direction, states)].steps for direction in ("", "_backward")]
    return max(smallest, MIN_RECOMPUTE_STEPS[components], *steps)


def parallel_chunks(programs: int, warps: int, device: torch.device) -> int:
    """Return how many chunks of `programs` programs run at the same time, if a multiprocessor has eight warps."""
    return tables.largest(1, programs_to_fill(device) // ceil_div(programs * warps, 2))


def chunk_states_shape(batch: int, length: int, channels: int, states: int, *pair: int) -> tuple[int, int]:
    """Return the shape of the checkpoints (B, intervals [2] N D), real parts before imaginary parts."""
    components = 1 + len(pair)
    return batch, ceil_div(length, checkpoint_interval(int(channels), int(states), components)) * components * states * channels


def scans_pass_states(problem: Problem, chunks: int, flags: Tensor | None) -> bool:
    """Return whether a program of the scans passes the state through the chunks before its own, without `state_passing_kernel`.

    Not in a traced graph with a symbolic length, which has any number of chunks; not with flags, because the map of a chunk is
    undefined if a sequence starts in it; and not for complex A, for which the scans would need more registers and be slower
    (README.md).
    """
    return problem.components == 1 and flags is None and isinstance(chunks, int) and chunks <= MAX_PASSED_CHUNKS


def new_maps(problem: Problem, chunks: int, like: Tensor) -> Tensor:
    """Return the buffer for the maps of the state by the chunks: factors and local states, (2, B, chunks, D N[, 2])."""
    return like.new_empty((2, problem.batch, chunks, problem.size, problem.components))


def pass_states(
    problem: Problem, maps: Tensor, first: Tensor | None, flags: Tensor | None, chunk_steps: int, out: Tensor, reverse: bool
) -> None:
    """Compute the states before all chunks and after the last one, from the state `first`.

    maps: (2, B, chunks, D N[, 2]), as the first kernels store them. first: the state before the first chunk, None for zero.
    chunk_steps: number of steps of a chunk. out: (B, chunks + 1, D N[, 2]). reverse: compute gradients of states instead, from
    that of the final state, `first`.
    """
    (grid, block), starts = tables.state_passing_grid(problem.batch, problem.size), restarts(flags, chunk_steps)
    constants = {"COMPLEX": problem.components == 2, "REVERSE": reverse, "BLOCK": block}
    launch(state_passing_kernel, grid, maps[0], maps[1], first, starts, out, maps.shape[2], problem.size, constants=constants)


def forward(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    initial_state: Tensor | None,
    dt_scale: Tensor | None,
    flags: Tensor | None,
    dt_softplus: bool,
    paired: bool,
    save_states: bool,
    exchange_state: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y (B, L, D), the final state (B, D, N[, 2]) and, with `save_states`, the checkpoints for `backward`.

    Contiguous tensors; the state and the parameters have one real dtype, and complex numbers have a last axis of size 2. L, D
    and N are at least 1. The parameters A (D, N[, 2]), D and dt_bias may have a leading axis of groups: equal runs of batch rows
    then belong to different groups. initial_state: None for zero. exchange_state: function that returns the initial state, which
    replaces `initial_state`, from the product of the factors of all steps and the final state for an initial state of zero.
    """
    problem = make_problem(u, A, B, dt_softplus, "")
    plan = tables.plan(problem.entry, problem.length, problem.programs, problem.device)
    y, final = torch.empty_like(u), A.new_empty((problem.batch, problem.channels, *B.shape[2:]))
    checkpoints = A.new_empty(
        chunk_states_shape(problem.batch, problem.length, problem.channels, *B.shape[2:]) if save_states else (0,)
    )
    grid, chunk_steps = (problem.programs, plan.chunks), plan.chunk_tiles * plan.T
    sizes = problem.length, problem.channels, problem.states, plan.chunks, plan.chunk_tiles, problem.rows
    with on_device(u):
        first_states = maps = None
        if exchange_state is not None or plan.parallel:
            maps = new_maps(problem, plan.chunks, A)
            launch(chunk_state_fwd_kernel, grid, u, dt, A, B, dt_bias, dt_scale, flags, maps, *sizes, constants=problem.constants)
            if exchange_state is not None or not scans_pass_states(problem, plan.chunks, flags):
                first_states = A.new_empty((problem.batch, plan.chunks + 1, problem.size, problem.components))
                if exchange_state is not None:
                    one = torch.zeros_like(final)
                    (one if problem.components == 1 else one[..., 0]).fill_(1)
                    without_inputs = torch.stack([maps[0], torch.zeros_like(maps[1])])
                    pass_states(problem, without_inputs, one, flags, chunk_steps, first_states, False)
                    product = first_states[:, -1].clone().view(final.shape)
                    pass_states(problem, maps, None, flags, chunk_steps, first_states, False)
                    initial_state = exchange_state(product, first_states[:, -1].clone().view(final.shape)).contiguous()
                pass_states(problem, maps, initial_state, flags, chunk_steps, first_states, False)
                maps = None
        launch(
            chunk_scan_fwd_kernel, grid, u, dt, A, B, C, D, z, dt_bias, dt_scale, initial_state, first_states, maps, flags, y,
            final, checkpoints if save_states else None, *sizes, problem.interval // problem.constants["T"],
            constants={"PAIR_FACTOR": pair_factor(problem, paired), "NW": problem.state_warps, **problem.constants},
        )  # fmt: skip
    return y, final, checkpoints


def pair_factor(problem: Problem, paired: bool) -> float:
    """Return 2 if a state stands for a conjugate pair of complex states, otherwise 1."""
    return 2.0 if problem.components == 2 and paired else 1.0


def backward(
    grad_y: Tensor,
    grad_final: Tensor | None,
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    initial_state: Tensor | None,  # noqa: ARG001
    dt_scale: Tensor | None,
    flags: Tensor | None,
    chunk_states: Tensor,
    dt_softplus: bool,
    paired: bool,
    exchange_gradient: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """Return the gradients of u, dt, A, B, C, D, z, dt_bias, initial_state and dt_scale; empty where D, z, dt_bias or dt_scale is
    None.

    grad_final: None for zero. chunk_states: the checkpoints. exchange_gradient: function that returns the gradient of the final
    state, which replaces `grad_final`, from the gradient of the initial state if that of the final state is zero.
    """
    problem, like = make_problem(u, A, B, dt_softplus, "_backward"), A
    plan = plan_backward(problem, like.element_size(), exchange_gradient is not None)
    factor_of_pair, chunks = pair_factor(problem, paired), plan.chunks if plan.parallel else 1
    du, ddt, dz = (u.new_empty(0) if x is None else torch.empty_like(x) for x in (u, dt, z))
    dA, d_initial = torch.empty_like(A), A.new_empty((problem.batch, problem.channels, *B.shape[2:]))
    d_bias, dD = (u.new_empty(0) if x is None else torch.empty_like(x) for x in (dt_bias, D))
    sums = like.new_empty((problem.batch, chunks, problem.size * problem.components + 2 * problem.channels))
    d_scale = None if dt_scale is None else like.new_empty((problem.blocks, problem.batch, problem.length))
    counters = None
    if plan.chain_length > 1:  # `chunk_state_bwd_kernel` sets them to 0 where it runs
        new = torch.empty if plan.parallel else torch.zeros
        counters = new(problem.programs * plan.chunks + 1, dtype=torch.int32, device=u.device)
    maps = d_states = None
    with on_device(u):
        if plan.parallel:
            maps = new_maps(problem, plan.chunks, like)
            chunk_tiles = plan.chunk_steps // problem.constants["T"]
            sizes = problem.length, problem.channels, problem.states, plan.chunks, chunk_tiles, problem.rows
            launch(
                chunk_state_bwd_kernel, (problem.programs, plan.chunks), grad_y, dt, A, C, z, dt_bias, dt_scale, flags, maps,
                counters, *sizes, constants={"PAIR_FACTOR": factor_of_pair, **problem.constants},
            )  # fmt: skip
            if exchange_gradient is not None or not scans_pass_states(problem, plan.chunks, flags):
                d_states = like.new_empty((problem.batch, chunks + 1, problem.size, problem.components))
                if exchange_gradient is not None:
                    pass_states(problem, maps, None, flags, plan.chunk_steps, d_states, True)
                    grad_final = exchange_gradient(d_states[:, 0].reshape(d_initial.shape)).contiguous()
                pass_states(problem, maps, grad_final, flags, plan.chunk_steps, d_states, True)
                maps = None
        elif grad_final is None:
            grad_final = torch.zeros_like(d_initial)
        tiles = problem.interval // problem.constants["T"]  # of a checkpoint interval
        tile_states = like.new_empty((problem.programs * plan.chunks_per_round, tiles, problem.components, problem.pairs))
        inputs = grad_y, u, dt, A, B, C, D, z, dt_bias, dt_scale, flags, chunk_states
        gradients_of_states = None if d_states is not None else grad_final, d_states
        outputs = d_initial, du, ddt, dz, d_scale
        scan = partial(
            launch_scan, problem, plan, (*inputs, tile_states, *gradients_of_states, maps, *outputs), (sums, counters),
            factor_of_pair,
        )  # fmt: skip
        add = sum_rounds if plan.chain_length == 1 and problem.blocks > 1 else sum_in_order
        dB, dC = add(problem, plan, B, C, like, scan)
        tile = tile_of_sums(SUM_ROWS)  # of any number of rows and chunks, for which the kernel is the same
        launch(
            sum_parameter_gradients_kernel, (ceil_div(sums.shape[2], tile["BLOCK"]), problem.groups), sums, dA,
            None if dt_bias is None else d_bias, None if D is None else dD, problem.rows * chunks,
            problem.size * problem.components, problem.channels,
            constants=tile,
        )  # fmt: skip
        total = u.new_empty(0) if dt_scale is None else torch.empty_like(dt_scale)
        if d_scale is not None:
            steps, blocks = problem.batch * problem.length, problem.blocks
            sum_partials(d_scale, (total, None), blocks, blocks, rows=1, row_count=steps, row_stride=steps, begin=0)
    return du, ddt, dA, dB, dC, dD, dz, d_bias, d_initial, total


def sum_in_order(
    problem: Problem, plan: BackwardPlan, B: Tensor, C: Tensor, like: Tensor, scan: Callable[..., None]
) -> tuple[Tensor, Tensor]:
    """Return dB and dC, to which the programs of a chain add in order; the sums of several chains are added afterwards.

    like: tensor of the dtype of the sums. scan: function of first, stop and buffers for dB and dC that adds the terms of the
    chunks [first, stop) to these.
    """
    chains, numbers = ceil_div(problem.blocks, plan.chain_length), problem.states * problem.components
    # Whether the first program of a chain stores its terms, and only the others add.
    stored = plan.chain_length == 1 or ORDERED_SUMS[problem.entry]
    if chains == 1 and B.dtype == like.dtype:
        dB, dC = (torch.empty_like(x) if stored else torch.zeros_like(x) for x in (B, C))
        scan(0, plan.chunks, dB, dC)
        if is_compiling():  # other lengths and batches have several chains
            sum_round(problem, like.new_empty((2, 2 * dB.numel())), dB, dC, 2, 0, problem.length)
        return dB, dC
    dB, dC = torch.empty_like(B), torch.empty_like(C)
    partials = (like.new_empty if stored else like.new_zeros)((2, chains * problem.batch * problem.length * numbers))
    scan(0, plan.chunks, *partials)
    sum_round(problem, partials, dB, dC, chains, 0, problem.length)
    return dB, dC


def tile_of_sums(count: int) -> dict[str, int]:
    """Return the tile of a kernel that adds `count` partial sums: its number of rows, each of another sum, and their numbers."""
    rows = min(SUM_ROWS, power_of_two(count))
    return {"ROWS": rows, "BLOCK": SUM_NUMBERS // rows}


def sum_round(problem: Problem, partials: Tensor, dB: Tensor, dC: Tensor, count: int, begin: int, steps: int) -> None:
    """Add `count` partial sums of dB and dC over the blocks, for the steps [begin, begin + steps)."""
    numbers = problem.states * problem.components
    sum_partials(
        partials, (dB, dC), count, problem.blocks, rows=problem.batch, row_count=steps * numbers,
        row_stride=problem.length * numbers, begin=begin * numbers,
    )  # fmt: skip


def sum_partials(
    partials: Tensor, outputs: tuple[Tensor, Tensor | None], count: int, most: int, *, rows: int, row_count: int, row_stride: int,
    begin: int,
) -> None:  # fmt: skip
    """Add `count` partial sums for each output, for `row_count` numbers of each row from number `begin` on.

    partials: (outputs, count * rows * row_count), or of any shape for one output. most: an upper bound of `count` that does not
    depend on the length, so that all lengths have the same kernel. row_stride: numbers of a row of the outputs.
    """
    tile, numbers = tile_of_sums(most), rows * row_count
    launch(
        sum_partials_kernel, (ceil_div(numbers, tile["BLOCK"]), 1 if outputs[1] is None else 2), partials, *outputs, count,
        partials.shape[1], numbers, row_count, row_stride, begin, constants=tile,
    )  # fmt: skip


def sum_rounds(
    problem: Problem, plan: BackwardPlan, B: Tensor, C: Tensor, like: Tensor, scan: Callable[..., None]
) -> tuple[Tensor, Tensor]:
    """Return dB and dC from partial sums of the programs, which are in memory for the chunks of one round at a time.

    like, scan: as in `sum_in_order`, except that each program stores to separate places in the buffers.
    """
    dB, dC = torch.empty_like(B), torch.empty_like(C)
    numbers = problem.states * problem.components  # of a step
    round_steps = tables.smallest(plan.chunks_per_round * plan.chunk_steps, problem.length)
    partials = like.new_empty((2, problem.programs * numbers * round_steps))
    for first, stop in tables.rounds(plan.chunks, plan.chunks_per_round):
        begin, end = first * plan.chunk_steps, tables.smallest(stop * plan.chunk_steps, problem.length)
        scan(first, stop, *partials)
        sum_round(problem, partials, dB, dC, problem.blocks, begin, end - begin)
    return dB, dC


def plan_backward(problem: Problem, bytes_per_number: int, has_exchange: bool) -> BackwardPlan:
    """Return how the steps of the backward pass are divided.

    has_exchange: whether the sequences are split over processes. Then the gradient of the final state is known only after the
    first pass, and the chunks are parallel. If chains have one program, a round has so few chunks that the partial sums of dB and
    dC take at most `SCRATCH` bytes, where possible.
    """
    device, interval, T = problem.device, problem.interval, problem.constants["T"]
    most_chunks = parallel_chunks(problem.programs, problem.constants["num_warps"], device)
    programs = ceil_div(programs_to_fill(device), most_chunks)
    # The tiles that `tables.plan` counts are checkpoint intervals here.
    _, _, chunks, chunk_intervals, parallel = tables.plan(problem.entry, problem.length, programs, device, tile_steps=interval)
    longest = 1
    if problem.entry in ORDERED_SUMS and isinstance(chunk_intervals, int):  # a graph has equal kernels for all symbolic lengths
        longest = max(1, chunk_intervals * interval // (T * MIN_CHAIN_TILES[problem.entry]))
    chain_length = ceil_div(problem.blocks, ceil_div(problem.blocks, longest))
    if chain_length > 1 or problem.blocks == 1:
        return BackwardPlan(chunks, chunk_intervals * interval, parallel or has_exchange, chain_length, chunks)
    bytes_per_interval = 2 * problem.programs * problem.states * problem.components * bytes_per_number * interval
    most_intervals = tables.SCRATCH // bytes_per_interval  # of a round
    most_of_chunk = tables.largest(1, most_intervals // most_chunks)
    _, _, chunks, chunk_intervals, parallel = tables.plan(
        problem.entry, problem.length, programs, device, most_of_chunk, interval
    )
    chunks_per_round = 1
    if parallel or has_exchange:
        chunks_per_round = tables.smallest(chunks, tables.largest(1, most_intervals // chunk_intervals))
    return BackwardPlan(chunks, chunk_intervals * interval, parallel or has_exchange, chain_length, chunks_per_round)


def launch_scan(
    problem: Problem,
    plan: BackwardPlan,
    tensors: tuple[Tensor | None, ...],
    sums: tuple[Tensor | None, ...],
    factor_of_pair: float,
    first: int,
    stop: int,
    dB: Tensor,
    dC: Tensor,
) -> None:
    """Launch the backward scan of the chunks [first, stop). tensors, sums: the kernel's arguments before and after dB and dC."""
    T = problem.constants["T"]
    launch(
        chunk_scan_bwd_kernel, (problem.programs, stop - first), *tensors, dB, dC, *sums, problem.length, problem.channels,
        problem.states, plan.chunks, plan.chunk_steps // T, problem.rows, problem.interval // T, plan.chain_length, first,
        constants={
            "PAIR_FACTOR": factor_of_pair, "SEQUENTIAL": not plan.parallel, "FENCED": ORDERED_SUMS.get(problem.entry, False),
            "PTX": problem.ptx, "RECOMPUTE": max(T, MIN_RECOMPUTE_STEPS[problem.components]), "NW": problem.state_warps,
            **problem.constants,
        },
    )  # fmt: skip
