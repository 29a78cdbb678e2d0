#include "gpt2/kernels/reference/reference.hpp"

namespace rankwise {

Kernels make_reference_kernels()
{
  return std::make_unique<ReferenceKernels>();
}

}  // namespace rankwise
