// AUSSM: h_t = e^{i theta_t} h_{t-1} + dt_t B silu(u_t),  y_t = (Re sum_n C h_t + D silu(u_t)) silu(z_t),
// theta_t[d, n] = sum_p W[d, n, p] u_t[p] + bias[d, n], times dt_t[d] with phase_dt.
//
// Symbols and shapes (row-major; complex tensors have a last axis of 2: real, imaginary):
//   batch, L steps, D channels, N states per channel
//   u, dt, z, y (batch, L, D); W (D, N, D); bias (D, N); B, C (D, N, 2); D (D); initial_state, final_state (batch, D, N, 2)
//   flags (batch, L); chunk_states (batch, ceil(L / chunk), D, N, 3): see unitary_scan.cpp
#pragma once

#include "dispatch.h"

namespace longscan {

struct UnitaryScan {
  int64_t batch, length, channels, states, chunk;
  const void *u, *dt, *W, *bias, *B, *C, *D, *z, *initial_state;  // D, z may be null
  const uint8_t* flags;                                          // may be null
  void *y, *final_state, *chunk_states;  // outputs of the forward (chunk_states may be null: no backward); inputs of the backward
  bool phase_dt, is_double;
  int threads;
};

struct UnitaryScanGradients {
  UnitaryScan forward;
  const void *y, *final_state;                                      // gradients of the outputs
  void *u, *dt, *W, *bias, *B, *C, *D, *z, *initial_state;          // gradients of the inputs; null where the input is
};

}  // namespace longscan

LONGSCAN_KERNEL(unitary_scan_forward, UnitaryScan)
LONGSCAN_KERNEL(unitary_scan_backward, UnitaryScanGradients)
