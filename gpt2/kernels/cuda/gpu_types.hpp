#pragma once

#include "common/memory/tensor.hpp"

/// @file
/// The types that kernels of a GPU are compiled for.

namespace rankwise {

/// Calls @p f with a value of the C++ type that @p type stands for.
/// @return the result of @p f.
/// @throws Error  for types other than f32 and bf16.
template <class F>
decltype(auto) with_gpu_type(DType type, F&& f, SourceLocation where = SourceLocation::current())
{
  if (type == DType::bf16) return f(bf16{});
  check(type == DType::f32, "kernels of a GPU take tensors of f32 and bf16 only", where);
  return f(float{});
}

}  // namespace rankwise
