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
    smallest = min(CHECKPOINT_STEPS, SMALL_CHECKPOINT_STEPS) if is_small else CHECKPOINT_STEPS
    steps = [tables.TABLE[table_entry(components, direction, states)].steps for direction in ("", "_backward")]
    return max(smallest, MIN_RECOMPUTE_STEPS[components], *steps)


def parallel_chunks(programs: int, warps: int, device: torch.device) -> int:
    """Return how many chunks of `programs` programs run at the same time, if a multiprocessor has eight warps."""
    return tables.largest(1, programs_to_fill(device) // ceil_div(programs * warps, 2))


def chunk_states_shape(batch: int, length: int, channels: int, states: int, *pair: int) -> tuple[int, int]:
    """Return the shape of the checkpoints (B, intervals [2] N D), real parts before imaginary parts."""
    components = 1 + len(pair)
    return batch, ceil_div(length, checkpoint_interval(int(channels), int(states), components)) * components * states * channels


def scans_pass_states(p: Problem, plan: tables.Plan, flags: Tensor | None) -> bool:
    """Return whether a program of the scans passes the state through the chunks before its own, without `state_passing_kernel`.

    Not in a traced graph with a symbolic length, which has any number of chunks; not with flags, because the map of a chunk is
    undefined if a sequence starts in it; and not for complex A, for which the scans would need more registers and be slower
    (README.md).
    """
    return p.components == 1 and flags is None and isinstance(plan.chunks, int) and plan.chunks <= MAX_PASSED_CHUNKS


def new_maps(p: Problem, plan: tables.Plan, like: Tensor) -> Tensor:
    """Return the buffer for the maps of the state by the chunks: factors and local states, (2, B, chunks, D N[, 2])."""
    return like.new_empty((2, p.batch, plan.chunks, p.size, p.components))


def pass_states(
    p: Problem, plan: tables.Plan, maps: Tensor, first: Tensor | None, flags: Tensor | None, out: Tensor, reverse: bool
) -> None:
    """Compute the states before all chunks and after the last one, from the state `first`.

    maps: (2, B, chunks, D N[, 2]), as the first kernels store them. first: the state before the first chunk, None for zero. out:
    (B, chunks + 1, D N[, 2]). reverse: compute gradients of states instead, from that of the final state, `first`.
    """
    grid, starts = (p.batch, ceil_div(p.size, 128)), restarts(flags, plan.chunk_tiles * plan.T)
    constants = {"COMPLEX": p.components == 2, "REVERSE": reverse, "BLOCK": 128}
    launch(state_passing_kernel, grid, maps[0], maps[1], first, starts, out, plan.chunks, p.size, constants=constants)


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
    p = make_problem(u, A, B, dt_softplus, "")
    plan = tables.plan(p.entry, p.length, p.programs, p.device)
    y, final = torch.empty_like(u), A.new_empty((p.batch, p.channels, *B.shape[2:]))
    checkpoints = A.new_empty(chunk_states_shape(p.batch, p.length, p.channels, *B.shape[2:]) if save_states else (0,))
    grid = p.programs, plan.chunks
    sizes = p.length, p.channels, p.states, plan.chunks, plan.chunk_tiles, p.rows
    with on_device(u):
        first_states = maps = None
        if exchange_state is not None or plan.parallel:
            maps = new_maps(p, plan, A)
            launch(chunk_state_fwd_kernel, grid, u, dt, A, B, dt_bias, dt_scale, flags, maps, *sizes, constants=p.constants)
            if exchange_state is not None or not scans_pass_states(p, plan, flags):
                first_states = A.new_empty((p.batch, plan.chunks + 1, p.size, p.components))
                if exchange_state is not None:
                    one = torch.zeros_like(final)
                    (one if p.components == 1 else one[..., 0]).fill_(1)
                    without_inputs = torch.stack([maps[0], torch.zeros_like(maps[1])])
                    pass_states(p, plan, without_inputs, one, flags, first_states, False)
                    product = first_states[:, -1].clone().view(final.shape)
                    pass_states(p, plan, maps, None, flags, first_states, False)
                    initial_state = exchange_state(product, first_states[:, -1].clone().view(final.shape)).contiguous()
                pass_states(p, plan, maps, initial_state, flags, first_states, False)
                maps = None
        launch(
            chunk_scan_fwd_kernel, grid, u, dt, A, B, C, D, z, dt_bias, dt_scale, initial_state, first_states, maps, flags, y,
            final, checkpoints if save_states else None, *sizes, p.interval // p.constants["T"],
            constants={"PAIR_FACTOR": pair_factor(p, paired), "NW": p.state_warps, **p.constants},
        )  # fmt: skip
    return y, final, checkpoints


def pair_factor(p: Problem, paired: bool) -> float:
    """Return 2 if a state stands for a conjugate pair of complex states, otherwise 1."""
    return 2.0 if p.components == 2 and paired else 1.0


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
    p, like = make_problem(u, A, B, dt_softplus, "_backward"), A
    plan, chain_length, chunks_per_round = plan_backward(p, like.element_size(), exchange_gradient is not None)
    factor_of_pair, chunks = pair_factor(p, paired), plan.chunks if plan.parallel else 1
    du, ddt, dz = (u.new_empty(0) if x is None else torch.empty_like(x) for x in (u, dt, z))
    dA, d_initial = torch.empty_like(A), A.new_empty((p.batch, p.channels, *B.shape[2:]))
    d_bias, dD = (u.new_empty(0) if x is None else torch.empty_like(x) for x in (dt_bias, D))
    sums = like.new_empty((p.batch, chunks, p.size * p.components + 2 * p.channels))
    d_scale = None if dt_scale is None else like.new_empty((p.blocks, p.batch, p.length))
    counters = None
    if chain_length > 1:  # `chunk_state_bwd_kernel` sets them to 0 where it runs
        new = torch.empty if plan.parallel else torch.zeros
        counters = new(p.programs * plan.chunks + 1, dtype=torch.int32, device=u.device)
    maps = None
    with on_device(u):
        if plan.parallel:
            maps = new_maps(p, plan, like)
            sizes = p.length, p.channels, p.states, plan.chunks, plan.chunk_tiles * plan.T // p.constants["T"], p.rows
            launch(
                chunk_state_bwd_kernel, (p.programs, plan.chunks), grad_y, dt, A, C, z, dt_bias, dt_scale, flags, maps, counters,
                *sizes, constants={"PAIR_FACTOR": factor_of_pair, **p.constants},
            )  # fmt: skip
            if exchange_gradient is not None or not scans_pass_states(p, plan, flags):
                d_states = like.new_empty((p.batch, chunks + 1, p.size, p.components))
                if exchange_gradient is not None:
                    pass_states(p, plan, maps, None, flags, d_states, True)
                    grad_final = exchange_gradient(d_states[:, 0].reshape(d_initial.shape)).contiguous()
                pass_states(p, plan, maps, grad_final, flags, d_states, True)
                grad_final, maps = d_states, None
        else:
            grad_final = torch.zeros_like(d_initial) if grad_final is None else grad_final
        tiles = p.interval // p.constants["T"]  # of a checkpoint interval
        tile_states = like.new_empty((p.programs * chunks_per_round, tiles, p.components, p.pairs))

        inputs = grad_y, u, dt, A, B, C, D, z, dt_bias, dt_scale, flags, chunk_states
        scan = partial(
            launch_scan, p, plan, (*inputs, tile_states, grad_final, maps, d_initial, du, ddt, dz, d_scale), (sums, counters),
            chain_length, factor_of_pair,
        )  # fmt: skip
        add = sum_rounds if chain_length == 1 and p.blocks > 1 else sum_in_order
        dB, dC = add(p, plan, chunks_per_round, chain_length, B, C, like, scan)
        tile = tile_of_sums(SUM_ROWS)  # of any number of rows and chunks, for which the kernel is the same
        launch(
            sum_parameter_gradients_kernel, (ceil_div(sums.shape[2], tile["BLOCK"]), p.groups), sums, dA,
            None if dt_bias is None else d_bias, None if D is None else dD, p.rows * chunks, p.size * p.components, p.channels,
            constants=tile,
        )  # fmt: skip
        total = u.new_empty(0) if dt_scale is None else torch.empty_like(dt_scale)
        if d_scale is not None:
            steps, tile = p.batch * p.length, tile_of_sums(p.blocks)
            launch(
                sum_partials_kernel, (ceil_div(steps, tile["BLOCK"]), 1), d_scale, total, None, p.blocks, 0, steps, steps, steps,
                0, constants=tile,
            )  # fmt: skip
    return du, ddt, dA, dB, dC, dD, dz, d_bias, d_initial, total


def sum_in_order(
    p: Problem, plan: tables.Plan, _: int, chain_length: int, B: Tensor, C: Tensor, like: Tensor, scan: Callable[..., None]
) -> tuple[Tensor, Tensor]:
    """Return dB and dC, to which the programs of a chain add in order; the sums of several chains are added afterwards.

    like: tensor of the dtype of the sums. scan: function of first, stop and buffers for dB and dC that adds the terms of the
    chunks [first, stop) to these.
    """
    chains, numbers = ceil_div(p.blocks, chain_length), p.states * p.components
    stored = chain_length == 1 or ORDERED_SUMS[p.entry]  # the first program of a chain stores its terms, and the others add
    if chains == 1 and B.dtype == like.dtype:
        dB, dC = (torch.empty_like(x) if stored else torch.zeros_like(x) for x in (B, C))
        scan(0, plan.chunks, dB, dC)
        if is_compiling():  # other lengths and batches have several chains
            launch_sum_partials(p, like.new_empty((2, 2 * dB.numel())), dB, dC, 2, 0, p.length)
        return dB, dC
    dB, dC = torch.empty_like(B), torch.empty_like(C)
    partials = (like.new_empty if stored else like.new_zeros)((2, chains * p.batch * p.length * numbers))
    scan(0, plan.chunks, *partials)
    launch_sum_partials(p, partials, dB, dC, chains, 0, p.length)
    return dB, dC


def tile_of_sums(count: int) -> dict[str, int]:
    """Return the tile of a kernel that adds `count` partial sums: its number of rows, each of another sum, and their numbers."""
    rows = min(SUM_ROWS, power_of_two(count))
    return {"ROWS": rows, "BLOCK": SUM_NUMBERS // rows}


def launch_sum_partials(p: Problem, partials: Tensor, dB: Tensor, dC: Tensor, count: int, begin: int, steps: int) -> None:
    """Add `count` partial sums of dB and dC over the blocks, for the steps [begin, begin + steps)."""
    numbers = p.states * p.components
    round_numbers, tile = p.batch * steps * numbers, tile_of_sums(p.blocks)  # not of `count`, which depends on the length
    launch(
        sum_partials_kernel, (ceil_div(round_numbers, tile["BLOCK"]), 2), partials, dB, dC, count, partials.shape[1],
        round_numbers, steps * numbers, p.length * numbers, begin * numbers, constants=tile,
    )  # fmt: skip


def sum_rounds(
    p: Problem, plan: tables.Plan, chunks_per_round: int, _: int, B: Tensor, C: Tensor, like: Tensor, scan: Callable[..., None]
) -> tuple[Tensor, Tensor]:
    """Return dB and dC from partial sums of the programs, which are in memory for the chunks of one round at a time.

    like, scan: as in `sum_in_order`, except that each program stores to a separate part of the buffers.
    """
    dB, dC = torch.empty_like(B), torch.empty_like(C)
    steps, numbers = plan.chunk_tiles * plan.T, p.states * p.components  # of a chunk, of a step
    partials = like.new_empty((2, p.programs * numbers * tables.smallest(chunks_per_round * steps, p.length)))
    for first, stop in tables.rounds(plan.chunks, chunks_per_round):
        begin, end = first * steps, tables.smallest(stop * steps, p.length)
        scan(first, stop, *partials)
        launch_sum_partials(p, partials, dB, dC, p.blocks, begin, end - begin)
    return dB, dC


def plan_backward(p: Problem, bytes_per_number: int, has_exchange: bool) -> tuple[tables.Plan, int, int]:
    """Return how the steps are divided into chunks, the programs of a chain, and the chunks of a round.

    has_exchange: whether the sequences are split over processes. Then the gradient of the final state is known only after the
    first pass, and the chunks are parallel. If chains have one program, a round has so few chunks that the partial sums of dB and
    dC take at most `SCRATCH` bytes, where possible.
    """
    parallel, steps = parallel_chunks(p.programs, p.constants["num_warps"], p.device), p.constants["T"]
    programs = ceil_div(programs_to_fill(p.device), parallel)
    plan = tables.plan(p.entry, p.length, programs, p.device, tile_steps=p.interval)
    plan = plan._replace(parallel=plan.parallel or has_exchange)
    longest = 1
    if p.entry in ORDERED_SUMS and isinstance(plan.chunk_tiles, int):  # a graph has the same kernels for every symbolic length
        longest = max(1, plan.chunk_tiles * plan.T // (steps * MIN_CHAIN_TILES[p.entry]))
    chain_length = ceil_div(p.blocks, ceil_div(p.blocks, longest))
    if chain_length > 1 or p.blocks == 1:
        return plan, chain_length, plan.chunks
    bytes_per_interval = 2 * p.programs * p.states * p.components * bytes_per_number * p.interval
    intervals = tables.SCRATCH // bytes_per_interval
    plan = tables.plan(p.entry, p.length, programs, p.device, tables.largest(1, intervals // parallel), p.interval)
    plan = plan._replace(parallel=plan.parallel or has_exchange)
    chunks_per_round = tables.smallest(plan.chunks, tables.largest(1, intervals // plan.chunk_tiles)) if plan.parallel else 1
    return plan, chain_length, chunks_per_round


def launch_scan(
    p: Problem,
    plan: tables.Plan,
    tensors: tuple[Tensor | None, ...],
    sums: tuple[Tensor | None, ...],
    chain_length: int,
    factor_of_pair: float,
    first: int,
    stop: int,
    dB: Tensor,
    dC: Tensor,
) -> None:
    """Launch the backward scan of the chunks [first, stop). tensors, sums: the kernel's arguments before and after dB and dC."""
    T, recompute = p.constants["T"], max(p.constants["T"], MIN_RECOMPUTE_STEPS[p.components])
    launch(
        chunk_scan_bwd_kernel, (p.programs, stop - first), *tensors, dB, dC, *sums, p.length, p.channels, p.states, plan.chunks,
        plan.chunk_tiles * plan.T // T, p.rows, plan.T // T, chain_length, first,
        constants={
            "PAIR_FACTOR": factor_of_pair, "SEQUENTIAL": not plan.parallel, "FENCED": ORDERED_SUMS.get(p.entry, False),
            "PTX": p.ptx, "RECOMPUTE": recompute, "NW": p.state_warps, **p.constants,
        },
    )  # fmt: skip
