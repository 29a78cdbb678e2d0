#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <omp.h>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/philox.hpp"
#include "common/memory/device.hpp"
#include "gpt2/activations.hpp"
#include "gpt2/kernels/kernels.hpp"

/// @file
/// Helpers for the tests of the model: tensors whose data differ by index, central differences, norm-wise errors.

namespace rankwise::testing {

/// Sets the number of threads, and the former one at the end.
class Threads {
 public:
  /// @param count  of threads from now on.
  explicit Threads(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }
  ~Threads() { omp_set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

/// A stream of the CPU, for what only copies.
inline Stream& host_stream()
{
  static const std::unique_ptr<Device> device = make_cpu_device();
  static const std::unique_ptr<Stream> stream = device->make_stream();
  return *stream;
}

/// A number in (-1, 1) that depends on @p i and on @p series, and on nothing else.
inline double number(std::int64_t i, std::uint32_t series)
{
  return 2 * uniform(philox({static_cast<std::uint32_t>(i), series, 0, 0}, {7, 11})[0]) - 1;
}

/// The elements of @p x as f64.
inline std::vector<double> values_of(const Tensor& x)
{
  std::vector<double> values;
  with_real_type(x.type(), [&]<class T>(T) {
    for (const T value : x.span<T>()) values.push_back(static_cast<double>(static_cast<Accumulator<T>>(value)));
  });
  return values;
}

/// Writes @p values, rounded to the type of @p x.
inline void assign(const Tensor& x, std::span<const double> values)
{
  check(static_cast<std::int64_t>(values.size()) == x.elements(), "a value for each element");
  with_real_type(x.type(), [&]<class T>(T) {
    for (std::size_t i = 0; i < values.size(); ++i) x.span<T>()[i] = T(static_cast<Accumulator<T>>(values[i]));
  });
}

/// A CPU with one family of kernels, and tensors that live as long as it.
class Laboratory {
 public:
  /// @param kernels  the family; the reference unless another is asked for.
  explicit Laboratory(Kernels kernels = make_reference_kernels())
      : device_(make_cpu_device()), stream_(device_->make_stream()), kernels_(std::move(kernels))
  {
  }

  /// The family of kernels.
  const Kernels& kernels() const { return kernels_; }
  /// The CPU's stream.
  Stream& stream() const { return *stream_; }
  /// Ledger of memory(); it does not count the tensors of make() and the like.
  MemoryLedger& ledger() { return ledger_; }
  /// The CPU's memory and the ledger().
  DeviceMemory memory() { return {device_.get(), &ledger_}; }

  /// A tensor of zeros.
  Tensor zeros(DType type, const Shape& shape)
  {
    const Tensor x = pool_.make({device_.get(), &own_ledger_}, Category::workspace, type, shape, "test data");
    stream_->zero(x);
    return x;
  }
  /// A tensor of real numbers offset + scale number(i, series), i being the index of the element.
  Tensor filled(DType type, const Shape& shape, std::uint32_t series, double scale = 1, double offset = 0)
  {
    const Tensor x = zeros(type, shape);
    std::vector<double> values(static_cast<std::size_t>(x.elements()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = offset + scale * number(static_cast<std::int64_t>(i), series);
    assign(x, values);
    return x;
  }
  /// A tensor of i32 numbers f(0), f(1), ...
  Tensor integers(std::int64_t count, const std::function<std::int64_t(std::int64_t)>& f)
  {
    const Tensor x = zeros(DType::i32, {count});
    for (std::int64_t i = 0; i < count; ++i) x.data<std::int32_t>()[i] = static_cast<std::int32_t>(f(i));
    return x;
  }
  /// The elements of @p x in another type.
  Tensor converted(const Tensor& x, DType type)
  {
    const Tensor copy = zeros(type, x.shape());
    assign(copy, values_of(x));
    return copy;
  }
  /// A copy of @p x.
  Tensor copied(const Tensor& x)
  {
    const Tensor copy = zeros(x.type(), x.shape());
    stream_->copy(copy, x);
    return copy;
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Kernels kernels_;
  MemoryLedger ledger_, own_ledger_;
  BufferPool pool_;
};

/// |a - b| / |b| in the Euclidean norm; |a - b| where b is zero; NaN where anything is.
inline double relative_error(std::span<const double> a, std::span<const double> b)
{
  check(a.size() == b.size(), "what is compared has as many elements");
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference) / (norm > 0 ? std::sqrt(norm) : 1);
}
/// The same of two tensors.
inline double relative_error(const Tensor& a, const Tensor& b)
{
  return relative_error(values_of(a), values_of(b));
}
/// The same of a tensor and the values that it should have.
inline double relative_error(const Tensor& a, const std::vector<double>& b)
{
  return relative_error(values_of(a), b);
}

/// The number of elements whose bits differ; all of them when type or number of elements do.
inline std::int64_t different_bits(const Tensor& a, const Tensor& b)
{
  if (a.type() != b.type() || a.elements() != b.elements()) return a.elements() + b.elements();
  std::int64_t count = 0;
  const std::int64_t size = bytes_of(a.type());
  for (std::int64_t i = 0; i < a.elements(); ++i)
    count += std::memcmp(a.raw() + i * size, b.raw() + i * size, static_cast<std::size_t>(size)) != 0 ? 1 : 0;
  return count;
}

/// The sum of the products of their elements, in f64.
inline double inner_product(const Tensor& a, const Tensor& b)
{
  const std::vector<double> x = values_of(a), y = values_of(b);
  check(x.size() == y.size(), "factors have as many elements");
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

/// (f(x + h) - f(x - h)) / 2h for each element of @p x, f64, which f() reads.
///
/// With h = 1e-5 the truncated term of the series is h^2 = 1e-10 of the third derivative, and rounding leaves
/// 1e-16 |f| / h = 1e-11 |f|. Both are far below `difference_tolerance`, and what a wrong formula gives is far above.
inline std::vector<double> central_differences(const Tensor& x, const std::function<double()>& f)
{
  constexpr double h = 1e-5;
  std::vector<double> gradient;
  for (double& element : x.span<double>()) {
    const double kept = element;
    element = kept + h;
    const double above = f();
    element = kept - h;
    const double below = f();
    element = kept;
    gradient.push_back((above - below) / (2 * h));
  }
  return gradient;
}

/// How far, norm-wise, a gradient may be from central differences; see there.
constexpr double difference_tolerance = 1e-7;

/// The largest relative error of rounding a number to bf16: half of the distance 2^-7 of neighbours in [1, 2).
constexpr double bf16_rounding = 0x1p-8;

}  // namespace rankwise::testing
