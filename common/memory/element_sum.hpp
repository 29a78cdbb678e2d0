#pragma once

#include <cstdint>
#include <span>

#include "common/memory/tensor.hpp"

/// @file
/// Element-wise sums of vectors in host memory.

namespace rankwise {

/// Throws Error unless elements of this type can be added: every type but u8.
void check_summable(DType type, SourceLocation where = SourceLocation::current());

/// Calls @p f with a value of the C++ type for @p type.
/// @return  the result of @p f. Error unless such elements can be added.
template <class F>
decltype(auto) with_summable_type(DType type, F&& f)
{
  check_summable(type);
  if (type == DType::i32) return f(std::int32_t{});
  if (type == DType::i64) return f(std::int64_t{});
  return with_real_type(type, f);
}

/// to += from. bf16 is added in f32 and rounded to nearest.
/// @param to, from  n elements of the type, not overlapping.
void add_elements(DType type, void* to, const void* from, std::int64_t n);

/// to = sum of all sources, in the order of tree_sum(): (0 + 1) + (2 + 3). bf16 is added in f32 and rounded once.
/// @param to       n elements of the type; may be one of the sources.
/// @param sources  1 to 1024 vectors of n elements; two of them are either identical or disjoint.
/// @cost  each source is read once, to is written once.
void sum_elements(DType type, void* to, std::span<const void* const> sources, std::int64_t n);

}  // namespace rankwise
