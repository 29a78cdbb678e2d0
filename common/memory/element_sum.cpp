#include "common/memory/element_sum.hpp"

#include <algorithm>
#include <array>
#include <type_traits>

#include <fmt/format.h>

#include "common/base/tree_sum.hpp"

namespace rankwise {

namespace {

/// The type in which elements are added.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, bf16>, float, T>;

/// Sum of N sources, with N known at compile time: each is read once.
template <class T, int N>
void sum_of(T* to, const T* const* from, std::int64_t n)
{
  std::array<const T*, N> source;
  std::copy(from, from + N, source.begin());
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    if constexpr (N == 2)
      to[i] = static_cast<T>(static_cast<Sum<T>>(source[0][i]) + static_cast<Sum<T>>(source[1][i]));
    else if constexpr (N == 4)
      to[i] = static_cast<T>((static_cast<Sum<T>>(source[0][i]) + static_cast<Sum<T>>(source[1][i])) +
                             (static_cast<Sum<T>>(source[2][i]) + static_cast<Sum<T>>(source[3][i])));
  }
}

/// Sum of any number of sources, 64 elements at a time.
template <class T>
void sum_of_many(T* to, std::span<const void* const> sources, std::int64_t n)
{
  constexpr int width = 64;
  using Block = Lanes<Sum<T>, width>;
  for (std::int64_t first = 0; first < n; first += width) {
    const int count = static_cast<int>(std::min<std::int64_t>(width, n - first));
    const Block sum = tree_sum(0, static_cast<std::int64_t>(sources.size()), [&](std::int64_t s) {
      Block block;
      const T* from = static_cast<const T*>(sources[static_cast<std::size_t>(s)]) + first;
      for (int i = 0; i < count; ++i) block.at[i] = static_cast<Sum<T>>(from[i]);
      return block;
    });
    for (int i = 0; i < count; ++i) to[first + i] = static_cast<T>(sum.at[i]);
  }
}

}  // namespace

void check_summable(DType type, SourceLocation where)
{
  if (type == DType::u8) throw Error("bytes (u8) cannot be added; they can only be sent", where);
}

void add_elements(DType type, void* to, const void* from, std::int64_t n)
{
  with_summable_type(type, [&](auto element) {
    using T = decltype(element);
    const std::array<const T*, 2> both{static_cast<const T*>(to), static_cast<const T*>(from)};
    sum_of<T, 2>(static_cast<T*>(to), both.data(), n);
  });
}

void sum_elements(DType type, void* to, std::span<const void* const> sources, std::int64_t n)
{
  with_summable_type(type, [&](auto element) {
    using T = decltype(element);
    T* sum = static_cast<T*>(to);
    const auto source = [&](std::size_t s) { return static_cast<const T*>(sources[s]); };
    if (sources.size() == 2) {
      const std::array<const T*, 2> two{source(0), source(1)};
      sum_of<T, 2>(sum, two.data(), n);
    } else if (sources.size() == 4) {
      const std::array<const T*, 4> four{source(0), source(1), source(2), source(3)};
      sum_of<T, 4>(sum, four.data(), n);
    } else {
      sum_of_many(sum, sources, n);
    }
  });
}

}  // namespace rankwise
