#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "common/memory/tensor.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

float float_of(std::uint32_t word)
{
  return std::bit_cast<float>(word);
}

/// The bits of @p value rounded to bf16.
std::uint16_t rounded(float value)
{
  return bf16(value).bits;
}

/// The message of the Error that @p f throws, and whether it names this file.
template <class F>
std::string message_of(F&& f)
{
  try {
    f();
  } catch (const Error& error) {
    CHECK(std::string(error.where().file_name()).ends_with("test_tensor.cpp"));
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("bf16: each of its 65536 values survives the way through f32")
{
  int wrong = 0, nans = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    bf16 value;
    value.bits = static_cast<std::uint16_t>(bits);
    const auto wide = static_cast<float>(value);
    if (std::isnan(wide)) {  // stays a NaN of the same sign, made quiet
      ++nans;
      wrong += rounded(wide) == (bits | 0x40) ? 0 : 1;
    } else {
      wrong += rounded(wide) == bits ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
  CHECK(nans == 2 * 127);
}

TEST_CASE("bf16: rounds to the nearest value between all neighbours, ties to even")
{
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x7F80; ++bits) {  // up to the last finite value, whose neighbour is infinity
    for (const std::uint32_t sign : {0x0000u, 0x8000u}) {
      const std::uint32_t low = sign | bits, high = low + 1, even = low % 2 == 0 ? low : high, word = low << 16;
      wrong += rounded(float_of(word + 0x0001)) == low ? 0 : 1;
      wrong += rounded(float_of(word + 0x7FFF)) == low ? 0 : 1;
      wrong += rounded(float_of(word + 0x8000)) == even ? 0 : 1;
      wrong += rounded(float_of(word + 0x8001)) == high ? 0 : 1;
      wrong += rounded(float_of(word + 0xFFFF)) == high ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("bf16: keeps infinities, NaN, signed zero and denormals")
{
  constexpr float infinity = std::numeric_limits<float>::infinity();
  CHECK(rounded(infinity) == 0x7F80);
  CHECK(rounded(-infinity) == 0xFF80);
  CHECK(rounded(std::numeric_limits<float>::max()) == 0x7F80);  // nearer to 2^128 than to the largest bf16
  CHECK(rounded(float_of(0x7F7F7FFF)) == 0x7F7F);
  CHECK(rounded(0.0f) == 0x0000);
  CHECK(rounded(-0.0f) == 0x8000);
  CHECK(rounded(1.0f) == 0x3F80);
  CHECK(rounded(float_of(0x00010000)) == 0x0001);  // the smallest bf16: a denormal
  CHECK(rounded(float_of(0x00008000)) == 0x0000);
  CHECK(rounded(float_of(0x00008001)) == 0x0001);
  // NaNs whose upper half alone would read as infinity, or would carry over into it.
  for (const std::uint32_t word : {0x7F800001u, 0x7FFFFFFFu, 0xFF800001u, 0xFFFFFFFFu, 0x7FC00000u})
    CHECK(std::isnan(static_cast<float>(bf16(float_of(word)))));
  CHECK(bf16().bits == 0);
}

TEST_CASE("DType: sizes, names, C++ types and accumulators belong together")
{
  STATIC_REQUIRE(bytes_of(DType::f32) == sizeof(float));
  STATIC_REQUIRE(bytes_of(DType::bf16) == sizeof(bf16));
  STATIC_REQUIRE(bytes_of(DType::f64) == sizeof(double));
  STATIC_REQUIRE(bytes_of(DType::i32) == sizeof(std::int32_t));
  CHECK(name_of(DType::f32) == "f32");
  CHECK(name_of(DType::bf16) == "bf16");
  CHECK(name_of(DType::f64) == "f64");
  CHECK(name_of(DType::i32) == "i32");
  STATIC_REQUIRE(dtype_of<Accumulator<float>>() == accumulator_of(DType::f32));
  STATIC_REQUIRE(dtype_of<Accumulator<bf16>>() == accumulator_of(DType::bf16));
  STATIC_REQUIRE(dtype_of<Accumulator<double>>() == accumulator_of(DType::f64));
  STATIC_REQUIRE(accumulator_of(DType::bf16) == DType::f32);
  STATIC_REQUIRE(accumulator_of(DType::f64) == DType::f64);
}

TEST_CASE("Shape: has up to four extents, none negative")
{
  const Shape shape{2, 3, 4};
  CHECK(shape.rank() == 3);
  CHECK(shape[0] == 2);
  CHECK(shape[2] == 4);
  CHECK(shape.elements() == 24);
  CHECK(shape.text() == "(2, 3, 4)");
  CHECK(Shape{7}.text() == "(7)");
  CHECK(Shape().elements() == 1);
  CHECK(Shape().text() == "()");
  CHECK(Shape{5, 0, 2}.elements() == 0);
  CHECK(Shape{1, 2, 3, 4}.elements() == 24);
  CHECK(Shape{50257, 12288, 3, 100}.elements() == 185'267'404'800);
  CHECK(shape == Shape{2, 3, 4});
  CHECK_FALSE(shape == Shape{2, 3, 5});
  CHECK_FALSE(Shape{2, 3} == Shape{2, 3, 0});
  CHECK_THROWS_WITH((Shape{1, 2, 3, 4, 5}), EndsWith(": a shape of more than four dimensions"));
  CHECK_THROWS_WITH((Shape{2, -1}), EndsWith(": a shape with a negative extent"));
}

TEST_CASE("Tensor: is a view of elements that it does not own")
{
  std::vector<float> values(6);
  std::iota(values.begin(), values.end(), 0.0f);
  const Tensor tensor{std::span(values), Shape{2, 3}};
  CHECK_FALSE(tensor.empty());
  CHECK(tensor.type() == DType::f32);
  CHECK(tensor.extent(1) == 3);
  CHECK(tensor.elements() == 6);
  CHECK(tensor.bytes() == 24);
  CHECK(tensor.raw() == reinterpret_cast<std::byte*>(values.data()));
  CHECK(tensor.data<float>() == values.data());
  tensor.span<float>()[4] = 40;
  CHECK(values[4] == 40);
  CHECK_THROWS_WITH(Tensor(std::span(values), Shape{7}), EndsWith(": a tensor's shape does not fit its elements"));
}

TEST_CASE("Tensor: an empty one has no elements of any type")
{
  const Tensor nothing;
  CHECK(nothing.empty());
  CHECK(nothing.elements() == 0);
  CHECK(nothing.bytes() == 0);
  CHECK(nothing.data<float>() == nullptr);
  CHECK(nothing.span<std::int32_t>().empty());
  CHECK(nothing.slice({0, 0}).empty());
  CHECK(nothing.reshaped({0, 3}).elements() == 0);
  CHECK_THROWS_AS(nothing.slice({0, 1}), Error);
  CHECK_THROWS_AS(nothing.reshaped({}), Error);
}

TEST_CASE("Tensor: is read only as what it holds; the error names the line of the caller")
{
  std::vector<double> values(3);
  const Tensor tensor{std::span(values), Shape{3}};
  CHECK(tensor.span<double>().size() == 3);
  CHECK(message_of([&] { tensor.data<float>(); }) == "a tensor of f64 was read as f32");
  CHECK(message_of([&] { tensor.span<bf16>(); }) == "a tensor of f64 was read as bf16");
  CHECK(message_of([&] { tensor.data<std::int32_t>(); }) == "a tensor of f64 was read as i32");
}

TEST_CASE("Tensor: slices are runs of elements in row-major order")
{
  std::vector<bf16> values(12);
  const Tensor tensor{std::span(values), Shape{3, 4}};
  const Tensor middle = tensor.slice({4, 6});
  CHECK(middle.data<bf16>() == values.data() + 4);
  CHECK(middle.shape() == Shape{6});
  CHECK(middle.type() == DType::bf16);
  CHECK(middle.slice({2, 1}).data<bf16>() == values.data() + 6);
  CHECK(tensor.slice({0, 12}).elements() == 12);
  CHECK(tensor.slice({12, 0}).elements() == 0);
  CHECK(message_of([&] { tensor.slice({7, 6}); }) == "elements [7, 13) of a tensor of 12");
  CHECK(message_of([&] { tensor.slice({-1, 2}); }) == "elements [-1, 1) of a tensor of 12");
  CHECK_THROWS_AS(tensor.slice({3, -1}), Error);
  CHECK_THROWS_AS(middle.slice({6, 1}), Error);
}

TEST_CASE("Tensor: takes another shape of as many elements only")
{
  std::vector<std::int32_t> values(12);
  const Tensor tensor{std::span(values), Shape{3, 4}};
  const Tensor other = tensor.reshaped({2, 3, 2});
  CHECK(other.shape() == Shape{2, 3, 2});
  CHECK(other.data<std::int32_t>() == values.data());
  CHECK(message_of([&] { tensor.reshaped({5, 2}); }) == "12 elements (3, 4) cannot take the shape (5, 2)");
}

TEST_CASE("with_real_type: calls with a value of the type; integers are refused")
{
  const auto type_seen = [](DType type) {
    return with_real_type(type, [&]<class T>(T value) {
      CHECK(static_cast<float>(value) == 0);
      return dtype_of<T>();
    });
  };
  for (const DType type : {DType::f32, DType::bf16, DType::f64}) CHECK(type_seen(type) == type);
  CHECK_THROWS_WITH(type_seen(DType::i32), EndsWith(": a tensor of real numbers was expected"));
}
