// Helpers of the Python bindings. Tensors arrive as addresses (Tensor.data_ptr()), 0 for None: no torch headers, so one build
// serves every torch version. The Python side guarantees contiguity, dtype and size.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>

namespace longscan {

namespace nb = nanobind;
using namespace nb::literals;

using Pointer = uintptr_t;
inline const void* in(Pointer p) { return reinterpret_cast<const void*>(p); }
inline void* out(Pointer p) { return reinterpret_cast<void*>(p); }

using ReleaseGil = nb::call_guard<nb::gil_scoped_release>;

void bind_dplr_spectrum(nb::module_& module);
void bind_mamba_step(nb::module_& module);
void bind_linear_scan(nb::module_& module);
void bind_selective_scan(nb::module_& module);
void bind_short_conv(nb::module_& module);
void bind_unitary_scan(nb::module_& module);

}  // namespace longscan
