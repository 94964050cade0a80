#include "bindings.h"
#include "mamba_step.h"

namespace longscan {

void bind_mamba_step(nb::module_& module) {
  module.def(
      "mamba_step_forward",
      [](int64_t batch, int64_t width, int64_t inner, int64_t taps, int64_t rank, int64_t states, Pointer x, Pointer conv_state,
         Pointer ssm_state, Pointer in_proj, Pointer conv_weight, Pointer conv_bias, Pointer x_proj, Pointer dt_proj,
         Pointer dt_bias, Pointer A_log, Pointer D, Pointer out_proj, Pointer norm_weight, Pointer elapsed, Pointer active,
         Pointer y, Pointer conv_after, Pointer ssm_after, double norm_eps, bool selects_raw, bool is_double, int threads) {
        mamba_step({batch, width, inner, taps, rank, states, in(x), in(conv_state), in(ssm_state), in(in_proj), in(conv_weight),
                    in(conv_bias), in(x_proj), in(dt_proj), in(dt_bias), in(A_log), in(D), in(out_proj), in(norm_weight),
                    in(elapsed), static_cast<const uint8_t*>(in(active)), out(y), out(conv_after), out(ssm_after), norm_eps,
                    selects_raw, is_double, threads});
      },
      ReleaseGil(), "Addresses and sizes as in csrc/mamba_step.h.");
}

}  // namespace longscan
