#include "bindings.h"
#include "short_conv.h"

namespace longscan {

void bind_short_conv(nb::module_& module) {
  module.def(
      "short_conv_forward",
      [](int64_t batch, int64_t length, int64_t channels, int64_t taps, Pointer u, Pointer weight, Pointer bias,
         Pointer initial_state, Pointer flags, Pointer y, Pointer final_state, bool silu, bool is_double, int threads) {
        short_conv_forward({batch, length, channels, taps, in(u), in(weight), in(bias), in(initial_state),
                            static_cast<const uint8_t*>(in(flags)), out(y), out(final_state), silu, is_double, threads});
      },
      ReleaseGil(), "Addresses and sizes as in csrc/short_conv.h.");
  module.def(
      "short_conv_backward",
      [](int64_t batch, int64_t length, int64_t channels, int64_t taps, Pointer u, Pointer weight, Pointer bias,
         Pointer initial_state, Pointer flags, Pointer grad_y, Pointer grad_final, Pointer grad_u, Pointer grad_weight,
         Pointer grad_bias, Pointer grad_initial, bool silu, bool is_double, int threads) {
        const ShortConv forward = {batch, length, channels, taps, in(u), in(weight), in(bias), in(initial_state),
                                   static_cast<const uint8_t*>(in(flags)), nullptr, nullptr, silu, is_double, threads};
        short_conv_backward({forward, in(grad_y), in(grad_final), out(grad_u), out(grad_weight), out(grad_bias),
                             out(grad_initial)});
      },
      ReleaseGil(), "Addresses and sizes as in csrc/short_conv.h.");
}

}  // namespace longscan
