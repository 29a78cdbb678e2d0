#include "gpt2/kernels/reference/reference.hpp"

namespace rankwise {

std::unique_ptr<Kernels> make_reference_kernels()
{
  return std::make_unique<ReferenceKernels>();
}

}  // namespace rankwise
