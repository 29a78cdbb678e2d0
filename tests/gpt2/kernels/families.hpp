#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/gpt2/testing.hpp"

/// @file
/// Holds the cpu family of kernels against the reference family.
///
/// A Computation is written once and run three times on the same numbers: by the reference in f64, which is the truth;
/// by the reference in f32, whose error says how hard the numbers are; and by the cpu family, whose error may be a few
/// times as large.

namespace rankwise::testing {

/// The value of element i of a tensor.
using Values = std::function<double(std::int64_t)>;

/// offset + scale number(i, series).
inline Values numbers(std::uint32_t series, double scale = 1, double offset = 0)
{
  return [=](std::int64_t i) { return offset + scale * number(i, series); };
}
/// The elements of a vector.
inline Values elements_of(std::vector<double> values)
{
  return [values = std::move(values)](std::int64_t i) { return values[static_cast<std::size_t>(i)]; };
}

/// The tensors of one computation, in f32 or f64. Their values are f32 numbers in both. Each begins 4 bytes after a
/// boundary of vector registers and has NaNs around it, so that what is read or written beside it shows.
class Data {
 public:
  /// What inputs are made of.
  enum class Content : std::uint8_t { values, nan };

  /// @param type     of all real numbers.
  /// @param content  whether NaNs take the place of all values, which then are in whatever scratch a kernel keeps.
  explicit Data(DType type, Content content = Content::values) : type_(type), content_(content) {}

  /// What a kernel may only read.
  Tensor input(const Shape& shape, const Values& values)
  {
    const Tensor x = updated(shape, values);
    tensors_.back().keep();
    return x;
  }
  /// i32 numbers f(0), f(1), ..., never NaN, which a kernel may only read.
  Tensor integers(std::int64_t count, const std::function<std::int64_t(std::int64_t)>& f)
  {
    const Tensor x = make(DType::i32, {count});
    for (std::int64_t i = 0; i < count; ++i) x.data<std::int32_t>()[i] = static_cast<std::int32_t>(f(i));
    tensors_.back().keep();
    return x;
  }
  /// What a kernel reads and changes.
  Tensor updated(const Shape& shape, const Values& values)
  {
    const Tensor x = make(type_, shape);
    if (content_ == Content::values)
      with_real_type(type_, [&]<class T>(T) {
        for (std::int64_t i = 0; i < x.elements(); ++i)
          x.data<T>()[i] = T(static_cast<Accumulator<T>>(static_cast<float>(values(i))));
      });
    return x;
  }
  /// What a kernel overwrites: NaN.
  Tensor output(const Shape& shape) { return make(type_, shape); }
  /// A tensor of one element that holds a result.
  Tensor scalar(double value)
  {
    const Tensor x = make(type_, {1});
    assign(x, std::vector<double>{value});
    return x;
  }

  /// Tensors of which something was changed that nobody may change: an input, or what lies beside a tensor.
  std::int64_t damaged() const
  {
    return std::count_if(tensors_.begin(), tensors_.end(), [](const Guarded& x) { return x.damaged(); });
  }

 private:
  static constexpr std::int64_t margin = 17;  // elements on each side: a vector register and one

  struct Guarded {
    Tensor all;                     // with both margins
    std::vector<std::byte> kept{};  // all bytes, where none may change

    std::span<const std::byte> bytes() const { return {all.raw(), static_cast<std::size_t>(all.bytes())}; }
    void keep() { kept.assign(bytes().begin(), bytes().end()); }
    bool damaged() const
    {
      if (!kept.empty()) return !std::equal(kept.begin(), kept.end(), bytes().begin());
      const auto beside = static_cast<std::size_t>(margin * bytes_of(all.type()));
      const auto changed = [](std::byte byte) { return byte != std::byte{0xFF}; };
      return std::ranges::any_of(bytes().first(beside), changed) ||
             std::ranges::any_of(bytes().last(beside), changed);
    }
  };

  /// All bits one, which is a NaN, in and around it.
  Tensor make(DType type, const Shape& shape)
  {
    const Tensor all = lab_.zeros(type, {shape.elements() + 2 * margin});
    std::memset(all.raw(), 0xFF, static_cast<std::size_t>(all.bytes()));
    tensors_.push_back({all});
    return all.slice({margin, shape.elements()}).reshaped(shape);
  }

