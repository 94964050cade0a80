// The instruction sets the kernels are compiled for, and the choice among them when the module is loaded.
//
// An op <name> consists of
//   <name>.h         its argument structs and LONGSCAN_KERNEL(function, Arguments) for each kernel
//   <name>.cpp       the kernels in namespace longscan::LONGSCAN_ISA, compiled once per instruction set
//   <name>.bind.cpp  its Python functions, compiled once; calls longscan::function(arguments), which dispatches
// Argument structs hold plain pointers (null where an optional tensor is absent), sizes, `bool is_double` and `int threads`.
#pragma once

#include <cstdint>

namespace longscan {

enum class Isa { baseline, avx2, avx512 };

// The best instruction set of this processor, or the one named by the environment variable LONGSCAN_CPU_ISA.
Isa isa();

}  // namespace longscan

#if defined(LONGSCAN_X86)
#define LONGSCAN_KERNEL(function, Arguments)              \
  namespace longscan::baseline {                          \
  void function(const Arguments& arguments);              \
  }                                                       \
  namespace longscan::avx2 {                              \
  void function(const Arguments& arguments);              \
  }                                                       \
  namespace longscan::avx512 {                            \
  void function(const Arguments& arguments);              \
  }                                                       \
  namespace longscan {                                    \
  inline void function(const Arguments& arguments) {      \
    switch (isa()) {                                      \
      case Isa::avx512: return avx512::function(arguments); \
      case Isa::avx2: return avx2::function(arguments);   \
      default: return baseline::function(arguments);      \
    }                                                     \
  }                                                       \
  }
#else
#define LONGSCAN_KERNEL(function, Arguments)              \
  namespace longscan::baseline {                          \
  void function(const Arguments& arguments);              \
  }                                                       \
  namespace longscan {                                    \
  inline void function(const Arguments& arguments) { baseline::function(arguments); } \
  }
#endif
