"""Launches of the kernels of `unitary_scan`: how the work is divided among programs, and the buffers between kernels."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longscan.numerics.pairs import multiply, polar
from longscan.ops import _triton_launch as tables
from longscan.ops._gpu import (
    ceil_div,
    is_compiling,
    launch,
    multiprocessors,
    on_device,
    power_of_two,
    programs_to_fill,
    shared_memory,
)
from longscan.ops._triton_launch import largest, smallest
from longscan.ops.unitary_scan.triton.backward import (
    chunk_scan_bwd_kernel,
    chunk_scan_masked_bwd_kernel,
    chunk_scan_products_bwd_kernel,
    chunk_state_bwd_kernel,
    epilogue_bwd_kernel,
    preprocess_bwd_kernel,
    state_passing_bwd_kernel,
    sum_parameter_gradients_kernel,
)
from longscan.ops.unitary_scan.triton.forward import (
    chunk_scan_fwd_kernel,
    chunk_state_fwd_kernel,
    epilogue_fwd_kernel,
    preprocess_fwd_kernel,
    state_passing_fwd_kernel,
    tile_states_kernel,
)
from longscan.ops.unitary_scan.triton.gemm import WEIGHT_ROWS, d_theta_gemm_kernel


class ScanTile(NamedTuple):
    """Steps and lanes (pairs of a channel and a state) of a tile of the scans, warps, and stages of the software pipeline."""

    steps: int
    lanes: int
    warps: int
    stages: int


class GemmTile(NamedTuple):
    """Tiles of the products: `rows` steps of the gradient of u; (slots, columns) of that of W, in sums over `steps` steps."""

    rows: int
    slots: int
    steps: int
    columns: int
    warps: int
    stages: int = 3


class ElementwiseTile(NamedTuple):
    """Steps and channels of a program of an elementwise kernel, and its warps."""

    steps: int
    channels: int
    warps: int


# Largest number of channels -> tile of the scans. With many channels, tiles of u and W fill shared memory and registers.
SCAN_TILES = {32: ScanTile(32, 32, 1, 3), 128: ScanTile(32, 32, 1, 2), 2**31: ScanTile(16, 32, 1, 2)}
# The backward scan that also computes the products: lanes of a program, warps and stages, the most channels for which the
# gradient of W stays in registers, the fewest pairs of a channel and a state, and the bytes of shared memory that it needs.
FUSED_LANES, FUSED_WARPS, FUSED_STAGES, FUSED_CHANNELS, FUSED_PAIRS, FUSED_SHARED_MEMORY = 128, 4, 3, 32, 128, 98304
# By K, the channels up to a power of two; columns beyond the last are divided among programs.
GEMM_TILES = {
    16: GemmTile(128, 64, 64, 16, 4),
    32: GemmTile(128, 64, 64, 32, 4),
    64: GemmTile(64, 64, 64, 64, 4),
    128: GemmTile(64, 64, 32, 128, 4),
}
ELEMENTWISE = ElementwiseTile(16, 64, 4)
STATE_PASSING = {"BLOCK": 128}  # lanes of a program
SUMS = {"STATE_ROWS": 16, "STATE_BLOCK": 32, "SKIP_ROWS": 256, "SKIP_BLOCK": 8, "WEIGHT_ROWS": 8, "WEIGHT_BLOCK": 256}

ROUND_BYTES = 40 * 2**20  # largest size of the gradients of the angles of a round
PRODUCT_BYTES = 32 * 2**20  # largest size of the partial sums of du of a round, where the backward scan computes the products
SEQUENCE_BYTES = 8 * 2**20  # largest size of the inputs of the scans of all rounds for which one launch stores all of them
MIN_ROUND_STEPS = 128  # smallest number of steps of a round, for which it may take four times ROUND_BYTES
CHUNK_UNIT = 64  # the steps of long chunks are multiples of this, so that fewer tiles of the products reach beyond them


class Lanes(NamedTuple):
    """Division of a row's lanes among programs: BN states of BD channels in each, STATE_BLOCKS programs for all states."""

    BN: int
    BD: int
    STATE_BLOCKS: int
    BLOCKS: int


class TimeDivision(NamedTuple):
    """Division of the steps into `number` chunks of `steps` steps, which are parallel or follow each other."""

    steps: int
    number: int
    parallel: bool


