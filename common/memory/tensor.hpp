#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/base/error.hpp"
#include "common/base/partition.hpp"
#include "common/base/source_location.hpp"

/// @file
/// Typed, non-owning views of memory.

namespace rankwise {

/// A 16-bit float with the exponent of f32 and 8 bits of precision: storage only, arithmetic is done in f32.
struct bf16 {
  std::uint16_t bits = 0;  ///< the upper half of the f32

  bf16() = default;  ///< zero
  /// Rounds to nearest, ties to even; NaN stays NaN.
  constexpr explicit bf16(float value)
  {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const bool nan = (word & 0x7FFFFFFFu) > 0x7F800000u;
    bits = static_cast<std::uint16_t>(nan ? (word >> 16) | 0x40u : (word + 0x7FFFu + ((word >> 16) & 1u)) >> 16);
  }
  /// Exact.
  constexpr explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

/// Element type of a tensor.
enum class DType : std::uint8_t { f32, bf16, f64, i32, i64, u8 };
constexpr std::size_t dtype_count = 6;  ///< of DType, whose tables have an entry for each

/// Bytes of one element.
constexpr std::int64_t bytes_of(DType type)
{
  constexpr std::array<std::int64_t, dtype_count> bytes{4, 2, 8, 4, 8, 1};
  return bytes[static_cast<std::size_t>(type)];
}

/// "f32", "bf16", "f64", "i32", "i64" or "u8".
std::string_view name_of(DType type);

/// The DType of a C++ type, which is std::uint8_t for u8. Other types do not compile.
template <class T>
consteval DType dtype_of()
{
  if constexpr (std::is_same_v<T, float>) return DType::f32;
  if constexpr (std::is_same_v<T, bf16>) return DType::bf16;
  if constexpr (std::is_same_v<T, double>) return DType::f64;
  if constexpr (std::is_same_v<T, std::int32_t>) return DType::i32;
  if constexpr (std::is_same_v<T, std::int64_t>) return DType::i64;
  if constexpr (std::is_same_v<T, std::uint8_t>) return DType::u8;
}

/// Type in which values of type T are summed and their gradients stored: f64 for f64, else f32.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// DType of the gradients and statistics of tensors of type @p type.
constexpr DType accumulator_of(DType type)
{
  return type == DType::f64 ? DType::f64 : DType::f32;
}

/// Shape of a tensor: up to four extents, outermost first.
class Shape {
 public:
  Shape() = default;  ///< no dimensions, one element
  /// @param extents  at most four, each >= 0.
  Shape(std::initializer_list<std::int64_t> extents);

  /// Number of dimensions.
  int rank() const { return rank_; }
  /// Extent @p i, 0 <= i < rank().
  std::int64_t operator[](int i) const { return extents_[static_cast<std::size_t>(i)]; }
  /// Product of the extents; 1 without dimensions.
  std::int64_t elements() const;
  /// The extents as text: "(2, 3, 4)".
  std::string text() const;
  /// Same rank and extents.
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, 4> extents_{};
  int rank_ = 0;
};

/// A view of contiguous elements in row-major order, as cheap to copy as a span. It owns nothing, and its type does
/// not say whether the elements may be written: instead, outputs come first in every argument list.
class Tensor {
 public:
  /// No elements, no memory.
  Tensor() = default;
  /// @param data   first element, in the memory of some device.
  /// @param type   element type.
  /// @param shape  the extents.
  Tensor(void* data, DType type, const Shape& shape)
      : data_(static_cast<std::byte*>(data)), type_(type), shape_(shape)
  {
  }
  /// A view of elements of a C++ type.
  template <class T>
  Tensor(std::span<T> elements, const Shape& shape) : Tensor(elements.data(), dtype_of<T>(), shape)
  {
    check(static_cast<std::int64_t>(elements.size()) == shape.elements(),
          "a tensor's shape does not fit its elements");
  }

  /// True if it views no memory.
  bool empty() const { return data_ == nullptr; }
  /// Element type.
  DType type() const { return type_; }
  /// The extents.
  const Shape& shape() const { return shape_; }
  /// Extent @p i.
  std::int64_t extent(int i) const { return shape_[i]; }
  /// Number of elements.
  std::int64_t elements() const { return empty() ? 0 : shape_.elements(); }
  /// Number of bytes.
  std::int64_t bytes() const { return elements() * bytes_of(type_); }
  /// The first byte.
  std::byte* raw() const { return data_; }

  /// The first element; Error when the elements are not of type T.
  template <class T>
  T* data(SourceLocation where = SourceLocation::current()) const
  {
    check_type(dtype_of<T>(), where);
    return reinterpret_cast<T*>(data_);
  }
  /// All elements; Error when they are not of type T.
  template <class T>
  std::span<T> span(SourceLocation where = SourceLocation::current()) const
  {
    return {data<T>(where), static_cast<std::size_t>(elements())};
  }

  /// The elements in another shape; Error unless it has the same number of elements.
  Tensor reshaped(const Shape& shape, SourceLocation where = SourceLocation::current()) const;
  /// The elements of @p range in row-major order, as a one-dimensional tensor; Error if the range is out of bounds.
  Tensor slice(Range range, SourceLocation where = SourceLocation::current()) const;

 private:
  /// Throws Error when the elements are of another type.
  void check_type(DType type, SourceLocation where) const;

  std::byte* data_ = nullptr;
  DType type_ = DType::f32;
  Shape shape_{0};
};

/// Calls @p f with a value of the C++ type that corresponds to @p type: f32, bf16 or f64.
/// @return  the result of @p f. Error for integer types.
template <class F>
decltype(auto) with_real_type(DType type, F&& f)
{
  switch (type) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(bf16{});
    case DType::f64:
      return f(double{});
    default:
      throw Error("a tensor of real numbers was expected");
  }
}

}  // namespace rankwise
