#include "gpt2/kernels/exact/exact.hpp"

namespace rankwise {

Kernels make_exact_kernels()
{
  return std::make_unique<ExactKernels>();
}

}  // namespace rankwise
