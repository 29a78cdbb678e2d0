#include "common/memory/tensor.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace rankwise {

std::string_view name_of(DType type)
{
  constexpr std::array<std::string_view, dtype_count> names{"f32", "bf16", "f64", "i32", "i64", "u8"};
  return names[static_cast<std::size_t>(type)];
}

Shape::Shape(std::initializer_list<std::int64_t> extents) : rank_(static_cast<int>(extents.size()))
{
  check(extents.size() <= extents_.size(), "a shape of more than four dimensions");
  check(std::all_of(extents.begin(), extents.end(), [](std::int64_t extent) { return extent >= 0; }),
        "a shape with a negative extent");
  std::copy(extents.begin(), extents.end(), extents_.begin());
}

std::int64_t Shape::elements() const
{
  std::int64_t product = 1;
  for (int i = 0; i < rank_; ++i) product *= (*this)[i];
  return product;
}

std::string Shape::text() const
{
  return fmt::format("({})", fmt::join(extents_.begin(), extents_.begin() + rank_, ", "));
}

void Tensor::check_type(DType type, SourceLocation where) const
{
  if (!empty() && type_ != type)
    throw Error(fmt::format("a tensor of {} was read as {}", name_of(type_), name_of(type)), where);
}

Tensor Tensor::reshaped(const Shape& shape, SourceLocation where) const
{
  if (shape.elements() != elements())
    throw Error(fmt::format("{} elements {} cannot take the shape {}", elements(), shape_.text(), shape.text()),
                where);
  return {data_, type_, shape};
}

Tensor Tensor::slice(Range range, SourceLocation where) const
{
  if (range.first < 0 || range.count < 0 || range.end() > elements())
    throw Error(fmt::format("elements [{}, {}) of a tensor of {}", range.first, range.end(), elements()), where);
  return {data_ + range.first * bytes_of(type_), type_, Shape{range.count}};
}

}  // namespace rankwise
