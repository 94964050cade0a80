// One token through a Mamba block: RMSNorm, in_proj, convolution, SiLU, x_proj, dt_proj, scan step, gate, out_proj, residual.
//
// Symbols and shapes (row-major): B rows, M width of the block, E inner width, K taps, R rank of dt, N states per channel
//   x, y (B, M); in_proj (2 E, M); conv_weight (E, K); conv_bias, dt_bias, D (E); x_proj (R + 2 N, E); dt_proj (E, R); A_log (E, N);
//   out_proj (M, E); norm_weight (M); elapsed (B); active (B), one byte a row; conv_state (B, E, K-1); ssm_state (B, E, N)
#pragma once

#include "dispatch.h"

namespace longscan {

struct MambaStep {
  int64_t batch, width, inner, taps, rank, states;
  const void *x, *conv_state, *ssm_state;
  const void *in_proj, *conv_weight, *conv_bias, *x_proj, *dt_proj, *dt_bias, *A_log, *D, *out_proj;  // conv_bias, D may be null
  const void *norm_weight;  // null: neither RMSNorm nor residual
  const void *elapsed;      // may be null
  const uint8_t* active;    // may be null
  void *y, *conv_after, *ssm_after;
  double norm_eps;
  bool selects_raw;  // q, B and C are selected from the convolution's output before SiLU
  bool is_double;
  int threads;
};

}  // namespace longscan

LONGSCAN_KERNEL(mamba_step, MambaStep)
