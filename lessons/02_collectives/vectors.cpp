#include "lessons/02_collectives/vectors.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <vector>

#include "common/base/digest.hpp"
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

template <class T>
double number(T element)
{
  if constexpr (std::is_same_v<T, bf16>)
    return static_cast<float>(element);
  else
    return static_cast<double>(element);
}

}  // namespace

void fill(const Tensor& to, int rank, std::int64_t first)
{
  constexpr std::array<std::uint32_t, 2> key{2, 2019};
  with_type(to.type(), [&](auto example) {
    using T = decltype(example);
    T* element = to.data<T>();
    for (std::int64_t i = 0; i < to.elements(); i += 4) {  // each philox() call gives four words
      const auto block = static_cast<std::uint64_t>(first + i) / 4;
      const PhiloxWords words = philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                                        static_cast<std::uint32_t>(rank), 0},
                                       key);
      const std::int64_t n = std::min<std::int64_t>(4, to.elements() - i);
      for (std::int64_t w = 0; w < n; ++w) element[i + w] = element_of<T>(words[static_cast<std::size_t>(w)]);
    }
  });
}

void sum_of_ranks(const Tensor& to, int ranks, OrderOfSums order)
{
  const DType type = to.type();
  const std::int64_t block_bytes = block_elements * bytes_of(type);
  std::vector<std::vector<std::byte>> blocks(static_cast<std::size_t>(ranks));
  std::vector<const void*> sources;
  for (auto& block : blocks) {
    block.resize(static_cast<std::size_t>(block_bytes));
    sources.push_back(block.data());
  }
  for (std::int64_t first = 0; first < to.elements(); first += block_elements) {
    const std::int64_t n = std::min(block_elements, to.elements() - first);
    for (int r = 0; r < ranks; ++r) fill(Tensor(blocks[static_cast<std::size_t>(r)].data(), type, {n}), r, first);
    void* sum = to.slice({first, n}).raw();
    if (order == OrderOfSums::tree) {
      sum_elements(type, sum, sources, n);
      continue;
    }
    std::copy_n(blocks[0].data(), n * bytes_of(type), static_cast<std::byte*>(sum));
    for (int r = 1; r < ranks; ++r) add_elements(type, sum, sources[static_cast<std::size_t>(r)], n);
  }
}

double Difference::relative() const
{
  return squared == 0 ? 0 : std::sqrt(squared / norm_squared);
}

Difference difference(const Tensor& a, const Tensor& b)
{
  check(a.elements() == b.elements(), "two vectors of different length were compared");
  Difference sum;
  with_type(b.type(), [&](auto example) {
    using T = decltype(example);
    const T *left = a.data<T>(), *right = b.data<T>();
    for (std::int64_t i = 0; i < b.elements(); ++i) {
      const double x = number(left[i]), y = number(right[i]);
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

std::string digest_of(const Tensor& values)
{
  Sha256 digest;
  digest.update({values.raw(), static_cast<std::size_t>(values.bytes())});
  return digest.hex();
}

}  // namespace rankwise
