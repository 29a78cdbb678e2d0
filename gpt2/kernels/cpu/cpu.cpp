#include "gpt2/kernels/cpu/cpu.hpp"

#include <omp.h>

namespace rankwise {

void ThreadScratch::reserve(std::int64_t floats)
{
  constexpr std::int64_t line = 16;  // floats of a cache line, so that no two threads share a line
  floats_ = (floats + line - 1) / line * line;
  const auto needed = static_cast<std::size_t>(floats_ * omp_get_max_threads() + line);
  if (memory_.size() < needed) memory_.resize(needed);
}

float* ThreadScratch::of(int thread) const
{
  constexpr std::uintptr_t line_bytes = 64;
  const auto first = (reinterpret_cast<std::uintptr_t>(memory_.data()) + line_bytes - 1) / line_bytes * line_bytes;
  return reinterpret_cast<float*>(first) + floats_ * thread;
}

Kernels make_cpu_kernels()
{
  return std::make_unique<CpuKernels>();
}

}  // namespace rankwise