  DType type_;
  Content content_;
  Laboratory lab_;
  std::vector<Guarded> tensors_;
};

/// One result of a computation.
struct Output {
  std::string name;  ///< in messages
  Tensor values;     ///< all of it
  std::int64_t row;  ///< elements of a row: what is wrong in one row must not hide in the size of the others
};

/// Makes its data, runs kernels, and gives what they left.
using Computation = std::function<std::vector<Output>(Data&, const Kernels&)>;

/// How far from the truth a family is, norm-wise.
struct Errors {
  double whole = 0;      ///< |difference| / |truth|
  double worst_row = 0;  ///< the largest |difference| of a row over the root mean square of |truth| of rows

  /// Of @p found; both are NaN when a difference is, and absolute when the truth is zero.
  static Errors of(const Output& found, const Output& truth)
  {
    const std::vector<double> a = values_of(found.values), b = values_of(truth.values);
    check(a.size() == b.size() && a.size() % static_cast<std::size_t>(truth.row) == 0, "rows fill both results");
    double difference = 0, norm = 0, worst = 0;  // squared
    for (std::size_t i = 0; i < a.size();) {
      double row = 0;
      for (std::int64_t c = 0; c < truth.row; ++c, ++i) {
        row += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
      }
      difference += row;
      if (row > worst || std::isnan(row)) worst = row;
    }
    const double rows = static_cast<double>(a.size()) / static_cast<double>(truth.row);
    return norm > 0 ? Errors{std::sqrt(difference / norm), std::sqrt(worst * rows / norm)}
                    : Errors{std::sqrt(difference), std::sqrt(worst)};
  }
};

/// What the cpu family's error may be: factor times that of the reference in f32, plus floor.
///
/// Both families make roundings of 6e-8, of which a sum in several registers makes fewer and an exponential by a
/// polynomial a few more. The factor is for luck on either side, the floor for where the reference happens to round
/// nothing. What is wrong rather than rounded is off by 1e-3 and more of a row.
struct Tolerance {
  double factor = 5;    ///< of the reference's own error
  double floor = 2e-6;  ///< beside it
};

/// The family that is held against the reference; one for all cases, so that what it keeps is of other cases too.
inline const Kernels& cpu_kernels()
{
  static const std::unique_ptr<Kernels> kernels = make_cpu_kernels();
  return *kernels;
}

/// Runs @p compute on fresh data by the cpu family, requires that nothing is touched that should not be, and calls
/// @p use with the results.
template <class Use>
void run_on_cpu(const Computation& compute, const Use& use)
{
  Data data(DType::f32);
  use(compute(data, cpu_kernels()));
  CHECK(data.damaged() == 0);
}

/// Holds the cpu family against the reference, with 1, 2 and 3 threads. Two runs have the same bits, though between them
/// whatever scratch the kernels keep is filled with NaN.
inline void check_against_reference(const Computation& compute, Tolerance tolerance = {})
{
  Laboratory lab;
  Data exact(DType::f64), rounded(DType::f32);
  const std::vector<Output> truth = compute(exact, lab.kernels()), reference = compute(rounded, lab.kernels());
  for (const int count : {1, 2, 3}) {
    const Threads threads(count);
    run_on_cpu(compute, [&](const std::vector<Output>& first) {
      Data nan(DType::f32, Data::Content::nan);
      compute(nan, cpu_kernels());
      run_on_cpu(compute, [&](const std::vector<Output>& second) {
        for (std::size_t i = 0; i < truth.size(); ++i) {
          INFO(truth[i].name << " with " << count << " threads");
          CHECK(different_bits(first[i].values, second[i].values) == 0);
          const Errors allowed = Errors::of(reference[i], truth[i]), found = Errors::of(first[i], truth[i]);
          CHECK(found.whole <= tolerance.factor * allowed.whole + tolerance.floor);
          CHECK(found.worst_row <= tolerance.factor * allowed.worst_row + tolerance.floor);
        }
      });
    });
  }
}

}  // namespace rankwise::testing
