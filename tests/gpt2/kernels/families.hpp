#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/catch.hpp"
#include "tests/gpt2/kernels/carried.hpp"
#include "tests/gpt2/testing.hpp"

/// @file
/// Holds all families of kernels against the reference family.
///
/// A Computation is written once and run on the same numbers by the reference in f64, which is the truth; by the reference
/// in f32, whose error says how hard the numbers are; and by every other family, whose error may be a few times as large.
/// The reference of a GPU must have the bits of that of the CPU. Then all of it with bf16 numbers and kernels.

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

/// The role of a tensor in a kernel call, which determines its type.
enum class Role : std::uint8_t {
  activation,  ///< an activation or a parameter
  sum,         ///< what stays in the type that sums are made in: a statistic, a master weight, a moment
  gradient,    ///< the gradient of a parameter
};

/// The types of the real numbers of a computation.
struct Types {
  DType activation = DType::f32;        ///< f32 or bf16
  DType gradient = DType::f32;          ///< f32 or bf16
  std::optional<DType> stored_as = {};  ///< f64: the values of these types, kept and computed with in f64

  /// Of the numbers in a role.
  DType rounded(Role role) const
  {
    return role == Role::activation ? activation : role == Role::gradient ? gradient : accumulator_of(activation);
  }
  /// Of a tensor in a role.
  DType stored(Role role) const { return stored_as.value_or(rounded(role)); }
  /// The truth about the same numbers.
  Types exact() const { return {activation, gradient, DType::f64}; }
  /// In messages.
  std::string text() const
  {
    return std::string(name_of(activation)) + " with gradients in " + std::string(name_of(gradient));
  }
};
/// As in training without mixed precision.
constexpr Types all_f32{};
/// Activations in bf16, gradients in f32.
constexpr Types mixed{DType::bf16, DType::f32, {}};
/// Both in bf16.
constexpr Types all_bf16{DType::bf16, DType::bf16, {}};

/// The tensors of one computation. Their values are numbers of the Types that are asked for, also where f64 holds them.
/// Each begins one element after a boundary of vector registers and has NaNs around it, so that what is read or written
/// beside it shows.
class Data {
 public:
  /// Source of the inputs.
  enum class Content : std::uint8_t { values, nan };

  /// @param types    of all real numbers.
  /// @param content  whether NaNs take the place of all values, which then are in whatever scratch a kernel keeps.
  explicit Data(const Types& types = {}, Content content = Content::values) : types_(types), content_(content) {}

  /// Of the real numbers.
  const Types& types() const { return types_; }
  /// Whether there was any gradient of a parameter.
  bool has_gradients() const { return has_gradients_; }

