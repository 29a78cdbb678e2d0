#include "lessons/02_collectives/vectors.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <vector>

#include "common/base/philox.hpp"
#include "common/memory/element_sum.hpp"

namespace rankwise {

namespace {

constexpr std::int64_t block_elements = 4096;  // of sum_of_ranks()

/// Calls @p f with a value of the C++ type.
template <class F>
void with_type(DType type, F&& f)
{
  if (type == DType::i32)
    f(std::int32_t{});
  else if (type == DType::i64)
    f(std::int64_t{});
  else if (type == DType::u8)
    f(std::uint8_t{});
  else
    with_real_type(type, f);
}

/// An element made of a random word.
template <class T>
T element_of(std::uint32_t word)
{
  if constexpr (std::is_same_v<T, std::uint8_t>)
    return static_cast<T>(word & 0xFF);
  else if constexpr (std::is_integral_v<T>)
    return static_cast<T>(word % 2001) - 1000;
  else
    return T(static_cast<float>(2 * uniform(word) - 1));
}

}  // namespace

void fill(const Tensor& to, int rank, std::int64_t first)
{
  constexpr std::array<std::uint32_t, 2> key{2, 2019};
  with_type(to.type(), [&]<class T>(T) {
    T* const element = to.data<T>();
    PhiloxWords words{};
    for (std::int64_t i = 0; i < to.elements(); ++i) {
      const auto at = static_cast<std::uint64_t>(first + i), call = at / 4;  // each philox() call gives four words
      if (i == 0 || at % 4 == 0)
        words = philox({static_cast<std::uint32_t>(call), static_cast<std::uint32_t>(call >> 32),
                        static_cast<std::uint32_t>(rank), 0},
                       key);
      element[i] = element_of<T>(words[at % 4]);
    }
  });
}

void sum_of_ranks(const Tensor& by_rank, const Tensor& by_tree, int ranks)
{
  const DType type = by_rank.type();
  const std::int64_t block_bytes = block_elements * bytes_of(type);
  std::vector<std::byte> blocks(static_cast<std::size_t>(ranks * block_bytes));
  std::vector<const void*> sources;
  for (int r = 0; r < ranks; ++r) sources.push_back(blocks.data() + r * block_bytes);
  for (std::int64_t first = 0; first < by_rank.elements(); first += block_elements) {
    const std::int64_t n = std::min(block_elements, by_rank.elements() - first);
    std::byte* const sum = by_rank.slice({first, n}).raw();
    for (int r = 0; r < ranks; ++r) fill(Tensor(blocks.data() + r * block_bytes, type, {n}), r, first);
    std::copy_n(blocks.data(), n * bytes_of(type), sum);
    for (int r = 1; r < ranks; ++r) add_elements(type, sum, sources[static_cast<std::size_t>(r)], n);
    sum_elements(type, by_tree.slice({first, n}).raw(), sources, n);
  }
}

std::vector<std::int64_t> uneven_blocks(std::int64_t n, int ranks, int rank)
{
  std::vector<std::int64_t> counts;
  for (int other = 0; other < ranks; ++other) {
    const std::int64_t N = ranks, k = (rank + other) % N;
    counts.push_back(n * (k + 1) * (k + 2) / (N * (N + 1)) - n * k * (k + 1) / (N * (N + 1)));
  }
  return counts;
}

Difference difference(const Tensor& a, const Tensor& b)
{
  check(a.elements() == b.elements(), "two vectors of different length were compared");
  Difference sum;
  with_type(b.type(), [&]<class T>(T) {
    using Number = std::conditional_t<std::is_same_v<T, bf16>, float, T>;
    const T *left = a.data<T>(), *right = b.data<T>();
    for (std::int64_t i = 0; i < b.elements(); ++i) {
      const auto x = static_cast<double>(static_cast<Number>(left[i]));
      const auto y = static_cast<double>(static_cast<Number>(right[i]));
      sum.elements += x == y ? 0 : 1;  // NaN differs from everything
      sum.squared += (x - y) * (x - y);
      sum.norm_squared += y * y;
      sum.largest = std::max(sum.largest, std::isnan(x - y) ? HUGE_VAL : std::abs(x - y));
    }
  });
  return sum;
}

double rounding_bound(DType type, int ranks)
{
  if (type == DType::i32 || type == DType::i64 || type == DType::u8) return 0;
  const double rounding = type == DType::f32 ? 0x1p-24 : type == DType::bf16 ? 0x1p-8 : 0x1p-53;
  return 2.0 * ranks * (ranks - 1) * rounding;
}

}  // namespace rankwise
