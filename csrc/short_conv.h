// y_t = activation(bias + sum_k weight_k u_{t-(K-1)+k}): the causal depthwise convolution over the valid steps of a segment.
//
// Symbols and shapes (row-major): u, y (B, L, D); weight (D, K); bias (D); initial_state, final_state (B, D, K-1), the inputs
// before the first step and the last ones, oldest first; flags (B, L). K: taps.
#pragma once

#include "dispatch.h"

namespace longscan {

struct ShortConv {
  int64_t batch, length, channels, taps;
  const void *u, *weight, *bias, *initial_state;  // bias may be null
  const uint8_t* flags;                           // may be null
  void *y, *final_state;
  bool silu, is_double;
  int threads;
};

struct ShortConvGradients {
  ShortConv forward;                        // y and final_state are not read
  const void *gy, *final_state;             // gradients of the outputs; final_state may be null
  void *u, *weight, *bias, *initial_state;  // gradients of the inputs; bias null where the input is
};

}  // namespace longscan

LONGSCAN_KERNEL(short_conv_forward, ShortConv)
LONGSCAN_KERNEL(short_conv_backward, ShortConvGradients)