  /// A tensor that a kernel may only read.
  Tensor input(const Shape& shape, const Values& values, Role role = Role::activation)
  {
    const Tensor x = updated(shape, values, role);
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
  /// A tensor that a kernel reads and changes.
  Tensor updated(const Shape& shape, const Values& values, Role role = Role::activation)
  {
    const Tensor x = output(shape, role);
    const bool in_bf16 = types_.rounded(role) == DType::bf16;
    if (content_ == Content::values)
      with_real_type(x.type(), [&]<class T>(T) {
        for (std::int64_t i = 0; i < x.elements(); ++i) {
          const auto value = static_cast<float>(values(i));
          x.data<T>()[i] = T(static_cast<Accumulator<T>>(in_bf16 ? static_cast<float>(bf16(value)) : value));
        }
      });
    return x;
  }
  /// A tensor that a kernel overwrites, filled with NaNs.
  Tensor output(const Shape& shape, Role role = Role::activation)
  {
    has_gradients_ = has_gradients_ || role == Role::gradient;
    return make(types_.stored(role), shape);
  }
  /// i32 numbers that a kernel overwrites.
  Tensor integer_output(const Shape& shape) { return make(DType::i32, shape); }
  /// A tensor with what another holds now.
  Tensor copy(const Tensor& of)
  {
    const Tensor same = make(of.type(), of.shape());
    host_stream().copy(same, of);
    return same;
  }
  /// A tensor of one element that holds a result.
  Tensor scalar(double value)
  {
    const Tensor x = output({1}, Role::sum);
    assign(x, std::vector<double>{value});
    return x;
  }

  /// Number of tensors with changes that no kernel may make: to an input, or to memory beside the tensor.
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

  Types types_;
  Content content_;
  bool has_gradients_ = false;
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

/// Result of a computation in f64 from which others start; computed once for numbers of each type.
class Truth {
 public:
  /// @param compute  the computation.
  explicit Truth(Computation compute) : compute_(std::move(compute)) {}

  /// Its result number @p output, from numbers like those of @p data.
  Values operator()(const Data& data, std::size_t output)
  {
    std::vector<Values>& known = known_[data.types().activation];
    if (known.empty()) {
      Laboratory lab;
      Data exact(data.types().exact());
      for (const Output& result : compute_(exact, lab.kernels()))
        known.push_back(elements_of(values_of(result.values)));
    }
    return known.at(output);
  }

 private:
  Computation compute_;
  std::map<DType, std::vector<Values>> known_;
};

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

/// Bound on a family's error: factor times that of the reference in the same types, plus floor.
///
/// All families make roundings of 6e-8, of which a sum in several registers makes fewer and an exponential by a polynomial a
/// few more. The factor is for luck on either side, the floor for where the reference happens to round nothing. What is
/// wrong rather than rounded is off by 1e-3 and more of a row.
///
/// What is stored in bf16 is rounded by 2^-8 at most, by the reference too. A family may round in between where the
/// reference does not, soft-max weights for a product of matrices: the floor is one such rounding. It is not for
/// results in f32, whose sums are those of the reference.
struct Tolerance {
  double factor = 5;                  ///< of the reference's own error
  double floor = 2e-6;                ///< beside it
  double bf16_floor = bf16_rounding;  ///< beside it, for results in bf16
  double sums_floor = 0;              ///< beside it, for sums of products whose factors may be rounded to bf16

  /// Beside the reference's error, for a result of type @p type.
  double floor_of(DType type) const { return type == DType::bf16 ? std::max(floor, bf16_floor) : floor; }
};

/// A family that is held against the reference, and how it runs.
struct Family {
  std::string name;    ///< in messages
  Kernels kernels;     ///< for tensors on the host; one for all cases, so that what it keeps is of others too
  int threads = 1;     ///< of the host
  bool exact = false;  ///< whether its results must have the bits of the reference
  bool twin = false;   ///< whether there is the same once more, in other surroundings
};

/// The cpu and the exact family with 1, 2 and 3 threads, unless the GPU is emulated: another build tests these in less time.
/// Where there is a GPU, both of its families, the fast one in both surroundings.
inline const std::vector<Family>& families()
{
  static const std::vector<Family> all = [] {
    std::vector<Family> list;
    if (!gpu_is_emulated())
      for (const int threads : {1, 2, 3}) {
        const std::string with = " with " + std::to_string(threads) + " threads";
        list.push_back({"cpu" + with, make_cpu_kernels(), threads});
        list.push_back({"exact" + with, make_exact_kernels(), threads, true});
      }
    if (test_gpu() == nullptr) return list;
    const auto carried = [](CarriedKernels::Make* make, Surroundings surroundings) {
      return std::make_unique<CarriedKernels>(make, surroundings);
    };
    list.push_back({"cuda, tensors alone", carried(make_cuda_kernels, Surroundings::nothing), 1, false, true});
    list.push_back({"cuda, tensors among NaNs", carried(make_cuda_kernels, Surroundings::nans), 1, false, true});
    list.push_back({"reference on a GPU", carried(make_cuda_reference_kernels, Surroundings::nans), 1, true});
    return list;
  }();
  return all;
}

/// Picks 0 or 1 at random on an emulated GPU, which is slow; each run picks the same. -1 means both: on a real GPU, and
/// with RANKWISE_ALL.
inline int one_of_two()
{
  static const bool one = gpu_is_emulated() && std::getenv("RANKWISE_ALL") == nullptr;
  static std::mt19937 random;
  return one ? static_cast<int>(random() % 2) : -1;
}

/// The families that take part in one check: both twins or one_of_two().
inline std::vector<const Family*> families_of_check()
{
  const int chosen_twin = one_of_two();
  int twin = 0;
  std::vector<const Family*> chosen;
  for (const Family& family : families())
    if (!family.twin || chosen_twin < 0 || twin++ == chosen_twin) chosen.push_back(&family);
  return chosen;
}

/// Calls @p use with the kernels of every family of a check that knows @p types, with as many threads as it wants.
template <class Use>
void for_each_family(const Types& types, const Use& use)
{
  INFO(types.text());
  for (const Family* const family : families_of_check()) {
    INFO(family->name);
    const Threads threads(family->threads);
    use(family->kernels);
  }
}
/// The same for f32.
template <class Use>
void for_each_family(const Use& use)
{
  for_each_family(all_f32, use);
}

/// Runs @p compute on fresh data, requires that nothing is touched that should not be, and calls @p use with the results.
template <class Use>
void run_and_use(const Computation& compute, const Kernels& kernels, const Types& types, const Use& use)
{
  Data data(types);
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
    const double floor = tolerance.floor_of(found[i].values.type());
    CHECK(errors.whole <= tolerance.factor * allowed.whole + floor);
    CHECK(errors.worst_row <= tolerance.factor * allowed.worst_row + floor);
  }
}

/// Holds all families that know @p types against the reference. Two runs have the same bits, though between them whatever
/// scratch the kernels keep is filled with NaN; a run that must have the bits of the reference needs no second one.
/// @return whether the computation has gradients of parameters.
inline bool check_in(const Types& types, const Computation& compute, Tolerance tolerance)
{
  INFO(types.text());
  if (types.activation == DType::bf16) tolerance.floor = std::max(tolerance.floor, tolerance.sums_floor);
  Laboratory lab;
  Data exactly(types.exact()), rounded(types);
  const std::vector<Output> truth = compute(exactly, lab.kernels()), reference = compute(rounded, lab.kernels());
  for (const Family* const family : families_of_check()) {
    INFO(family->name);
    const Threads threads(family->threads);
    run_and_use(compute, family->kernels, types, [&](const std::vector<Output>& first) {
      check_outputs(first, reference, truth, family->exact, tolerance);
      if (family->exact) return;
      Data nan(types, Data::Content::nan);
      compute(nan, family->kernels);
      run_and_use(compute, family->kernels, types, [&](const std::vector<Output>& second) {
        for (std::size_t i = 0; i < first.size(); ++i) {
          INFO(first[i].name);
          CHECK(different_bits(first[i].values, second[i].values) == 0);
        }
      });
    });
  }
  return rounded.has_gradients();
}

/// Holds all families against the reference in bf16, with gradients of parameters in f32 and in bf16.
inline void check_in_bf16(const Computation& compute, Tolerance tolerance = {})
{
  if (check_in(mixed, compute, tolerance)) check_in(all_bf16, compute, tolerance);
}

/// Holds all families against the reference, in f32 and bf16; after the first check of a test case, in one_of_two().
inline void check_against_reference(const Computation& compute, Tolerance tolerance = {})
{
  static std::string last_test;
  const std::string test = Catch::getResultCapture().getCurrentTestName();
  const int chosen = test == last_test ? one_of_two() : -1;
  last_test = test;
  if (chosen != 1) check_in(all_f32, compute, tolerance);
  if (chosen != 0) check_in_bf16(compute, tolerance);
}

}  // namespace rankwise::testing
