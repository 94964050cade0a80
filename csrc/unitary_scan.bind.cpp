#include "bindings.h"
#include "unitary_scan.h"

namespace longscan {

void bind_unitary_scan(nb::module_& module) {
  module.def(
      "unitary_scan_forward",
      [](int64_t batch, int64_t length, int64_t channels, int64_t states, int64_t chunk, Pointer u, Pointer dt, Pointer W,
         Pointer bias, Pointer B, Pointer C, Pointer D, Pointer z, Pointer initial_state, Pointer flags, Pointer y,
         Pointer final_state, Pointer chunk_states, bool phase_dt, bool is_double, int threads) {
        unitary_scan_forward({batch, length, channels, states, chunk, in(u), in(dt), in(W), in(bias), in(B), in(C), in(D), in(z),
                              in(initial_state), static_cast<const uint8_t*>(in(flags)), out(y), out(final_state),
                              out(chunk_states), phase_dt, is_double, threads});
      },
      ReleaseGil(), "Addresses and sizes as in csrc/unitary_scan.h.");
  module.def(
      "unitary_scan_backward",
      [](int64_t batch, int64_t length, int64_t channels, int64_t states, int64_t chunk, Pointer grad_y, Pointer grad_final,
         Pointer u, Pointer dt, Pointer W, Pointer bias, Pointer B, Pointer C, Pointer D, Pointer z, Pointer initial_state,
         Pointer flags, Pointer chunk_states, Pointer grad_u, Pointer grad_dt, Pointer grad_W, Pointer grad_bias, Pointer grad_B,
         Pointer grad_C, Pointer grad_D, Pointer grad_z, Pointer grad_initial, bool phase_dt, bool is_double, int threads) {
        UnitaryScan forward = {batch, length, channels, states, chunk, in(u), in(dt), in(W), in(bias), in(B), in(C), in(D), in(z),
                               in(initial_state), static_cast<const uint8_t*>(in(flags)), nullptr, nullptr, out(chunk_states),
                               phase_dt, is_double, threads};
        unitary_scan_backward({forward, in(grad_y), in(grad_final), out(grad_u), out(grad_dt), out(grad_W), out(grad_bias),
                               out(grad_B), out(grad_C), out(grad_D), out(grad_z), out(grad_initial)});
      },
      ReleaseGil(), "Addresses and sizes as in csrc/unitary_scan.h.");
}

}  // namespace longscan
