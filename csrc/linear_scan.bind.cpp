#include "bindings.h"
#include "linear_scan.h"

namespace longscan {

void bind_linear_scan(nb::module_& module) {
  module.def(
      "linear_scan_forward",
      [](int64_t batch, int64_t length, int64_t size, Pointer a, Pointer b, Pointer initial_state, Pointer flags, Pointer x,
         Pointer final_state, bool constant, bool reverse, bool is_complex, bool is_double, int threads) {
        linear_scan_forward({batch, length, size, in(a), in(b), in(initial_state), static_cast<const uint8_t*>(in(flags)), out(x),
                             out(final_state), constant, reverse, is_complex, is_double, threads});
      },
      ReleaseGil(), "Addresses and sizes as in csrc/linear_scan.h.");
  module.def(
      "linear_scan_backward",
      [](int64_t batch, int64_t length, int64_t size, Pointer a, Pointer initial_state, Pointer flags, Pointer x, Pointer grad_x,
         Pointer grad_final, Pointer grad_a, Pointer grad_b, Pointer grad_initial, bool constant, bool reverse, bool is_complex,
         bool is_double, int threads) {
        const LinearScan forward = {batch, length, size, in(a), nullptr, in(initial_state), static_cast<const uint8_t*>(in(flags)),
                                    out(x), nullptr, constant, reverse, is_complex, is_double, threads};
        linear_scan_backward({forward, in(grad_x), in(grad_final), out(grad_a), out(grad_b), out(grad_initial)});
      },
      ReleaseGil(), "Addresses and sizes as in csrc/linear_scan.h.");
}

}  // namespace longscan
