#include "tests/emulated_cuda/async_copies.hpp"

#include <algorithm>
#include <cstring>
#include <cuda_pipeline_primitives.h>

#include "tests/emulated_cuda/machine.hpp"

using namespace emulated_cuda;

namespace {

void make(const AsyncCopy& copy)
{
  std::memcpy(copy.to, copy.from, copy.bytes);
  std::memset(static_cast<std::byte*>(copy.to) + copy.bytes, 0, copy.zeros);
}

}  // namespace

void __pipeline_memcpy_async(void* to, const void* from, std::size_t bytes, std::size_t zeros)
{
  AsyncCopies& copies = copies_of_thread();
  const AsyncCopy copy{to, from, bytes - zeros, zeros, copies.groups};
  if (machine().random.below(2) == 0) {
    make(copy);
  } else {
    copies.pending.push_back(copy);
  }
}

void __pipeline_commit()
{
  ++copies_of_thread().groups;
}

void __pipeline_wait_prior(std::size_t groups)
{
  AsyncCopies& copies = copies_of_thread();
  const auto last = std::find_if(copies.pending.begin(), copies.pending.end(),
                                 [&](const AsyncCopy& copy) { return copy.groups + groups >= copies.groups; });
  std::for_each(copies.pending.begin(), last, make);
  copies.pending.erase(copies.pending.begin(), last);
}
