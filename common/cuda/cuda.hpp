#pragma once

#include <cuda_runtime.h>
#include <string_view>

#include "common/base/source_location.hpp"
#include "common/memory/device.hpp"

/// @file
/// Checked calls of CUDA: a failure names the line of the call.

namespace rankwise {

/// Throws Error with CUDA's own name and text unless @p code is cudaSuccess:
/// `check_cuda(cudaFree(memory), "giving memory back");`
void check_cuda(cudaError_t code, std::string_view doing, SourceLocation where = SourceLocation::current());

/// CUDA's handle of a GPU's stream.
/// @throws Error  for a stream of another kind of device.
cudaStream_t cuda_stream(Stream& stream);

}  // namespace rankwise
