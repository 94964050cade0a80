// x_t = a_t x_{t-1} + b_t, elementwise over S numbers; real, or complex as interleaved pairs.
//
// Symbols and shapes (row-major; complex tensors have a last axis of 2): b, x (B, L, S); a (B, L, S), or (S) when constant;
// initial_state, final_state (B, S); flags (B, L), in the order of time. reverse: from the last step to the first, where RESET at t
// drops the state from step t + 1.
#pragma once

#include "dispatch.h"

namespace longscan {

struct LinearScan {
  int64_t batch, length, size;  // size: S, times 2 where complex
  const void *a, *b, *initial_state;
  const uint8_t* flags;  // may be null
  void *x, *final_state;
  bool constant, reverse, is_complex, is_double;
  int threads;
};

struct LinearScanGradients {
  LinearScan forward;            // b and final_state are not read
  const void *gx, *final_state;  // gradients of the outputs; final_state may be null
  void *a, *b, *initial_state;   // gradients of the inputs
};

}  // namespace longscan

LONGSCAN_KERNEL(linear_scan_forward, LinearScan)
LONGSCAN_KERNEL(linear_scan_backward, LinearScanGradients)