class Problem(NamedTuple):
    """Sizes of a call and its division among programs.

    Attributes:
        batch, L, D, N: sizes of the call.
        groups: number of groups of batch rows that have the same parameters.
        K: channels of u in its buffers, a power of two for tensor cores.
        single: whether numbers are float32, which tensor cores multiply in two fp16 parts.
        phase_dt: whether angles are multiplied by dt.
        lanes, chunks: the division of the lanes and of the steps.
        chunk_tiles: number of tiles of a chunk.
        constants: compile-time arguments of the scans.
    """

    batch: int
    L: int
    D: int
    N: int
    groups: int
    K: int
    single: bool
    phase_dt: bool
    lanes: Lanes
    chunks: TimeDivision
    chunk_tiles: int
    constants: dict[str, Any]

    @property
    def rows(self) -> int:
        """Number of batch rows that have the same parameters."""
        return self.batch // self.groups

    @property
    def size(self) -> int:
        """Number of pairs of a channel and a state."""
        return self.D * self.N

    @property
    def slots(self) -> int:
        """Number of lanes of all programs of a row."""
        return self.lanes.BLOCKS * self.lanes.BD * self.lanes.BN

    @property
    def programs(self) -> int:
        """Number of programs of a scan for one chunk."""
        return self.batch * self.lanes.BLOCKS


def scan_tile(channels: int) -> ScanTile:
    """Return the tile of the scans."""
    return SCAN_TILES[min([most for most in SCAN_TILES if channels <= most])]


