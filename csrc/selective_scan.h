// S6: h_t = exp(dt_t A) h_{t-1} + dt_t u_t B_t,  y_t = (k Re sum_n C_t h_t + D u_t) silu(z_t), k = 2 for conjugate pairs, else 1.
//
// Symbols and shapes (row-major; complex tensors have a last axis of 2: real, imaginary):
//   B batch, L steps, D channels, N states per channel
//   u, dt, z, y (B, L, D); A (D, N); B, C (B, L, N); D, dt_bias (D); initial_state, final_state (B, D, N); dt_scale, flags (B, L)
//   chunk_states (B, ceil(L / CHUNK), N, D), complex (.., N, 2, D): the state before each chunk's first step
#pragma once

#include "dispatch.h"

namespace longscan {

// CHUNK, the steps between saved states. With 64-byte vectors four times as many states are saved: what the backward pass stores for
// 64 steps of such vectors would leave the first-level cache.
constexpr int selective_scan_chunk(Isa isa) { return isa == Isa::avx512 ? 16 : 64; }

struct SelectiveScan {
  int64_t batch, length, channels, states;
  const void *u, *dt, *A, *B, *C, *D, *z, *dt_bias, *initial_state, *dt_scale;  // D to dt_scale may be null
  const uint8_t* flags;                                                       // may be null
  void *y, *final_state, *chunk_states;  // outputs of the forward (chunk_states may be null: no backward); inputs of the backward
  bool dt_softplus, paired, is_complex, is_double;
  int threads;
};

struct SelectiveScanGradients {
  SelectiveScan forward;
  const void *gy, *final_state;  // gradients of the outputs; final_state may be null
  void *u, *dt, *A, *B, *C, *D, *z, *dt_bias, *initial_state, *dt_scale;  // gradients of the inputs; null where the input is
};

}  // namespace longscan

LONGSCAN_KERNEL(selective_scan_forward, SelectiveScan)
LONGSCAN_KERNEL(selective_scan_backward, SelectiveScanGradients)
