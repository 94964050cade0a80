#include "bindings.h"
#include "dplr_spectrum.h"

namespace longscan {

void bind_dplr_spectrum(nb::module_& module) {
  module.def(
      "dplr_spectrum_forward",
      [](int64_t channels, int64_t frequencies, int64_t states, Pointer table, Pointer eigenvalues, Pointer P, Pointer B,
         Pointer C, Pointer dt, Pointer spectrum, bool is_double, int threads) {
        dplr_spectrum_forward({channels, frequencies, states, in(table), in(eigenvalues), in(P), in(B), in(C), in(dt),
                               out(spectrum), is_double, threads});
      },
      ReleaseGil(), "Addresses and sizes as in csrc/dplr_spectrum.h.");
  module.def(
      "dplr_spectrum_backward",
      [](int64_t channels, int64_t frequencies, int64_t states, Pointer grad, Pointer table, Pointer eigenvalues, Pointer P,
         Pointer B, Pointer C, Pointer dt, Pointer grad_eigenvalues, Pointer grad_P, Pointer grad_B, Pointer grad_C,
         Pointer grad_dt, bool is_double, int threads) {
        const DplrSpectrum forward = {channels, frequencies, states, in(table), in(eigenvalues), in(P), in(B), in(C), in(dt),
                                      nullptr, is_double, threads};
        dplr_spectrum_backward({forward, in(grad), out(grad_eigenvalues), out(grad_P), out(grad_B), out(grad_C), out(grad_dt)});
      },
      ReleaseGil(), "Addresses and sizes as in csrc/dplr_spectrum.h.");
}

}  // namespace longscan
