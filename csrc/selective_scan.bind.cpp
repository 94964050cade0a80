#include "bindings.h"
#include "selective_scan.h"

namespace longscan {

void bind_selective_scan(nb::module_& module) {
  module.attr("SELECTIVE_SCAN_CHUNK") = selective_scan_chunk(isa());
  module.def(
      "selective_scan_forward",
      [](int64_t batch, int64_t length, int64_t channels, int64_t states, Pointer u, Pointer dt, Pointer A, Pointer B, Pointer C,
         Pointer D, Pointer z, Pointer dt_bias, Pointer initial_state, Pointer dt_scale, Pointer flags, Pointer y,
         Pointer final_state, Pointer chunk_states, bool dt_softplus, bool paired, bool is_complex, bool is_double, int threads) {
        selective_scan_forward({batch, length, channels, states, in(u), in(dt), in(A), in(B), in(C), in(D), in(z), in(dt_bias),
                                in(initial_state), in(dt_scale), static_cast<const uint8_t*>(in(flags)), out(y),
                                out(final_state), out(chunk_states), dt_softplus, paired, is_complex, is_double, threads});
      },
      ReleaseGil(), "Addresses and sizes as in csrc/selective_scan.h.");
  module.def(
      "selective_scan_backward",
      [](int64_t batch, int64_t length, int64_t channels, int64_t states, Pointer u, Pointer dt, Pointer A, Pointer B, Pointer C,
         Pointer D, Pointer z, Pointer dt_bias, Pointer initial_state, Pointer dt_scale, Pointer flags, Pointer chunk_states,
         Pointer grad_y, Pointer grad_final, Pointer grad_u, Pointer grad_dt, Pointer grad_A, Pointer grad_B, Pointer grad_C,
         Pointer grad_D, Pointer grad_z, Pointer grad_dt_bias, Pointer grad_initial, Pointer grad_dt_scale, bool dt_softplus,
         bool paired, bool is_complex, bool is_double, int threads) {
        const SelectiveScan forward = {batch, length, channels, states, in(u), in(dt), in(A), in(B), in(C), in(D), in(z),
                                       in(dt_bias), in(initial_state), in(dt_scale), static_cast<const uint8_t*>(in(flags)),
                                       nullptr, nullptr, out(chunk_states), dt_softplus, paired, is_complex, is_double, threads};
        selective_scan_backward({forward, in(grad_y), in(grad_final), out(grad_u), out(grad_dt), out(grad_A), out(grad_B),
                                 out(grad_C), out(grad_D), out(grad_z), out(grad_dt_bias), out(grad_initial),
                                 out(grad_dt_scale)});
      },
      ReleaseGil(), "Addresses and sizes as in csrc/selective_scan.h.");
}

}  // namespace longscan
