// The transform of the kernel of a system that is diagonal plus rank 1, and its gradients:
//
//   y = dt e^w (S_CB - t S_CP S_PB / (1 + t S_PP)),  t = dt cosh(w)
//   S_v = sum_n v_n / (a - t lambda_n) + conj(v_n) / (a - t conj(lambda_n)),  v = C B, C P, P* P, P* B
//
// Shapes (row-major, complex numbers as pairs): table (3, F, 2), the rows a = 2 sinh(w), cosh(w) and e^w; eigenvalues, P, B, C
// (D, N, 2); dt (D); spectrum y and its gradient g (D, F, 2).
#pragma once

#include "dispatch.h"

namespace longscan {

struct DplrSpectrum {
  int64_t channels, frequencies, states;
  const void *table, *eigenvalues, *P, *B, *C, *dt;
  void* spectrum;
  bool is_double;
  int threads;
};

struct DplrSpectrumGradients {
  DplrSpectrum forward;  // the spectrum is not read
  const void* g;
  void *eigenvalues, *P, *B, *C, *dt;
};

}  // namespace longscan

LONGSCAN_KERNEL(dplr_spectrum_forward, DplrSpectrum)
LONGSCAN_KERNEL(dplr_spectrum_backward, DplrSpectrumGradients)
