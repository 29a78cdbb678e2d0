#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/gpt2/kernels/carried.hpp"
#include "tests/gpt2/testing.hpp"

/// @file
/// Holds all families of kernels against the reference family.
///
/// A Computation is written once and run on the same numbers by the reference in f64, which is the truth; by the reference
/// in f32, whose error says how hard the numbers are; and by every other family, whose error may be a few times as large.
/// The reference of a GPU must have the bits of that of the CPU.

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

/// What a family's error may be: factor times that of the reference in f32, plus floor.
///
/// All families make roundings of 6e-8, of which a sum in several registers makes fewer and an exponential by a polynomial a
/// few more. The factor is for luck on either side, the floor for where the reference happens to round nothing. What is
/// wrong rather than rounded is off by 1e-3 and more of a row.
struct Tolerance {
  double factor = 5;    ///< of the reference's own error
  double floor = 2e-6;  ///< beside it
};

/// Which functions a computation needs beside sums, products, quotients and roots, which all devices round alike.
enum class Functions : std::uint8_t {
  none,     ///< none: the reference of a GPU has the bits of that of the CPU
  library,  ///< exponential, logarithm or tangent, which a GPU's library rounds in its own way
};

/// A family that is held against the reference, and how it runs.
struct Family {
  std::string name;  ///< in messages
  std::unique_ptr<Kernels>
      kernels;           ///< for tensors on the host; one for all cases, so that what it keeps is of others too
  int threads = 1;       ///< of the host
  bool ordered = false;  ///< whether it adds in the order of every SumOrder

  /// Whether its results must have the bits of the reference.
  bool exact(Functions functions) const { return ordered && (functions == Functions::none || gpu_is_emulated()); }
};

/// The cpu family with 1, 2 and 3 threads; where there is a GPU, both of its families, the fast one in both surroundings.
inline const std::vector<Family>& families()
{
  static const std::vector<Family> all = [] {
    std::vector<Family> list;
    for (const int threads : {1, 2, 3})
      list.push_back({"cpu with " + std::to_string(threads) + " threads", make_cpu_kernels(), threads});
    if (test_gpu() == nullptr) return list;
    const auto carried = [](CarriedKernels::Make* make, Surroundings surroundings) {
      return std::make_unique<CarriedKernels>(make, surroundings);
    };
    list.push_back({"cuda, tensors alone", carried(make_cuda_kernels, Surroundings::nothing)});
    list.push_back({"cuda, tensors among NaNs", carried(make_cuda_kernels, Surroundings::nans)});
    list.push_back({"reference on a GPU", carried(make_cuda_reference_kernels, Surroundings::nans), 1, true});
    return list;
  }();
  return all;
}

/// Calls @p use with the kernels of every family, with as many threads as it wants.
template <class Use>
void for_each_family(const Use& use)
{
  for (const Family& family : families()) {
    INFO(family.name);
    const Threads threads(family.threads);
    use(*family.kernels);
  }
}

/// Runs @p compute on fresh data, requires that nothing is touched that should not be, and calls @p use with the results.
template <class Use>
void run_and_use(const Computation& compute, const Kernels& kernels, const Use& use)
{
  Data data(DType::f32);
  use(compute(data, kernels));
  CHECK(data.damaged() == 0);
}

/// Requires that the results of one run are near @p truth, as near as those of @p reference; or that they are those.
inline void check_outputs(const std::vector<Output>& found, const std::vector<Output>& reference,
                          const std::vector<Output>& truth, bool exact, Tolerance tolerance)
{
  for (std::size_t i = 0; i < truth.size(); ++i) {
    INFO(truth[i].name);
    if (exact) CHECK(different_bits(found[i].values, reference[i].values) == 0);
    const Errors allowed = Errors::of(reference[i], truth[i]), errors = Errors::of(found[i], truth[i]);
    CHECK(errors.whole <= tolerance.factor * allowed.whole + tolerance.floor);
    CHECK(errors.worst_row <= tolerance.factor * allowed.worst_row + tolerance.floor);
  }
}

/// Holds all families against the reference. Two runs have the same bits, though between them whatever scratch the kernels
/// keep is filled with NaN; a run that must have the bits of the reference needs no second one.
inline void check_against_reference(const Computation& compute, Tolerance tolerance = {},
                                    Functions functions = Functions::none)
{
  Laboratory lab;
  Data in_f64(DType::f64), in_f32(DType::f32);
  const std::vector<Output> truth = compute(in_f64, lab.kernels()), reference = compute(in_f32, lab.kernels());
  for (const Family& family : families()) {
    INFO(family.name);
    const Threads threads(family.threads);
    run_and_use(compute, *family.kernels, [&](const std::vector<Output>& first) {
      check_outputs(first, reference, truth, family.exact(functions), tolerance);
      if (family.exact(functions)) return;
      Data nan(DType::f32, Data::Content::nan);
      compute(nan, *family.kernels);
      run_and_use(compute, *family.kernels, [&](const std::vector<Output>& second) {
        for (std::size_t i = 0; i < first.size(); ++i) {
          INFO(first[i].name);
          CHECK(different_bits(first[i].values, second[i].values) == 0);
        }
      });
    });
  }
}

}  // namespace rankwise::testing
