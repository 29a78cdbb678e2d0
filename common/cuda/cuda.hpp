#pragma once

#include <cuda_runtime.h>
#include <string_view>

#include "common/base/source_location.hpp"
#include "common/memory/device.hpp"

/// @file
/// How CUDA is called: every call is checked, and says which line made it.

namespace rankwise {

/// Throws Error with CUDA's own name and text unless @p code is cudaSuccess:
/// `check_cuda(cudaFree(memory), "giving memory back");`
void check_cuda(cudaError_t code, std::string_view doing, SourceLocation where = SourceLocation::current());

/// The stream of a GPU as CUDA knows it.
/// @throws Error  for a stream of another device.
cudaStream_t cuda_stream(Stream& stream);

}  // namespace rankwise
