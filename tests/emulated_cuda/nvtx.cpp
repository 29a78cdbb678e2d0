#include <atomic>

#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include "tests/emulated_cuda/machine.hpp"

namespace {

thread_local int depth = 0;
std::atomic<nvtxRangeId_t> ranges = 0;

void note(const std::string& text)
{
  static const bool wanted = emulated_cuda::environment_number("EMULATED_CUDA_NVTX", 0) != 0;
  if (wanted) emulated_cuda::say("NVTX " + text);
}

}  // namespace

int nvtxRangePushA(const char* name)
{
  note(fmt::format("push {}", name));
  return depth++;
}

int nvtxRangePop()
{
  note("pop");
  return depth == 0 ? -2 : --depth;
}

nvtxRangeId_t nvtxRangeStartA(const char* name)
{
  const nvtxRangeId_t range = ++ranges;
  note(fmt::format("start {} {}", range, name));
  return range;
}

void nvtxRangeEnd(nvtxRangeId_t range)
{
  note(fmt::format("end {}", range));
}

void nvtxMarkA(const char* name)
{
  note(fmt::format("mark {}", name));
}