def divide_lanes(channels: int, states: int, lanes: int | None = None) -> Lanes:
    """Return the division of the lanes of a row. lanes: those of a program, by default of `scan_tile`."""
    lanes = lanes or scan_tile(channels).lanes
    BN = min(lanes, power_of_two(states))
    blocks = ceil_div(states, BN)
    return Lanes(BN, lanes // BN, blocks, ceil_div(channels, lanes // BN) * blocks)


def bytes_per_step(batch: int, channels: int, states: int) -> int:
    """Return the bytes of the gradients of the angles of a step, in float32."""
    lanes = divide_lanes(channels, states)
    return 4 * batch * lanes.BLOCKS * lanes.BD * lanes.BN


def divide_steps(batch: int, length: int, channels: int, states: int, device: torch.device) -> TimeDivision:
    """Return the division of the steps. Chunks are parallel if the programs of one chunk occupy at most half of the device.

    The backward pass works in rounds: the gradients of the angles of a whole round are in memory at the same time. Of chunks that
    follow each other a round has one; of parallel chunks, which are as many times shorter, it has several. Where the backward
    scan computes the products and does not store these gradients, a round is several chunks in both cases.
    """
    T, row = scan_tile(channels).steps, bytes_per_step(batch, channels, states)
    programs, wanted = batch * divide_lanes(channels, states).BLOCKS, programs_to_fill(device)
    parallel = programs * 2 <= wanted
    most = ROUND_BYTES // row
    if parallel:
        parallel_chunks = ceil_div(wanted, programs)
        most = min(ceil_div(length, parallel_chunks), ceil_div(most, parallel_chunks))
    elif most < MIN_ROUND_STEPS:
        most = min(MIN_ROUND_STEPS, 4 * ROUND_BYTES // row)
    number = ceil_div(length, min(max(most, T), length))
    steps = ceil_div(length, number)
    unit = max(T, CHUNK_UNIT) if steps >= 4 * CHUNK_UNIT else T
    steps = ceil_div(steps, unit) * unit
    number = ceil_div(length, steps)
    return TimeDivision(steps, number, parallel and number > 1)


def chunk_states_shape(u: Tensor, states: int) -> tuple[int, int]:
    """Return the shape of what `forward` stores: in each row first the states between chunks, and last y before skip and gate."""
    batch, length, channels, states = *u.shape[:2], int(u.shape[2]), int(states)
    chunks = max_chunks(batch, length, channels, states, u.device)
    return batch, channels * states * 3 * (chunks + 1) + length * channels


def max_chunks(batch: int, length: int, channels: int, states: int, device: torch.device) -> int:
    """Return an upper bound of the number of chunks, without comparisons of B and L, which would fix them in a traced graph."""
    row, T = bytes_per_step(batch, channels, states), scan_tile(channels).steps
    parallel_chunks, most = ceil_div(programs_to_fill(device), batch * divide_lanes(channels, states).BLOCKS), ROUND_BYTES // row
    most = largest(most, smallest(MIN_ROUND_STEPS, 4 * ROUND_BYTES // row))
    shortest = largest(1, most // parallel_chunks)
    further_rounds = (length * row - 1) // ROUND_BYTES  # 0 if all steps are one round, whose chunks are parallel
    more = smallest(ceil_div(length, shortest), further_rounds * 2**20)  # 2**20: more chunks than a round can have
    return smallest(ceil_div(length, T), parallel_chunks + more)


def make_problem(u: Tensor, W: Tensor, states: int, phase_dt: bool, has_flags: bool, has_exchange: bool) -> Problem:
    """Return sizes and division of a call. has_exchange: whether processes exchange states between a first and a second pass."""
    batch, L, D = u.shape
    tile, lanes, single = scan_tile(D), divide_lanes(D, states), u.dtype == torch.float32
    T = tile.steps
    if not single:
        T = max(1, T // 2)
    elif has_flags and T > 16:  # tiles of tensor cores have 16 rows; with flags more would not stay in registers
        T = T // 2
    chunks = divide_steps(batch, L, D, states, u.device)
    chunks = chunks._replace(parallel=chunks.parallel or has_exchange)
    K = max(16, power_of_two(D)) if single else 0
    constants = {
        "D": D, "N": states, "STATE_BLOCKS": lanes.STATE_BLOCKS, "BLOCKS": lanes.BLOCKS, "T": T, "BD": lanes.BD, "BN": lanes.BN,
        "K": K, "FAST": single and tables.special_functions(u), "STAGES": tile.stages, "num_warps": tile.warps,
    }  # fmt: skip
    groups = len(W) if W.ndim == 4 else 1
    return Problem(batch, L, D, states, groups, K or D, single, phase_dt, lanes, chunks, chunks.steps // T, constants)


def fuse_products(problem: Problem) -> Problem:
    """Return the problem with the division among programs of the backward scan that computes the products itself."""
    lanes = divide_lanes(problem.D, problem.N, FUSED_LANES)
    constants = {"STATE_BLOCKS": lanes.STATE_BLOCKS, "BLOCKS": lanes.BLOCKS, "BD": lanes.BD, "BN": lanes.BN}
    return problem._replace(
        lanes=lanes, constants={**problem.constants, **constants, "STAGES": FUSED_STAGES, "num_warps": FUSED_WARPS}
    )


class Elementwise(NamedTuple):
    """Launch of an elementwise kernel on (B, L, width): its grid, the tiles of a batch row, and its compile-time arguments."""

    programs: int
    columns: int
    tiles: int
    constants: dict[str, int]


def elementwise(batch: int, length: int, width: int) -> Elementwise:
    """Return the launch of an elementwise kernel."""
    tiles, BD = ceil_div(length, ELEMENTWISE.steps), min(ELEMENTWISE.channels, power_of_two(width))
    constants = {"T": ELEMENTWISE.steps, "BD": BD, "num_warps": ELEMENTWISE.warps}
    return Elementwise(batch * tiles, ceil_div(width, BD), tiles, constants)


class Sequences(NamedTuple):
    """Tensors that the scans of a round read: u in two parts, dt or the mask of valid steps, x = dt silu(u), g = dy silu(z).

    u_parts: both parts of u in one tensor, for the scan that computes the products itself.
    """

    u_hi: Tensor
    u_lo: Tensor | None
    dt: Tensor | None
    valid: Tensor | None
    x: Tensor
    g: Tensor | None
    u_parts: Tensor | None

    def skip(self, problem: "Problem", steps: int) -> "Sequences":
        """Return views of these buffers without the first `steps` steps, which are whole rounds."""
        row = problem.batch * steps
        u_lo, dt, valid, g, u_parts = (x if x is None else x[row * width :] for x, width in (
            (self.u_lo, problem.K), (self.dt, problem.D), (self.valid, 1), (self.g, problem.D), (self.u_parts, 2 * problem.K)
        ))  # fmt: skip
        return Sequences(self.u_hi[row * problem.K :], u_lo, dt, valid, self.x[row * problem.D :], g, u_parts)


def sequence_bytes(problem: Problem, steps: int) -> int:
    """Return the bytes of the buffers of `new_sequences` for the backward scans, without `u_parts`: u, x, g, dt or mask."""
    numbers = problem.K + problem.D * (2 + problem.phase_dt) + (not problem.phase_dt)
    return problem.batch * steps * numbers * (4 if problem.single else 8)


def new_sequences(problem: Problem, like: Tensor, steps: int, backward: bool, fused: bool = False) -> Sequences:
    """Return buffers for `steps` steps."""
    u_hi = like.new_empty(problem.batch * steps * problem.K, dtype=torch.float16 if problem.single else like.dtype)
    per_channel = [like.new_empty(problem.batch * problem.D * steps) for _ in range(1 + problem.phase_dt + backward)]
    return Sequences(
        u_hi,
        torch.empty_like(u_hi) if problem.single else None,
        per_channel.pop() if problem.phase_dt else None,
        None if problem.phase_dt else like.new_empty(problem.batch * steps),
        per_channel.pop(),
        per_channel.pop() if backward else None,
        u_hi.new_empty(2 * problem.batch * steps * problem.K) if fused else None,
    )


def preprocess_forward(
    problem: Problem, u: Tensor, dt: Tensor, flags: Tensor | None, sequences: Sequences, origin: int, padded: int
) -> None:
    """Fill the buffers, except g, with `padded` steps from the step `origin` on."""
    call = elementwise(problem.batch, padded, problem.K)
    launch(
        preprocess_fwd_kernel, (call.programs, call.columns), u, dt, flags, *sequences[:5], problem.L, problem.D, problem.K,
        padded, origin, call.tiles,
        constants=call.constants,
    )  # fmt: skip


def shared_coefficients(B: Tensor, C: Tensor) -> dict[str, bool]:
    """Return whether all channels share B and C, (N, 2), as compile-time arguments of the kernels that read both."""
    return {"SHARED_B": B.ndim == 2, "SHARED_C": C.ndim == 2}


def pass_states(problem: Problem, local: Tensor, initial: Tensor | None, chunk_states: Tensor) -> None:
    """Store the states between chunks from those of `chunk_state_fwd_kernel` and the initial state, None for zero."""
    launch(
        state_passing_fwd_kernel, (problem.batch, ceil_div(problem.size, STATE_PASSING["BLOCK"])), local, initial, chunk_states,
        problem.chunks.number, problem.size, chunk_states.stride(0), constants=STATE_PASSING,
    )  # fmt: skip


def forward(
    u: Tensor,
    dt: Tensor,
    W: Tensor,
    bias: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    initial_state: Tensor | None,
    flags: Tensor | None,
    phase_dt: bool,
    save_states: bool,
    exchange_state: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y (B, L, D), the final state (B, D, N, 2) and, with `save_states`, what `backward` needs.

    Contiguous tensors of one real dtype; L, D and N are at least 1. The parameters W (D, N, D), bias, B, C and D may have a
    leading axis of groups: equal runs of batch rows then belong to different groups. Without groups B and C may be (N, 2), the
    same for all channels. initial_state: None for zero. exchange_state: function that returns the initial state, which replaces
    `initial_state`, from the rotation by all steps and the final state for an initial state of zero.
    """
    problem = make_problem(u, W, bias.shape[-1], phase_dt, flags is not None, exchange_state is not None)
    number, padded, shared = problem.chunks.number, problem.chunks.number * problem.chunks.steps, shared_coefficients(B, C)
    y, final = torch.empty_like(u), u.new_empty((problem.batch, problem.D, problem.N, 2))
    saved = u.new_empty(chunk_states_shape(u, problem.N) if save_states else (0,))
    chunk_states, raw = (saved, saved[:, -problem.L * problem.D :]) if save_states else (None, None)
    sums = u.new_empty(problem.lanes.STATE_BLOCKS * problem.batch * problem.D * padded)
    with on_device(u):
        sequences = new_sequences(problem, u, padded, False)
        preprocess_forward(problem, u, dt, flags, sequences, 0, padded)
        # For other lengths and batches of these channels and states the kernels of parallel chunks are compiled, too.
        if problem.chunks.parallel or (is_compiling() and save_states):
            local = u.new_empty((problem.batch, number, problem.size, 4))
            launch(
                chunk_state_fwd_kernel, (problem.programs, number), *sequences[:5], W, bias, B, flags, local, problem.L, padded,
                problem.chunk_tiles, problem.rows,
                constants={**problem.constants, "SHARED_B": shared["SHARED_B"]},
            )  # fmt: skip
            if chunk_states is None:
                chunk_states = u.new_empty((problem.batch, 3 * problem.size * (number + 1)))
            if exchange_state is not None:
                pass_states(problem, local, None, chunk_states)
                last = chunk_states[:, 3 * problem.size * number : 3 * problem.size * (number + 1)].view(
                    problem.batch, 3, problem.D, problem.N
                )
                rotation = polar(torch.ones_like(last[:, 0]), last[:, 0])
                final_from_zero = multiply(rotation, torch.stack([last[:, 1], last[:, 2]], -1))
                initial_state = exchange_state(rotation, final_from_zero).contiguous()
            pass_states(problem, local, initial_state, chunk_states)
        launch(
            chunk_scan_fwd_kernel, (problem.programs, number if problem.chunks.parallel else 1), *sequences[:5], W, bias, B,
            C, initial_state, chunk_states, flags, sums, final, problem.batch, problem.L, padded, number, problem.chunk_tiles,
            problem.chunk_tiles * (1 if problem.chunks.parallel else number), problem.rows,
            0 if chunk_states is None else chunk_states.stride(0), int(not problem.chunks.parallel),
            constants={**problem.constants, **shared},
        )  # fmt: skip
        call = elementwise(problem.batch, problem.L, problem.D)
        launch(
            epilogue_fwd_kernel, (call.programs, call.columns), sums, u, D, z, flags, y, raw, problem.batch, problem.L, problem.D,
            padded, problem.lanes.STATE_BLOCKS, call.tiles, problem.rows, saved.stride(0), constants=call.constants,
        )  # fmt: skip
    return y, final, saved


class Gemm:
    """The matrix products of the gradients of the angles with W and with u, for one round after another.

    Attributes:
        d_theta: buffers of the gradients of the angles, as the scans store them, for rounds of at most `steps` steps: the
            gradients themselves, or their high and low parts with the inverses of their powers of two, one for each chunk or,
            with `by_step`, one for each step.
        W_hi, W_lo: buffers of the parts of W, which `preprocess_bwd_kernel` fills; None without parts.
        split_k, weight_split_k: number of partial sums of the gradient of u, or of W.
    """

    def __init__(self, problem: Problem, W: Tensor, steps: int, by_step: bool) -> None:
        self.problem, self.by_step, self.accumulate = problem, by_step, 0
        self.slots_per_channel = problem.lanes.STATE_BLOCKS * problem.lanes.BN
        rows, shape = problem.batch * steps, (problem.groups, problem.slots, problem.K)
        self.d_theta: tuple[Tensor, Tensor | None, Tensor | None]
        self.W_hi: Tensor | None = None
        self.W_lo: Tensor | None = None
        if not problem.single:
            self.d_theta = W.new_empty(rows * problem.slots), None, None
            self.split_k = self.weight_split_k = 1
            self.W, self.dW = W.new_zeros(shape), W.new_zeros(shape)
            channels = self.W.view(problem.groups, -1, self.slots_per_channel, problem.D)
            channels[:, : problem.D, : problem.N].copy_(W.view(problem.groups, problem.D, problem.N, problem.D))
            return
        high = torch.empty(rows * problem.slots, dtype=torch.float16, device=W.device)
        inverse = W.new_empty((rows if by_step else rows // problem.chunks.steps) * problem.lanes.BLOCKS)
        self.d_theta = high, torch.empty_like(high), inverse
        self.W_hi, self.W_lo = high.new_empty(shape), high.new_empty(shape)
        self.tile = tile = GEMM_TILES[min(problem.K, max(GEMM_TILES))]
        programs = ceil_div(multiprocessors(W.device), problem.K // tile.columns * problem.groups)
        chunks, self.W_blocks = problem.rows * (steps // problem.chunks.steps), ceil_div(problem.slots, tile.slots)
        u_tiles, W_tiles = (chunks * ceil_div(problem.chunks.steps, each) for each in (tile.rows, tile.steps))
        self.blocks_per_split = ceil_div(problem.lanes.BLOCKS, ceil_div(programs, u_tiles))
        self.tiles_per_split = ceil_div(W_tiles, ceil_div(programs, self.W_blocks))
        self.split_k = ceil_div(problem.lanes.BLOCKS, self.blocks_per_split)
        self.weight_split_k = ceil_div(W_tiles, self.tiles_per_split)
        self.dW = W.new_empty((self.weight_split_k, *shape))
        self.du = W.new_empty(self.split_k * rows * problem.K)

    def run(self, sequences: Sequences, chunks: int) -> Tensor:
        """Return partial sums of the gradient of u (split_k, B, steps, K) of a round of `chunks` chunks; add to those of W.

        sequences: the inputs of the scan of the round.
        """
        problem, steps = self.problem, self.problem.chunks.steps
        if not problem.single:
            d_theta = self.d_theta[0][: problem.batch * chunks * steps * problem.slots].view(problem.groups, -1, problem.slots)
            u = sequences.u_hi[: problem.batch * chunks * steps * problem.D].view(problem.groups, -1, problem.D)
            self.dW.baddbmm_(d_theta.mT, u)
            return torch.bmm(d_theta, self.W)
        tile, chunks = self.tile, chunks * problem.rows
        u_tiles, W_tiles = ceil_div(steps, tile.rows), ceil_div(steps, tile.steps)
        u_programs = chunks * u_tiles * self.split_k
        grid = u_programs + self.W_blocks * self.weight_split_k, problem.K // tile.columns, problem.groups
        even = bool(steps % tile.rows == steps % tile.steps == problem.slots % tile.slots == 0)  # no symbol, in traced graphs
        for is_even in (True, False) if is_compiling() else (even,):  # compile both: other lengths need the other kernel
            launch(
                d_theta_gemm_kernel, grid, *self.d_theta, self.W_hi, self.W_lo, sequences.u_hi, sequences.u_lo, self.du, self.dW,
                chunks, steps, u_tiles, W_tiles, self.blocks_per_split, self.tiles_per_split, u_programs, self.W_blocks,
                self.accumulate,
                constants={
                    "BLOCKS": problem.lanes.BLOCKS, "R": problem.lanes.BD * problem.lanes.BN, "K": problem.K, "BK": tile.columns,
                    "BT_U": tile.rows, "BS": tile.slots, "BT_W": tile.steps, "STAGES": tile.stages, "EVEN": is_even,
                    "BY_STEP": self.by_step, "num_warps": tile.warps,
                },
            )  # fmt: skip
        self.accumulate = 1
        return self.du


class FusedProducts:
    """The products of the gradients of the angles where the backward scan computes them.

    Attributes:
        du, dW: partial sums of the gradients of u and W, for rounds of at most `chunks` chunks.
        split_k, weight_split_k: number of these sums.
        W_hi, W_lo: None, in place of the buffers of `Gemm`.
    """

    W_hi = W_lo = None

    def __init__(self, problem: Problem, W: Tensor, chunks: int) -> None:
        self.slots_per_channel = problem.lanes.STATE_BLOCKS * problem.lanes.BN
        self.split_k, self.weight_split_k = problem.lanes.BLOCKS, problem.rows * (chunks if problem.chunks.parallel else 1)
        self.du = W.new_empty(self.split_k * problem.batch * chunks * problem.chunks.steps * problem.K)
        self.dW = W.new_empty((self.weight_split_k, problem.groups, problem.slots, problem.K))


def backward(
    grad_y: Tensor,
    grad_final: Tensor | None,
    u: Tensor,
    dt: Tensor,
    W: Tensor,
    bias: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    initial_state: Tensor | None,  # noqa: ARG001
    flags: Tensor | None,
    chunk_states: Tensor,
    phase_dt: bool,
    exchange_gradient: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """Return the gradients of u, dt, W, bias, B, C, D, z and initial_state; empty where D or z is None.

    grad_final: None for zero. chunk_states: what `forward` stored. exchange_gradient: function that returns the gradient of the
    final state, which replaces `grad_final`, from the gradient of the initial state if that of the final state is zero.
    """
    problem = make_problem(u, W, bias.shape[-1], phase_dt, flags is not None, exchange_gradient is not None)
    fused = problem.single and flags is None and problem.D <= FUSED_CHANNELS and problem.size >= FUSED_PAIRS
    fused = fused and shared_memory(u.device) >= FUSED_SHARED_MEMORY
    scan = fuse_products(problem) if fused else problem
    (steps, number, parallel), shared = problem.chunks, shared_coefficients(B, C)
    du, ddt, dz = torch.empty_like(u), torch.empty_like(u), u.new_empty(0) if z is None else torch.empty_like(z)
    d_bias, dB, dC, dW = map(torch.empty_like, (bias, B, C, W))
    d_initial = u.new_empty((problem.batch, problem.D, problem.N, 2))
    d_rotated = u.new_empty((problem.batch, number + 1 if parallel else 1, problem.size, 2))
    sums = u.new_empty((problem.batch, number if parallel else 1, 5, problem.size))
    stride, raw = chunk_states.stride(0), chunk_states[:, -problem.L * problem.D :]
    rounds = list(divide_into_rounds(problem, scan.lanes.BLOCKS if fused else None))
    round_chunks = max(stop - first for first, stop in rounds)
    round_steps, state_blocks = round_chunks * steps, scan.lanes.STATE_BLOCKS * (ceil_div(scan.lanes.BN, 32) if fused else 1)
    dx = u.new_empty(state_blocks * problem.batch * round_steps * problem.D)
    d_dt = torch.empty_like(dx) if phase_dt else None
    all_tiles = sum(elementwise(problem.batch, (stop - first) * steps, problem.D).tiles for first, stop in rounds)
    skips, dD = (None, None) if D is None else (u.new_empty((problem.batch, all_tiles, problem.D)), torch.empty_like(D))
    prepares_all = len(rounds) > 1 and flags is None and not parallel  # in one launch, the inputs of all rounds
    prepares_all = prepares_all and sequence_bytes(problem, number * steps) <= SEQUENCE_BYTES
    prepares_all = prepares_all and number * steps == len(rounds) * round_steps  # rounds of equal lengths
    buffers = new_sequences(problem, u, number * steps if prepares_all else round_steps, True, fused)
    tile_states = (
        None if flags is None else u.new_empty((problem.batch, round_steps // steps * problem.chunk_tiles, 3, problem.size))
    )
    masks = () if flags is None else (flags, tile_states)
    with on_device(u):
        gemm = FusedProducts(scan, W, round_chunks) if fused else Gemm(problem, W, round_steps, flags is not None)
        preprocess = BackwardPreprocess(
            problem, (u, dt, z, grad_y, flags), (W, bias, B), chunk_states, buffers, gemm, tile_states
        )
        if prepares_all:
            preprocess.run(0, number, round_steps)
        if parallel or is_compiling():
            local = u.new_empty((problem.batch, number, problem.size, 3))
            for first, stop in rounds:
                preprocess.run(first, stop, (stop - first) * steps)
                launch(
                    chunk_state_bwd_kernel, (problem.programs, stop - first), *buffers[:4], buffers.g, W, bias, C, chunk_states,
                    flags, tile_states, local, problem.L, (stop - first) * steps, problem.chunk_tiles, number, problem.rows,
                    stop * steps - 1, first, stride, constants={**problem.constants, "SHARED_C": shared["SHARED_C"]},
                )  # fmt: skip
            if exchange_gradient is not None:
                pass_gradients(problem, local, chunk_states, None, d_rotated)
                grad_final = exchange_gradient(d_rotated[:, 0].reshape(d_initial.shape)).contiguous()
            pass_gradients(problem, local, chunk_states, grad_final, d_rotated)
        inputs = W, bias, B, C, chunk_states, *masks, grad_final, d_rotated
        first_tile = 0
        for first, stop in rounds:
            padded, origin, sequences = (stop - first) * steps, stop * steps - 1, buffers
            if prepares_all:
                sequences = buffers.skip(problem, (number - stop) * steps)
            elif not parallel or len(rounds) > 1:
                preprocess.run(first, stop, padded)
            outputs: tuple[Tensor | None, ...]
            division: tuple[int, ...]
            if isinstance(gemm, FusedProducts):
                kernel, outputs = chunk_scan_products_bwd_kernel, (sums, d_initial, sequences.u_parts, gemm.du, gemm.dW)
            else:
                kernel = chunk_scan_bwd_kernel if flags is None else chunk_scan_masked_bwd_kernel
                outputs = *gemm.d_theta, sums, d_initial
            programs, division = stop - first, (problem.chunk_tiles, number, problem.rows, origin, first)
            if flags is None:  # a program without parallel chunks scans all chunks of the round
                program_chunks = 1 if parallel else stop - first
                programs //= program_chunks
                division = problem.chunk_tiles * program_chunks, number, problem.rows, origin, first, program_chunks
            launch(
                kernel, (scan.programs, programs), *sequences[:6], *inputs, dx, d_dt, *outputs, problem.batch, problem.L, padded,
                *division, stride, int(not parallel), constants={**scan.constants, **shared},
            )  # fmt: skip
            du_angles = gemm.du if isinstance(gemm, FusedProducts) else gemm.run(sequences, stop - first)
            call = elementwise(problem.batch, padded, problem.D)
            launch(
                epilogue_bwd_kernel, (call.programs, call.columns), grad_y, u, dt, D, z, flags, raw, dx, d_dt, du_angles, du, ddt,
                dz, skips, problem.batch, problem.L, problem.D, problem.K, padded, origin, state_blocks, gemm.split_k, call.tiles,
                problem.rows, stride, first_tile, all_tiles, constants=call.constants,
            )  # fmt: skip
            first_tile += call.tiles
        state_programs = ceil_div(problem.size, SUMS["STATE_BLOCK"])
        shared_programs = ceil_div(problem.N, SUMS["SKIP_BLOCK"]) if any(shared.values()) else 0
        skip_programs = 0 if skips is None else ceil_div(problem.D, SUMS["SKIP_BLOCK"])
        programs = state_programs + 2 * shared_programs + skip_programs + ceil_div(problem.size * problem.D, SUMS["WEIGHT_BLOCK"])
        launch(
            sum_parameter_gradients_kernel, (programs, problem.groups), sums, d_bias, dB, dC, skips, dD, gemm.dW, dW,
            sums.shape[1] * problem.rows, all_tiles * problem.rows, gemm.weight_split_k, state_programs, shared_programs,
            skip_programs, problem.D, problem.N,
            constants={"SLOTS": scan.slots, "SLOTS_PER_CHANNEL": gemm.slots_per_channel, "K": problem.K, **shared, **SUMS},
        )  # fmt: skip
    return du, ddt, dW, d_bias, dB, dC, u.new_empty(0) if dD is None else dD, dz, d_initial


def divide_into_rounds(problem: Problem, blocks: int | None) -> Iterator[tuple[int, int]]:
    """Yield rounds [first, stop) of the chunks, from the last to the first. A traced graph depends on their number only.

    blocks: number of partial sums of the gradient of u that a round needs memory for; None if it needs memory for the gradients
    of the angles instead.
    """
    row, most, each = bytes_per_step(problem.batch, problem.D, problem.N), ROUND_BYTES, 1
    if blocks is not None:
        row, most = 4 * problem.batch * problem.K * blocks, PRODUCT_BYTES
    if problem.L * row <= most:
        each = problem.chunks.number
    elif problem.chunks.parallel or blocks is not None:
        each = max(1, most // (row * problem.chunks.steps))
    for i in range(ceil_div(problem.chunks.number, each)):
        stop = problem.chunks.number - i * each
        yield max(0, stop - each), stop


def pass_gradients(problem: Problem, local: Tensor, chunk_states: Tensor, d_final: Tensor | None, d_rotated: Tensor) -> None:
    """Store the gradients of the states between chunks from those of `chunk_state_bwd_kernel` and that of the final state.

    d_final: None for zero.
    """
    launch(
        state_passing_bwd_kernel, (problem.batch, ceil_div(problem.size, STATE_PASSING["BLOCK"])), local, chunk_states, d_final,
        d_rotated, problem.chunks.number, problem.size, chunk_states.stride(0), constants=STATE_PASSING,
    )  # fmt: skip


class BackwardPreprocess:
    """Fills the buffers that the backward scans read, round after round.

    Args:
        tensors: u, dt, z, dy and flags.
        parameters: W, bias and B.
        chunk_states: what `forward` stored.
        sequences: the buffers.
        gemm: the products, whose parts of W, if it has any, are stored with the first round.
        tile_states: buffer for the states before the tiles of a round, which masks need.
    """

    def __init__(
        self,
        problem: Problem,
        tensors: tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor | None],
        parameters: tuple[Tensor, Tensor, Tensor],
        chunk_states: Tensor,
        sequences: Sequences,
        gemm: Gemm | FusedProducts,
        tile_states: Tensor | None,
    ) -> None:
        self.problem, self.tensors, self.parameters, self.chunk_states = problem, tensors, parameters, chunk_states
        self.sequences, self.gemm, self.tile_states = sequences, gemm, tile_states
        self.weight_programs = problem.groups * ceil_div(problem.slots, WEIGHT_ROWS.value) if gemm.W_hi is not None else 0

    def run(self, first: int, stop: int, padded: int) -> None:
        """Fill the buffers for the chunks [first, stop), in rounds of `padded` steps."""
        problem, steps = self.problem, self.problem.chunks.steps
        rounds = (stop - first) * steps // padded
        u, dt, _, _, flags = self.tensors
        if flags is not None:
            preprocess_forward(problem, u, dt, flags, self.sequences, first * steps, padded)
            launch(
                tile_states_kernel, (problem.programs, stop - first), *self.sequences[:5], *self.parameters, self.chunk_states,
                flags, self.tile_states, problem.L, padded, problem.chunk_tiles, problem.rows, first * steps, first,
                self.chunk_states.stride(0),
                constants={**problem.constants, "SHARED_B": self.parameters[2].ndim == 2},
            )  # fmt: skip
        call = elementwise(problem.batch, padded, problem.K)
        W = None if self.gemm.W_hi is None else self.parameters[0]
        launch(
            preprocess_bwd_kernel, (rounds * call.programs + self.weight_programs, call.columns), *self.tensors, W,
            *self.sequences, self.gemm.W_hi, self.gemm.W_lo, problem.L, problem.D, problem.N, problem.K, padded, stop * steps - 1,
            call.tiles, call.programs, rounds * call.programs,
            constants={"SLOTS": problem.slots, "SLOTS_PER_CHANNEL": self.gemm.slots_per_channel, **call.constants},
        )  # fmt: skip
        self.weight_programs = 0
